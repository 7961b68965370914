"""Handlers that are more than a plain function: coroutine functions, asynchronous generators, and classes.

`load_handler` makes a `ManagedHandler` of each of them. A call of it returns when the work of its record is done, so
what calls one record after the other needs to know nothing else. `ackline.worker.under_way` keeps many calls under way:
it takes what `begin` returns, and awaits that on a loop of its own.

An object of a class is made once in a process, at the first record that the process handles: neither a plan nor
Airflow's parser makes one. Its `open` runs before the first call of a Spark task, its `close` at the end of the task,
before the task reports outcomes. What they raise ends the task, and is no outcome of a record.
"""

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.scrub import place_of_error, scrub

T = TypeVar("T")

TIER = "__ackline_tier__"
"""The attribute in which a decorator has declared the tier of a handler."""

ASYNC_CONCURRENCY = 64
"""Calls of an asynchronous handler that are under way at once in a Spark task, unless the file says another number."""

Run = Callable[[Awaitable[Any]], Any]
"""Returns what an awaitable returns, or raises what it raises."""


def is_asynchronous(function: object) -> bool:
    """Returns whether a call of a function, or of an object, gives work that is still to be awaited."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object may have an asynchronous __call__
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (function, call))


class Yielded(tuple[Any, ...]):
    """What a handler that is a generator has yielded in one call."""

    __slots__ = ()


class ManagedHandler:
    """A handler that is asynchronous, or a class. `path` names it in messages. With `emits`, what an asynchronous
    generator yields is handed on as it is yielded; otherwise a call runs it to its end."""

    def __init__(self, target: Callable[..., Any], path: str, emits: bool) -> None:
        self._target, self._path, self._emits = target, path, emits
        self._kind = target if inspect.isclass(target) else None
        function: Any = getattr(target, "__call__") if self._kind is not None else target  # noqa: B004, B009
        functools.update_wrapper(self, function, updated=())
        tier = getattr(target, TIER, getattr(function, TIER, None))  # a decorator may stand at the class or at its call
        if tier is not None:
            setattr(self, TIER, tier)
        self._call: Callable[..., Any] = target
        self._made: _Made | None = None
        self._is_generator = inspect.isgeneratorfunction(function)
        self.is_asynchronous = is_asynchronous(function)
        """Whether each call is awaited."""
        self.needs_loop = self.is_asynchronous or any(
            is_asynchronous(getattr(self._kind, name, None)) for name in ("open", "close")
        )
        """Whether a call, or `open` or `close`, is awaited."""
        self.buffers = hasattr(self._kind, "close")
        """Whether a record may count as handled only once `close` has returned, because the object may write there."""

    def __call__(self, given: Any) -> Any:
        """Calls the handler, and returns when the work is done."""
        try:
            self.open(run_here)
        except AcklineError as error:
            raise TaskFailure(error) from None
        result = self.begin(given)
        if inspect.isasyncgen(result):
            return _as_generator(result)
        return run_here(result) if self.is_asynchronous else result

    def begin(self, given: Any) -> Any:
        """Calls the handler, and returns what it returns; for an asynchronous one something to await, or with `emits`
        an asynchronous generator. `open` must have returned."""
        result = self._call(given)
        if self._emits:
            return result
        if inspect.isasyncgen(result):
            return _collected(result)
        return Yielded(result) if inspect.isgenerator(result) and self._is_generator else result

    def open(self, run: Run) -> None:
        """Makes the object of a class, if this process has none, and calls its `open`, if that has not been called
        since the last `close`. Raises the AcklineError that the class raises, TransientError for an OSError, and
        FatalError for any other."""
        if self._kind is None or (self._made is not None and self._made.run is not None):
            return
        if self._made is None or self._made.process != os.getpid():
            with_errors(f"{self._path} can't be made", self._make)
        assert self._made is not None
        if self._made.run is None:
            self._made.hook("open", run)
            self._made.run = run

    def _make(self) -> None:
        assert self._kind is not None
        made = _objects.get(self._kind)
        if made is None or made.process != os.getpid():
            made = _objects[self._kind] = _Made(self._kind(), os.getpid(), self._path)
        self._made, self._call = made, made.object


class TaskFailure(BaseException):
    """Ends the Spark task with `error`: the record can't be handled now, and the record is not the cause."""

    def __init__(self, error: AcklineError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _Made:
    """The object of a class, and the process that it was made in: a copy that a fork has made needs its own."""

    object: Any
    process: int
    path: str
    run: Run | None = None
    """What runs `open` and `close`; None while the object is closed."""

    def hook(self, name: str, run: Run) -> None:
        """Calls `open` or `close`, if the class has it. Raises an AcklineError."""
        hook = getattr(self.object, name, None)
        if hook is None:
            return

        def call() -> None:
            result = hook()
            if inspect.isawaitable(result):
                run(result)

        with_errors(f"`{name}` of {self.path} failed", call, may_quote=name == "close")


_objects: dict[type, _Made] = {}
"""The object of each class. Two streams, or two steps, that name one class share its object. Global, because a process
works on one task at a time."""


def close_handlers() -> None:
    """Calls the `close` of each object that is open: the task ends. Raises as `ManagedHandler.open` does, for the first
    that fails, after all others are closed."""
    failed: AcklineError | None = None
    for made in _objects.values():
        if made.run is not None and made.process == os.getpid():
            run, made.run = made.run, None
            try:
                made.hook("close", run)
            except AcklineError as error:
                failed = failed or error
    if failed is not None:
        raise failed


def with_errors(what: str, call: Callable[[], object], may_quote: bool = False) -> None:
    """Calls `call`. Raises an AcklineError as it is, and anything else as an error of Ackline that begins with `what`
    and names the line of the user's code. Leaves its text out if that `may_quote` records, such as buffered ones."""
    try:
        call()
    except AcklineError:
        raise
    except BaseException as error:
        place = place_of_error(error)
        said = "" if may_quote else f": {scrub(str(error), ())}"
        text = f"{what}: {type(error).__name__}{said}{'' if place is None else f' ({place})'}"
        raise (TransientError if isinstance(error, OSError) else FatalError)(text) from None


def run_nothing(_: Any) -> Any:
    """Stands for a loop where no handler needs one."""
    raise AssertionError("a handler that needs no loop has something to await")


_loop: tuple[int, asyncio.AbstractEventLoop] | None = None
# Global, because a process works on one task at a time. With the number of its process: a fork copies a loop, but not
# what the loop waits for.


def run_here(awaitable: Awaitable[T]) -> T:
    """Returns what an awaitable returns, or raises what it raises. Runs it in this thread, on the loop of the
    process."""
    global _loop
    if _loop is None or _loop[0] != os.getpid() or _loop[1].is_closed():
        _loop = os.getpid(), asyncio.new_event_loop()
    loop = _loop[1]
    task = loop.create_task(guarded(awaitable))
    while not task.done():
        # A task that the handler has started may raise SystemExit, which ends the loop while this one goes on.
        with contextlib.suppress(SystemExit):
            loop.run_until_complete(task)
    return raise_or_return(task.result())


async def guarded(awaitable: Awaitable[T]) -> "tuple[T | None, BaseException | None]":
    """Returns what an awaitable returns, or what it raises: SystemExit would end the loop in the middle of others."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


def raise_or_return(answer: "tuple[T | None, BaseException | None]") -> T:
    """Returns or raises what `guarded` has caught."""
    value, error = answer
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


async def _collected(items: AsyncIterator[Any]) -> Yielded:
    return Yielded([item async for item in items])


def _as_generator(items: Any) -> Generator[Any, None, None]:
    """Yields what an asynchronous generator yields, each item before the generator goes on."""
    try:
        while True:
            try:
                item = run_here(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run_here(items.aclose())
