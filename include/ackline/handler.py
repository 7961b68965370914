"""What the user's code imports: `Record`, a handler's outcomes and tuples, and the decorators that declare its tier.

A handler belongs to one of three tiers with the same semantics:

- record: a function of one `Record`, without a decorator. Return, and the record is acked. Raise any exception, and the
  attempt failed; `Skip` and `Dead` settle the record at once.
- Arrow: a function of a `pyarrow.RecordBatch` that returns an outcome for each row (`arrow_handler`). With steps, it
  yields batches of what it emits.
- column: a function of a Spark DataFrame that returns a column of outcomes; records stay in the JVM (`column_handler`).

In a pipeline with steps, a record is the root of a tree. Its handler is the first step, named `source`. What a step
yields goes to the steps that take that stream as their input, and each of these tuples is acked or failed in turn. A
record is acked once its whole tree is. Storm's words are the same: anchoring, ack, fail.

Nothing here needs Spark. `ackline.worker.call` calls the handlers, `ackline.pipeline.topology` holds the steps.
"""

import contextlib
import functools
import importlib
import inspect
import linecache
import operator
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ackline.calling import TIER, ManagedHandler, Yielded, is_asynchronous
from ackline.errors import ConfigError, did_you_mean
from ackline.scrub import is_library, scrub

SignToken = Callable[[str, int, int, int], str]
"""Returns the token of topic, partition, offset and attempt."""

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record, as a record handler or a filter gets it. It can't be changed.

    `key` and `value` are what `decode` of the pipeline file makes of the bytes, by default the bytes themselves. A null
    key is None. A null value, a tombstone, is None too; only `tombstones: deliver` gives one to the handler.
    `timestamp` is aware and in UTC; None if Kafka has none.
    `headers` are pairs of name and value, in the order of the log; a name may appear more than once.
    `attempt` is 1 for the first attempt. Under `at_least_once` a handler may get the same attempt twice, because a
    killed run is repeated: topic, partition and offset identify the record.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    attempt: int

    @property
    def token(self) -> str:
        """The token of this attempt, with which an answer from outside settles the record after `InFlight`.

        It is made when it is read. A repeated replay of the same turn makes the same one; a retry has another one.
        Raises RuntimeError outside a run, and if the pipeline file has no `ack_topic`.
        """
        if _token_signer is None:
            raise RuntimeError("record.token needs `ack_topic` in the pipeline file, and exists only during a run")
        return _token_signer(self.topic, self.partition, self.offset, self.attempt)


_token_signer: SignToken | None = None
"""Makes the tokens of the turn that this process handles. It is of the process, and not of each record: a handler may
read a token in a thread of its own, and a record without a token costs nothing. A Python worker of Spark has one task
at a time."""


def sign_tokens_with(signer: SignToken | None) -> None:
    """Sets what makes the tokens of all records of this process from now on; None makes none."""
    global _token_signer
    _token_signer = signer


class Skip(Exception):
    """A record handler or filter raises it to settle the record as `skipped`: handled, and never read again.

    Ackline stores the text as the reason, and masks in it what it shares with the record::

        raise Skip("a test order")
    """


class Dead(Exception):
    """A record handler or filter raises it if no retry can help: the record goes to the dead-letter topic at once.

    Under a guarantee that never retries, the record is `dropped`, as after any other exception. Ackline stores the text
    as the reason, and masks in it what it shares with the record::

        raise Dead("unknown currency")
    """


class Tier(StrEnum):
    """The form in which a handler takes its records."""

    RECORD = "record"
    ARROW = "arrow"
    COLUMN = "column"


def arrow_handler(function: H) -> H:
    """Declares a handler of the Arrow tier: a function of a `pyarrow.RecordBatch`.

    The columns of the batch are topic, partition, offset, timestamp, key, value, headers and attempt. The function
    returns one of "acked", "failed", "skipped" and "dead" for each row, in order: as a list, as an Arrow array, or as a
    table with the column `outcome` and optionally `offset`, `error_class` and `error_message`::

        @arrow_handler
        def handle(batch: pyarrow.RecordBatch) -> list[str]:
            return ["acked" if value else "failed" for value in batch.column("value").to_pylist()]

    Every record of the batch fails if the answer has another length, a null, another word or other offsets, and if the
    function raises, even `Skip` or `Dead`.

    In a pipeline with steps or outputs, the function takes a batch of records, or as the handler of a step a batch of
    tuples: a column for each field of their values (`value` for what is no mapping), `key`, and `_tuple`, the number of
    the row. It returns or yields record batches, each row of which is emitted: its fields as the value, and optionally
    `key` and `stream`. `_input` holds the number of the row that a row came from, or in a join a list of numbers; left
    out, row N came from row N. With the column `outcome`, a row that is not "acked" says the outcome of the rows that
    it came from, and is not emitted; a batch without fields says outcomes only::

        @arrow_handler
        def price(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
            total = pyarrow.compute.multiply(batch["price"], batch["count"])
            return batch.append_column("total", total)

    Every tuple of the batch fails if the function raises, and if an answer is invalid (`InvalidOutcome`).
    """
    setattr(function, TIER, Tier.ARROW)
    return function


