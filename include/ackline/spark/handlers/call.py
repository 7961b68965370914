"""Running a handler on rows: each row gets exactly one outcome, whatever the handler does.

One function a tier, with the same semantics (design.md, "A handler"). A handler may raise anything, `sys.exit`
included, or answer rubbish: that is the outcome of its record, or batch, and of no other.
"""

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.errors import AcklineError
from ackline.handler import Dead, Handler, Skip, Tier
from ackline.outcome import ErrorClass, Outcome
from ackline.scrub import scrub
from ackline.spark.records import Int64s, Records

Clock = Callable[[], int]
"""Microseconds since 1970, rounded up to a millisecond: an outcome is never stamped before it was there."""

# The words of a handler's answer. "dead" is stored as a failure that settle does not retry.
WORDS = pa.array(["acked", "failed", "skipped", "dead"])
_ANSWERED = ("outcome", "error_class", "error_message")
_RESERVED = frozenset(word.value for word in ErrorClass)
_CLASS_LIMIT = 120
# Acked records share the time of their small group; reading the clock for each would cost a tenth of the whole.
_GROUP = 64

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


@dataclass(frozen=True, slots=True)
class Unacked:
    """What became of a row that was not acked; `row` is its place in its `Records`."""

    row: int
    outcome: Outcome
    error_class: str | None
    error_message: str | None
    handled_at: int


@dataclass(slots=True)
class Answers:
    """The outcomes of all rows: those named in `unacked`, in the order of the rows; every other row is acked.

    `handled_at` holds a time for each row, in microseconds since 1970.
    """

    handled_at: Int64s
    unacked: list[Unacked] = field(default_factory=list)
    calls: int = 0


class Watch(Protocol):
    """Who must know of each call before it is made, and of each failure as soon as it is known, should the handler not
    come back (`ackline.spark.isolation.isolated`)."""

    def over(self, handler: Handler, tier: Tier) -> Handler:
        """The handler, each call of it noted before it is made."""

    def waiting(self) -> AbstractContextManager[None]:
        """Around what a call waits for through no fault of its own: that is not counted against it."""

    def told(self, offset: int, one: Unacked) -> None:
        """What became of the record at `offset`, which was not acked."""


class Routed(ABC):
    """Answers whole `Records` where there are several handlers: the streams of `ackline.spark.handlers.streams`."""

    @abstractmethod
    def answer(self, rows: Records, now: Clock, watch: Watch | None = None) -> Answers:
        """What becomes of each row."""


def answer(
    handler: Handler | Routed,
    tier: Tier,
    rows: Records,
    now: Clock,
    deliver_tombstones: bool,
    watch: Watch | None = None,
) -> Answers:
    """What the handler makes of `rows`. Tombstones it does not want are skipped without it.

    Raises an AcklineError only for what keeps a record from being handled through no fault of its own.
    """
    answer_rows: Callable[[Records, Clock], Answers]
    if isinstance(handler, Routed):
        answer_rows = partial(handler.answer, watch=watch)
    elif tier is Tier.RECORD:
        answer_rows = partial(answer_records, _noted(handler, tier, watch), watch=watch)
    else:
        answer_rows = partial(answer_batch, _noted(handler, tier, watch))
    if deliver_tombstones or not rows.values.null_count:
        return answer_rows(rows, now)
    delivered = rows.values.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(delivered)
    asked = answer_rows(rows.where(delivered), now) if len(places) else Answers(np.empty(0, np.int64))
    at = now()
    handled_at = np.full(len(rows), at, dtype=np.int64)
    handled_at[places] = asked.handled_at
    unacked = [_moved(one, int(places[one.row])) for one in asked.unacked]
    unacked += [tombstone(int(row), at) for row in np.flatnonzero(~delivered)]
    return Answers(handled_at, sorted(unacked, key=lambda one: one.row), asked.calls)


def tombstone(row: int, at: int) -> Unacked:
    """A record without a value that the handler did not see."""
    return Unacked(row, Outcome.SKIPPED, ErrorClass.TOMBSTONE, None, at)


def _moved(one: Unacked, row: int) -> Unacked:
    return Unacked(row, one.outcome, one.error_class, one.error_message, one.handled_at)


