"""Makes the calls of a handler of a tree ahead of the task's thread, and hands out what came of each, in their order.

Plain functions are called by threads, asynchronous ones on the event loop of the task. A call runs its generator to the
end. Only the task's thread reads the answers, one call after the other, so what they emit has the bytes and the place
that it has when no call overlaps another.

A call that is slow stops the others once `_AHEAD` times as many as may be under way have begun after it, or fewer if
what they leave is large.
"""

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any

from ackline.calling import ManagedHandler, TaskFailure, run_nothing
from ackline.errors import FatalError, TransientError
from ackline.handler import Emit, Fail, Handler, Hold, InFlight
from ackline.worker.call import end_forked_copy, forks
from ackline.worker.event_loop import EventLoop
from ackline.worker.outcomes import Clock

_AHEAD = 4
_MOST_BYTES = 8 << 20
"""About how many bytes calls may leave that have ended and are not read, beside those of `limit` calls."""
_PATIENCE = 1.0
_ANSWERS = (Emit, Fail, Hold, InFlight)

Job = tuple[Handler | None, Any, BaseException | None]
"""A handler and what it gets. Without a handler, why there is none to call."""


@dataclass(slots=True, eq=False)
class Made:
    """A call: what it was given, what it has returned or raised, when it began and ended by `perf_counter_ns`, and the
    time of its end in microseconds since 1970."""

    handler: Handler | None
    argument: Any
    error: BaseException | None = None
    result: Any = None
    yielded: list[Any] | None = None
    """What an iterator has yielded, up to the first item that is no answer; None if the call has returned none."""
    begun: int = 0
    ended: int = 0
    time: int = 0
    has_ended: bool = False

    def answer(self) -> Any:
        """Returns what the call has returned, or yields what it has yielded. Raises what it has raised, after what it
        has yielded."""
        if self.yielded is not None:
            return self._again(self.yielded)
        if self.error is not None:
            raise self.error
        return self.result

    def _again(self, yielded: list[Any]) -> Generator[Any, None, None]:
        yield from yielded
        if self.error is not None:
            raise self.error

    def take(self, result: Any) -> None:
        """Takes what a call has returned, and runs an iterator to its end."""
        if isinstance(result, Iterator):
            self.yielded = []
            for item in result:
                if not self.add(item):
                    break
        else:
            self.result = [_kept(item) for item in result] if type(result) in (list, tuple) else _kept(result)

    def add(self, item: Any) -> bool:
        """Adds what was yielded. Returns whether it may be an answer: what reads anything else looks no further."""
        assert self.yielded is not None
        self.yielded.append(_kept(item))
        return isinstance(item, _ANSWERS)


def _kept(answer: Any) -> Any:
    """Returns an answer as it is now: the handler may change it, or its value, before it is read."""
    if type(answer) is not Emit:
        return answer
    anchors = answer.anchors
    try:
        value, key = _copied(answer.value), _copied(answer.key)
    except RecursionError:  # what reads it refuses it
        return answer
    return Emit(value, answer.stream, key, list(anchors) if type(anchors) is list else anchors)


def _copied(value: Any) -> Any:
    if type(value) is dict:
        return {name: _copied(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_copied(part) for part in value])
    return value


class TaskCalls:
    """All calls of one task that are made ahead, and its event loop. Close it at the end of the task."""

    def __init__(self, now: Clock) -> None:
        self.now = now
        self._loop: EventLoop | None = None
        self._all: list[CallsAhead] = []

    @property
    def loop(self) -> EventLoop:
        """The loop, which is made when it is first asked for."""
        if self._loop is None:
            self._loop = EventLoop()
        return self._loop

    def of(self, handlers: Sequence[Handler], limit: int, threads: int) -> "CallsAhead":
        """Returns what calls these handlers: at most `limit` calls are under way, of plain functions `threads`."""
        self._all.append(CallsAhead(self, handlers, limit, threads))
        return self._all[-1]

    def stop(self) -> None:
        """Begins no more calls, and cancels what is under way on the loop: the task has failed."""
        for each in self._all:
            each.stop()

    def close(self) -> None:
        """Ends the threads and the loop. A thread ends with its call."""
        self.stop()
        if self._loop is not None:
            self._loop.close()