def column_handler(function: H) -> H:
    """Declares a handler of the column tier: a function of the Spark DataFrame of records.

    The function returns a string column with the outcome of each row: "acked", "failed", "skipped" or "dead". A null or
    another word fails its row. Ackline calls the function before it reads a record. The column is an expression, which
    Spark evaluates in the JVM; a window, an aggregate or a generator is a ConfigError, because it changes the rows::

        @column_handler
        def handle(records: DataFrame) -> Column:
            return when(length("value") > 0, "acked").otherwise("failed")
    """
    setattr(function, TIER, Tier.COLUMN)
    return function


def tier_of(handler: Handler) -> Tier:
    """Returns the tier that a decorator declared; `Tier.RECORD` without a decorator."""
    return Tier(getattr(handler, TIER, Tier.RECORD))


def imported(path: str) -> Any:
    """Returns what `module:name` names, imported. Raises whatever the module raises, and AttributeError.

    What the module prints goes to standard error: standard output may be the JSON of a command.
    """
    module, _, name = path.partition(":")
    with contextlib.redirect_stdout(sys.stderr):
        return operator.attrgetter(name)(importlib.import_module(module))


def imported_for(key: str, path: str) -> Any:
    """Returns what a pipeline file names at `key` as `module:name`, imported. Raises ConfigError if it can't be."""
    try:
        return imported(path)
    except (Exception, SystemExit) as error:  # a script that calls sys.exit when it is imported, even with status 0
        raise ConfigError(f"{key} {path} does not import: {import_problem(path, error)}", key=key) from error


def import_problem(path: str, error: BaseException) -> str:
    """Returns why `module:name` does not import: the error, the line of the user's code that it comes from, and the
    nearest name to one that does not exist."""
    text = f"{type(error).__name__}: {error}"
    if place := _place_of(error):
        return f"{text} ({place})"
    module, _, name = path.partition(":")
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        parent, _, missing = str(error.name).rpartition(".")
        return text + did_you_mean(missing, _modules_in(parent))
    if isinstance(error, AttributeError) and module in sys.modules:
        names = [known for known, value in vars(sys.modules[module]).items() if callable(value)]
        return text + did_you_mean(name, names)
    return text


def _place_of(error: BaseException) -> str:
    """Returns file, line and text of the line where an import has failed; empty if no line of the user's code did."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _line_text(error.filename, error.lineno)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return _line_text(frames[-1].filename, frames[-1].lineno or 1) if frames else ""


def _line_text(file: str, number: int) -> str:
    # A line may hold a password in clear.
    return f"{file}:{number}: {scrub(linecache.getline(file, number), ())}"


def _modules_in(package: str) -> Iterator[str]:
    """Yields the names of the modules and packages in a package that is imported; of those at the top without one."""
    folders = sys.path if not package else getattr(sys.modules.get(package), "__path__", ())
    for folder in map(Path, folders):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_dir() or entry.suffix == ".py":
                yield entry.stem


def load_handler(
    path: str, key: str = "handler", *, emits: bool = False, in_flight: bool = False, is_filter: bool = False
) -> Handler:
    """Imports what the pipeline file names at `key` as `module:name`: a handler or, with `is_filter`, a filter.

    A handler may be a function, a coroutine function, or a class whose objects take one argument. Raises ConfigError if
    it does not import, is not callable, or does not take exactly one argument; for a filter that is a class or
    asynchronous; and, unless the function `emits` to steps or may hand records on (`in_flight`), for a generator. A
    call of those runs nothing of their body, and would ack each record unhandled.
    """
    function: object = imported_for(key, path)
    if not callable(function):
        raise ConfigError(f"{key} {path} is not a function ({type(function).__name__}); name a function", key=key)
    is_class = inspect.isclass(function)
    call: Any = function.__call__ if is_class else function
    if is_class and (is_filter or "__call__" not in dir(function)):
        advice = "name a function" if is_filter else "give it the method `__call__(self, record)`, or name a function"
        raise ConfigError(f"{key} {path} is a class: a call would create an object; {advice}", key=key)
    managed = is_class or is_asynchronous(function)
    if is_filter and managed:
        raise ConfigError(f"{key} {path} is asynchronous; write a plain function", key=key)
    method = getattr(call, "__call__", None)  # noqa: B004 - an object may have one that is a generator
    is_generator = any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (call, method))
    if is_generator and not (emits or in_flight):
        raise ConfigError(
            f"{key} {path} is a generator, and no `steps` take what it yields; write a plain function", key=key
        )
    try:
        inspect.signature(call).bind(*[object()] * (2 if is_class else 1))
        if is_class:
            inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(f"{key} {path} does not take exactly one argument: {error}", key=key) from error
    except ValueError:
        pass  # a builtin has no signature: its first call shows whether it fits
    if managed and Tier.COLUMN in (getattr(function, TIER, None), getattr(call, TIER, None)):
        raise ConfigError(f"{key} {path} is a column handler; write a plain function, which Spark calls once", key=key)
    if managed:
        return ManagedHandler(function, path, emits)
    # Steps take what a generator yields as it yields it; without steps, one InFlight is all that it may yield.
    return _run_to_end(function) if is_generator and not emits else function


def _run_to_end(generator: Handler) -> Handler:
    """Returns a function that runs the generator to its end, so that a call does the whole work of its record."""

    @functools.wraps(generator)  # with the tier that a decorator has declared
    def call(record: Record) -> Yielded:
        return Yielded(generator(record))

    return call


SOURCE = "source"
"""The name of the first step: the handler of the pipeline file."""
DEFAULT_STREAM = "default"
"""The stream of what is emitted without naming one."""


class Origin(NamedTuple):
    """The record that a tuple comes from."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Tuple:
    """One tuple, as the handler of a step gets it. It can't be changed, and is equal only to itself.

    `value` and `key` are what was emitted. `stream` is the stream and `step` the step that it was emitted by. `origins`
    are the records that it is anchored to, directly or through other tuples, in the order of topic, partition and
    offset; none for a tuple that is not tracked.
    """

    value: Any
    key: Any
    stream: str
    step: str
    origins: tuple[Origin, ...]