def _noted(handler: Handler, tier: Tier, watch: Watch | None) -> Handler:
    return handler if watch is None else watch.over(handler, tier)


def answer_records(
    handler: Handler,
    rows: Records,
    now: Clock,
    payload: Callable[[int], Iterable[bytes | str | None]] | None = None,
    watch: Watch | None = None,
) -> Answers:
    """The record tier: one call a record.

    `payload` says what of a row must not show in an error message, where the handler sees more than its bytes.
    """
    count = len(rows)
    records = rows.records()
    forks = _forks
    unacked: list[Unacked] = []
    times: list[int] = []
    for _ in range(0, count, _GROUP):
        for record in islice(records, _GROUP):
            try:
                result = handler(record)
                if _forks != forks:
                    _end_copy()
                if result is not None:
                    refuse_unfinished(result)
            except Unanswerable as stop:
                raise stop.error from None
            except BaseException as error:  # sys.exit too is the outcome of this record alone
                if _forks != forks:
                    _end_copy(error)
                row = int(np.searchsorted(rows.offsets, record.offset))
                unacked.append(raised(error, row, rows, now(), payload))
                if watch is not None:
                    watch.told(record.offset, unacked[-1])
        times.append(now())
    handled_at = np.repeat(np.array(times, dtype=np.int64), _GROUP)[:count]
    return Answers(handled_at, unacked, count)


def _end_copy(error: BaseException | None = None) -> None:
    """End this process, which the handler has forked, and which came back into our code: were it to go on, every
    record that is left would be handled twice."""
    code = error.code if isinstance(error, SystemExit) else error
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def refuse_unfinished(result: Any) -> None:
    """Raise for an answer that stands for work not done yet, or for an exception that was not raised: acking it would
    ack a record that was not handled."""
    if isinstance(result, BaseException) or (isinstance(result, type) and issubclass(result, BaseException)):
        raise InvalidOutcome("the handler returned an exception: raise it")
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result) or isinstance(result, Future)):
        return
    raise InvalidOutcome("the handler returned a coroutine, future or generator: its work was not done")


class InvalidOutcome(Exception):
    """An answer that is none; stored as ErrorClass.INVALID_OUTCOME."""


class Undecoded(Exception):
    """Key or value is not what it should be decoded as; stored as ErrorClass.UNDECODABLE with this text, as it is."""


class Unmatched(Exception):
    """No stream and no filter wants the record; stored as ErrorClass.UNMATCHED."""


class Unanswerable(BaseException):
    """`error` keeps a record from being handled through no fault of its own: the task ends with it."""

    def __init__(self, error: AcklineError) -> None:
        super().__init__(str(error))
        self.error = error


def raised(
    error: BaseException,
    row: int,
    rows: Records,
    at: int,
    payload: Callable[[int], Iterable[bytes | str | None]] | None = None,
) -> Unacked:
    """The outcome of a row whose handling raised `error`."""
    kind = type(error)  # what an exception of the handler's says of its own class may raise in turn
    if issubclass(kind, Unmatched):
        return Unacked(row, Outcome.SKIPPED, ErrorClass.UNMATCHED, None, at)
    if issubclass(kind, Undecoded):
        return Unacked(row, Outcome.FAILED, ErrorClass.UNDECODABLE, scrub(str(error), ()), at)
    text = _message(error, (payload or rows.payload)(row))
    if issubclass(kind, Skip):
        return Unacked(row, Outcome.SKIPPED, ErrorClass.SKIP, text, at)
    name = ErrorClass.DEAD.value if issubclass(kind, Dead) else class_of(error)
    return Unacked(row, Outcome.FAILED, name, text, at)


def class_of(error: BaseException) -> str:
    """The name of an exception's type, with its module where it could be taken for a word of ours."""
    kind = type(error)
    if issubclass(kind, InvalidOutcome):
        return ErrorClass.INVALID_OUTCOME
    try:
        return plain_class(kind.__name__, kind.__module__)
    except BaseException:  # a broken metaclass, likewise
        return plain_class("", "")


def plain_class(name: str, module: str) -> str:
    """`name` as a value of `error_class` that means nothing to Ackline."""
    full = f"{module}.{name}" if name in _RESERVED else name
    return "".join(c for c in full if c.isalnum() or c in "._")[:_CLASS_LIMIT] or "Exception"