class CallsAhead:
    """The calls of one step, or of the handlers of records."""

    def __init__(self, task: TaskCalls, handlers: Sequence[Handler], limit: int, threads: int) -> None:
        self._task, self._limit, self._threads_limit = task, limit, threads
        self._managed = [each for each in handlers if isinstance(each, ManagedHandler)]
        is_mixed = 0 < sum(each.is_asynchronous for each in self._managed) < len(handlers)
        # Threads do not know how many calls are under way on the loop, so beside a loop no call waits for one to end.
        self._most = limit if is_mixed or limit == 1 else _AHEAD * limit
        self._weight = 1.0
        self._calls: deque[Made] = deque()
        """Those that have begun, or that wait for a thread or for the loop, and are not read."""
        self._is_open = self._closed = self._enough = self._is_to_look = False
        self._forks = forks()
        self._awaited: Made | None = None
        self._read: Made | None = None
        self._has_ended = threading.Event()
        self._for_threads: SimpleQueue[tuple[Made, contextvars.Context] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._for_loop: deque[tuple[Made, contextvars.Context]] = deque()
        self._running = 0  # touched on the loop alone
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def over(self, jobs: Iterable[Job]) -> Iterator[Made]:
        """Begins calls, as there is room for them. Yields each once it has ended, in their order: at first those that
        an earlier `over` has begun. Raises the AcklineError that keeps a call from being made."""
        self._enough, left = False, iter(jobs)
        while True:
            while not self._enough and len(self._calls) < self._room:
                job = next(left, None)
                if job is None:
                    self._enough = True
                else:
                    self._begin(*job)
            if not self._calls:
                return
            if not self._calls[0].has_ended:
                # Woken once for several calls: to wake this thread for each would take more time than all the rest.
                self._wait(self._calls[min(self._limit // 4, len(self._calls) - 1)])
            self._wait(self._calls[0])
            yield self._calls.popleft()

    def arguments(self, handler: Handler, arguments: Iterable[Any]) -> Iterator[Any]:
        """Calls a handler with each of these. Yields each once its call has ended: `answer` is then what came of it."""
        for made in self.over((handler, argument, None) for argument in arguments):
            self._read = made
            yield made.argument

    def answer(self, _: Any) -> Any:
        """Returns what the call that was read last has returned. Raises what it has raised."""
        assert self._read is not None
        return self._read.answer()

    @property
    def lasted(self) -> int:
        """The nanoseconds that the call took which was read last."""
        assert self._read is not None
        return self._read.ended - self._read.begun

    def weigh(self, size: int, is_full: bool = False) -> None:
        """Notes how many bytes a call has left: large ones stop the calls after them earlier. If `is_full`, `over`
        yields what has begun, and begins no more."""
        self._weight = max(size, 0.9 * self._weight, 1.0)
        self._enough = self._enough or is_full

    @property
    def _room(self) -> int:
        return min(self._most, max(self._limit, int(_MOST_BYTES / self._weight)))

    def _begin(self, handler: Handler | None, argument: Any, error: BaseException | None) -> None:
        call = Made(handler, argument, error)
        if handler is None:
            call.time, call.has_ended = self._task.now(), True
            self._calls.append(call)
            return
        if not self._is_open:  # before the first call: a task without one needs no connection
            for managed in self._managed:
                managed.open(self._task.loop.run if managed.needs_loop else run_nothing)
            self._is_open = True
        self._calls.append(call)
        if _is_asynchronous(handler):
            self._for_loop.append((call, contextvars.copy_context()))
            if not self._is_to_look:
                self._is_to_look = True
                self._task.loop.submit(self._look)
            return
        self._for_threads.put((call, contextvars.copy_context()))
        if len(self._threads) < min(self._threads_limit, len(self._calls)):
            thread = threading.Thread(target=self._work, name=f"ackline-ahead-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        """In a thread: makes one call after the other."""
        while (given := self._for_threads.get()) is not None and not self._closed:
            call, context = given
            call.begun = perf_counter_ns()
            try:
                context.run(self._make, call)
            except BaseException as raised:  # sys.exit, too, is the outcome of this call alone
                call.error = raised
            self._end(call)

    def _make(self, call: Made) -> None:
        handler: Any = call.handler
        call.take(handler.begin(call.argument) if isinstance(handler, ManagedHandler) else handler(call.argument))

    def _look(self) -> None:
        """On the loop: begins the calls that there is room for."""
        # First: a call that is appended from now on is found here, or comes with another look.
        self._is_to_look = False
        while self._for_loop and self._running < self._limit and not self._closed:
            call, context = self._for_loop.popleft()
            self._running += 1
            task = self._task.loop.loop.create_task(self._await(call), context=context)
            self._tasks.add(task)  # a loop alone does not keep its tasks alive
            task.add_done_callback(partial(self._on_done, call))

    async def _await(self, call: Made) -> None:
        handler: Any = call.handler
        call.begun = perf_counter_ns()
        try:
            result = handler.begin(call.argument)
            if inspect.isasyncgen(result):
                call.yielded = []
                async with aclosing(result):
                    async for item in result:
                        if not call.add(item):
                            break
            else:
                call.take(await result)
        except BaseException as raised:
            call.error = raised
        self._end(call)

    def _on_done(self, call: Made, task: "asyncio.Task[None]") -> None:
        """On the loop: gives the place of a call to the next one. A handler that cancels others may have cancelled the
        task before it began."""
        self._tasks.discard(task)
        self._running -= 1
        if not call.has_ended:
            call.error = asyncio.CancelledError()
            self._end(call)
        if self._for_loop:
            self._look()

    def _end(self, call: Made) -> None:
        if self._forks != forks():
            end_forked_copy(call.error)
        call.ended = perf_counter_ns()
        try:
            call.time = self._task.now()
        except BaseException as broken:  # the task can't go on, and must not wait for this call
            call.error = TaskFailure(FatalError(f"a call could not be ended ({type(broken).__name__})"))
        call.has_ended = True
        if self._awaited is call:
            self._has_ended.set()

    def _wait(self, call: Made) -> None:
        """Waits until a call has ended. Raises TransientError if the loop is gone."""
        self._awaited = call
        # Looked at after it is named: a call that has ended before that has not set the event.
        while not call.has_ended:
            if self._has_ended.wait(_PATIENCE):
                self._has_ended.clear()
            elif _is_asynchronous(call.handler) and not self._task.loop.is_alive:
                raise TransientError("the event loop of the handler has ended: a call has closed what it needs")

    def stop(self) -> None:
        """Begins no more calls, and cancels what is under way on the loop."""
        self._closed = True
        for _ in self._threads:
            self._for_threads.put(None)
        if self._tasks and self._task.loop.is_alive:
            self._task.loop.submit(lambda: [task.cancel() for task in self._tasks])


def _is_asynchronous(handler: Handler | None) -> bool:
    return isinstance(handler, ManagedHandler) and handler.is_asynchronous