class _MutableTuple:
    """A `Tuple` before its class is set."""

    __slots__ = Tuple.__slots__

    def __init__(self, value: Any, key: Any, stream: str, step: str, origins: tuple[Origin, ...]) -> None:
        self.value = value
        self.key = key
        self.stream = stream
        self.step = step
        self.origins = origins


def new_tuple(value: Any, key: Any, stream: str, step: str, origins: tuple[Origin, ...]) -> Tuple:
    """Returns a tuple. The constructor of a frozen dataclass takes three times as long."""
    made: Any = _MutableTuple(value, key, stream, step, origins)
    made.__class__ = Tuple
    return made  # type: ignore[no-any-return]


# Not frozen, because a handler makes one for each tuple, and a frozen object takes three times as long. It is read when
# it is yielded, so a later change has no effect.
@dataclass(slots=True, eq=False)
class Emit:
    """Yielded by a step: a new tuple.

    `value` and `key` hold what JSON holds, bytes, datetime and Decimal. `anchors` are those inputs of the call that the
    new tuple belongs to: a record is acked only after each tuple that is anchored to it. Left out, they are all inputs
    of the call. With `()` no record waits for the tuple::

        yield Emit(item, stream="items", key=item["product"])
    """

    value: Any
    stream: str = DEFAULT_STREAM
    key: Any = None
    anchors: Iterable[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fail:
    """Yielded by a join: this input failed, and with it each record that it comes from. The others are not affected."""

    tuple: Tuple
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Yielded by a join: this input is not acked. Its records fail as `Unacked`, so they are tried again."""

    tuple: Tuple


@dataclass(frozen=True, slots=True)
class InFlight:
    """Returned or yielded by the handler of the pipeline, once for a record: an answer from outside settles the record.

    The record holds the floor until an answer with its token acks or fails it, and its own tree is complete.
    Without an answer within `timeout` it fails as `AckTimeout`. It is a timedelta, or a text as in the pipeline file,
    such as `30s` or `1h30m`; None means the timeout of the pipeline file.
    """

    timeout: timedelta | str | None = None


@dataclass(slots=True)
class Durations:
    """How many measured spans there were, with their sum and the longest one, both in nanoseconds."""

    count: int = 0
    total: int = 0
    longest: int = 0

    def measure(self, nanoseconds: int) -> None:
        """Adds one span."""
        self.count += 1
        self.total += nanoseconds
        if nanoseconds > self.longest:
            self.longest = nanoseconds

    def add(self, other: "Durations") -> None:
        """Adds the spans that another task has measured."""
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)


@dataclass(slots=True)
class StepCounts:
    """What the handler of a step did, in one task or in all of them.

    Of `source`, `acked` and `failed` count records, whose trees are complete or failed; in one task they are 0.
    """

    executed: int = 0
    """Tuples that it was given."""
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    execute: Durations = field(default_factory=Durations)
    """The calls of the handler. A call of a join takes all tuples of a key, so it may have fewer calls than tuples."""

    def numbers(self) -> dict[str, int]:
        """Returns the counts by name."""
        return {"executed": self.executed, "emitted": self.emitted, "acked": self.acked, "failed": self.failed}

    def add(self, other: "StepCounts") -> None:
        """Adds what another task did."""
        self.executed += other.executed
        self.emitted += other.emitted
        self.acked += other.acked
        self.failed += other.failed
        self.execute.add(other.execute)