def _message(error: BaseException, payload: Iterable[bytes | str | None]) -> str | None:
    try:
        text = str.__str__(str(error))  # which may have answered with a string of a class of its own
    except BaseException:  # a broken __str__ is the error of its own record
        return None
    return scrub(text, payload) or None


def answer_batch(handler: Handler, rows: Records, now: Clock) -> Answers:
    """The Arrow tier: one call a batch; what it can't say properly, it failed to handle."""
    forks = _forks
    try:
        answered = handler(rows.to_arrow())
        if _forks != forks:
            _end_copy()
        refuse_unfinished(answered)
        outcomes, classes, messages = _read_answer(answered, rows)
    except BaseException as error:  # sys.exit too is the outcome of this batch alone
        if _forks != forks:
            _end_copy(error)
        at = now()
        text = _message(error, (part for row in range(len(rows)) for part in rows.payload(row)))
        failed = [Unacked(row, Outcome.FAILED, _batch_class(error), text, at) for row in range(len(rows))]
        return Answers(np.full(len(rows), at, np.int64), failed, len(rows))
    at = now()
    module = str(getattr(handler, "__module__", "handler"))
    others = np.flatnonzero(pc.not_equal(outcomes, "acked").to_numpy(zero_copy_only=False))
    unacked = [
        spoken(row, outcomes[row].as_py(), _text(classes, row), _text(messages, row), rows, at, module)
        for row in others.tolist()
    ]
    return Answers(np.full(len(rows), at, np.int64), unacked, len(rows))


def spoken(
    row: int, word: str, error_class: str | None, message: str | None, rows: Records | None, at: int, module: str
) -> Unacked:
    """The outcome of a row for which a handler said "failed", "skipped" or "dead"."""
    text = scrub(message, rows.payload(row)) or None if message and rows is not None else None
    if word == "skipped":
        return Unacked(row, Outcome.SKIPPED, ErrorClass.SKIP, text, at)
    if word == "dead":
        return Unacked(row, Outcome.FAILED, ErrorClass.DEAD, text, at)
    named = plain_class(scrub(error_class, rows.payload(row)), module) if error_class and rows is not None else None
    return Unacked(row, Outcome.FAILED, named, text, at)


def _text(column: pa.Array | None, row: int) -> str | None:
    return None if column is None else column[row].as_py()


def _batch_class(error: BaseException) -> str:
    # `Dead` of a whole batch would bury neighbours: they failed, and are tried again.
    kind = type(error)
    return f"{kind.__module__}.{kind.__name__}" if issubclass(kind, Dead | Skip) else class_of(error)


def _read_answer(answered: Any, rows: Records) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Outcome, error class and error message columns. Raises for an answer that is not one outcome a row."""
    classes: pa.Array | None = None
    messages: pa.Array | None = None
    if isinstance(answered, pa.Table | pa.RecordBatch):
        # Of other columns, such as those of the batch itself, nothing is asked.
        named = {name: _strings(answered.column(name)) for name in answered.schema.names if name in _ANSWERED}
        if "offset" in answered.schema.names and answered.column("offset").to_pylist() != rows.offsets.tolist():
            raise InvalidOutcome("the answer is about other offsets than it was given")
        if "outcome" not in named:
            raise InvalidOutcome("the answer has no column `outcome`")
        outcomes, classes, messages = named["outcome"], named.get("error_class"), named.get("error_message")
    else:
        outcomes = _strings(answered)
    if len(outcomes) != len(rows):
        raise InvalidOutcome(f"{len(outcomes)} outcomes for {len(rows)} records")
    if outcomes.null_count or not pc.all(pc.is_in(outcomes, WORDS)).as_py():
        raise InvalidOutcome("an outcome is not one of acked, failed, skipped, dead")
    return outcomes, classes, messages


def _strings(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        return column.cast(pa.string())
    if isinstance(column, str | bytes | dict) or not isinstance(column, Sequence | np.ndarray):
        raise InvalidOutcome(f"the answer is a {type(column).__name__}, not a sequence of outcomes")
    try:
        return pa.array([str(word) if isinstance(word, str) else word for word in column], pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidOutcome("an outcome is not one of acked, failed, skipped, dead") from error
