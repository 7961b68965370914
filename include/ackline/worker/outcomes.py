"""The outcomes of records: how an exception that a handler raised, or a word that it returned, becomes one."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import time_ns
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ackline.handler import Dead, Skip
from ackline.ledger.offsets import Bools
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import microseconds_up
from ackline.scrub import place_of_error, scrub, words_of_error
from ackline.worker.records import Int64s, Records

Clock = Callable[[], int]
"""Returns microseconds since 1970, rounded up to a millisecond, so that no outcome is stamped before it exists."""

PayloadOf = Callable[[int], Iterable[bytes | str | None]]
"""Returns what an error message must not repeat of the record in a row."""

# An Arrow handler or a column handler answers with these. "dead" is stored as a failure that settle does not retry.
OUTCOME_WORDS = pa.array(["acked", "failed", "skipped", "dead"])
INVALID_WORD = "an outcome is null, or not one of acked, failed, skipped, dead"
_RESERVED = frozenset(reserved.value for reserved in ErrorClass)
_CLASS_LIMIT = 120
NOT_CALLED = (ErrorClass.UNDECODABLE, ErrorClass.UNMATCHED, ErrorClass.WHERE_ERROR)
"""Error classes of records that no handler was called for."""

WHERE_FAILED = (
    "--where can't be evaluated: a cast fails on a value of the record, or the record is no JSON. Write TRY_CAST, or "
    "choose the records by another field"
)
"""The message of each record that fails as WhereError. DuckDB's own message would quote the value."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The outcome of a row that was not acked. `row` is the index of the row in its `Records`."""

    row: int
    outcome: Outcome
    error_class: str | None
    error_message: str | None
    handled_at: int
    due: int | None = None
    """The deadline of a record in flight, in microseconds since 1970; None without one, and of other outcomes."""
    tree: str | None = None
    """What became of the record's tuples, as `ackline.ledger.explain` encodes it; None without steps."""
    error_place: str | None = None
    """The line of the handler's code that failed, as `place_of_error` names it; None if no line did."""

    def at_row(self, row: int) -> "RowOutcome":
        """Returns this outcome for another row index."""
        return replace(self, row=row)


@dataclass(slots=True)
class Outcomes:
    """One outcome for each row. `not_acked` holds those that are not acked, sorted by row; every other row is acked.
    `handled_at` holds a time for each row, in microseconds since 1970. `calls` counts the records that the handler got.
    `trees` holds the story of each acked row, as `ackline.ledger.explain` encodes it; None if no row has one."""

    handled_at: Int64s
    not_acked: list[RowOutcome] = field(default_factory=list)
    calls: int = 0
    trees: pa.DictionaryArray | None = None

    def filter(self, wanted: Bools) -> "Outcomes":
        """Returns the outcomes of the rows for which `wanted` is true, as `Records.filter` does. Keeps `calls`."""
        row_after = np.cumsum(wanted) - 1
        not_acked = [each.at_row(int(row_after[each.row])) for each in self.not_acked if wanted[each.row]]
        trees = None if self.trees is None else self.trees.filter(pa.array(wanted))
        return Outcomes(self.handled_at[wanted], not_acked, self.calls, trees)

    def among(self, count: int, rows: Int64s, others: list[RowOutcome], time: int) -> "Outcomes":
        """Returns the outcomes of `count` rows: these are of some `rows`, or of the first of them, and `others`, at
        `time`, are of the rest. If some of `rows` have none, the outcomes end before the first of those."""
        called = len(self.handled_at)
        if called < len(rows):
            count, rows = int(rows[called]), rows[:called]
        rest = [each for each in others if each.row < count]
        whole = Outcomes(np.full(count, time, dtype=np.int64), rest, self.calls)
        whole.insert([(rows, self)])
        return whole

    def insert(self, parts: "Iterable[tuple[Int64s, Outcomes]]") -> None:
        """Sets the outcomes of some rows, given as parts with the indexes of their rows. Keeps `calls`."""
        for rows, part in parts:
            self.handled_at[rows] = part.handled_at
            self.not_acked += [each.at_row(int(rows[each.row])) for each in part.not_acked]
        self.not_acked.sort(key=lambda each: each.row)


class InvalidOutcome(Exception):
    """A handler or a filter returned something that is not an outcome; stored as ErrorClass.INVALID_OUTCOME."""


class DecodingFailed(Exception):
    """A key or value does not decode. Stored as ErrorClass.UNDECODABLE with this text, which quotes no payload."""


class Unmatched(Exception):
    """No stream takes the record, or a backfill's `--where` does not; stored as ErrorClass.UNMATCHED."""


class WhereFailed(Exception):
    """A backfill's `--where` can't be evaluated for the record; stored as ErrorClass.WHERE_ERROR."""


class HeldBack(Exception):
    """A lower offset of the record's key, or of its partition, is not settled: no handler gets the record. Stored as
    Outcome.HELD_BACK with this text."""


class Witness(Protocol):
    """Sees what the calls of handlers raise and emit, of which outcomes hold less. Only `ackline try` and the tests of
    users have one: its content never leaves the process."""

    def raised(self, error: BaseException) -> None:
        """Takes an exception that becomes an outcome."""

    def emitted(self, step: str, stream: str, value: Any) -> None:
        """Takes what a step has emitted to a stream that a step or an output takes."""


_witness: Witness | None = None
# Global, as the settings of handlers in flight are, because a process works on one task at a time.


@contextmanager
def watched_by(witness: Witness) -> Iterator[None]:
    """Shows the witness what is raised and emitted within the block, by tasks that begin in it."""
    global _witness
    before, _witness = _witness, witness
    try:
        yield
    finally:
        _witness = before


def present_witness() -> Witness | None:
    """Returns the witness of this process; None in each task of a run."""
    return _witness


def outcome_clock(now: datetime | None, not_before: datetime | None = None) -> Clock:
    """Returns the clock of outcomes: the executor's, or one that stands still at `now`. The executor's may be behind
    that of the driver, and then counts as `not_before`: an attempt before its due time, or a deadline that has passed
    before the handler was called, would be wrong."""
    if now is None:
        first = 0 if not_before is None else microseconds_up(not_before)
        return lambda: max(-(-time_ns() // 1_000_000) * 1000, first)
    fixed = microseconds_up(now)
    return lambda: fixed


def tombstone_outcome(row: int, handled_at: int) -> RowOutcome:
    """Returns the outcome of a record without a value that no handler was given."""
    return RowOutcome(row, Outcome.SKIPPED, ErrorClass.TOMBSTONE, None, handled_at)


def held_back_outcome(row: int, text: str, handled_at: int) -> RowOutcome:
    """Returns the outcome of a record that no handler was given, because it waits for another one."""
    return RowOutcome(row, Outcome.HELD_BACK, None, text, handled_at)


def outcome_of_exception(
    error: BaseException, row: int, records: Records | None, handled_at: int, payload_of: PayloadOf | None = None
) -> RowOutcome:
    """Returns the outcome of a row whose handling raised `error`; `payload_of` defaults to the raw bytes of the row of
    `records`."""
    kind = type(error)  # not error.__class__ or isinstance: a handler's exception may raise there in turn
    if issubclass(kind, Unmatched):
        return RowOutcome(row, Outcome.SKIPPED, ErrorClass.UNMATCHED, None, handled_at)
    if issubclass(kind, HeldBack):
        return held_back_outcome(row, str(error), handled_at)
    if issubclass(kind, DecodingFailed):
        return RowOutcome(row, Outcome.FAILED, ErrorClass.UNDECODABLE, scrub(str(error), ()), handled_at)
    if issubclass(kind, WhereFailed):
        return RowOutcome(row, Outcome.FAILED, ErrorClass.WHERE_ERROR, WHERE_FAILED, handled_at)
    if payload_of is None:
        assert records is not None
        payload_of = records.payload_of
    message = scrubbed_message(error, payload_of(row))
    if issubclass(kind, Skip):
        return RowOutcome(row, Outcome.SKIPPED, ErrorClass.SKIP, message, handled_at)
    error_class = ErrorClass.DEAD.value if issubclass(kind, Dead) else error_class_of(error)
    return RowOutcome(row, Outcome.FAILED, error_class, message, handled_at, error_place=place_of_error(error))


def outcome_of_word(
    row: int,
    word: str,
    error_class: str | None,
    message: str | None,
    payload_of: PayloadOf | None,
    handled_at: int,
    module: str,
    kept: Collection[str] = (),
) -> RowOutcome:
    """Returns the outcome of a row for which a handler of `module` returned "failed", "skipped" or "dead". What
    `payload_of` returns for the row is removed from `error_class` and `message`, but for the words `kept` of the
    handler's source. Both are left out where `payload_of` is None."""
    text = scrub(message, payload_of(row), kept) or None if message and payload_of is not None else None
    if word == "skipped":
        return RowOutcome(row, Outcome.SKIPPED, ErrorClass.SKIP, text, handled_at)
    if word == "dead":
        return RowOutcome(row, Outcome.FAILED, ErrorClass.DEAD, text, handled_at)
    name = None
    if error_class and payload_of is not None:
        name = _storable_class(scrub(error_class, payload_of(row), kept), module)
    return RowOutcome(row, Outcome.FAILED, name, text, handled_at)


def error_class_of(error: BaseException) -> str:
    """Returns the name of an exception's type; with its module if Ackline gives the bare name a meaning."""
    kind = type(error)
    if issubclass(kind, InvalidOutcome):
        return ErrorClass.INVALID_OUTCOME
    try:
        return _storable_class(kind.__name__, kind.__module__)
    except BaseException:  # a broken metaclass must not fail the neighbours of this record
        return _storable_class("", "")


def _storable_class(name: str, module: str) -> str:
    full = f"{module}.{name}" if name in _RESERVED else name
    return "".join(c for c in full if c.isalnum() or c in "._")[:_CLASS_LIMIT] or "Exception"


def scrubbed_message(error: BaseException, payload: Iterable[bytes | str | None]) -> str | None:
    """Returns the text of an exception without what it shares with `payload`; None if it has none. Each exception of a
    handler that becomes an outcome passes here, so the witness sees it."""
    if _witness is not None:
        _witness.raised(error)
    try:
        text = str.__str__(str(error))  # str(error) may be of a subclass of str, with methods that raise
        kept = words_of_error(error)
    except BaseException:  # a broken __str__ must not fail the neighbours of this record
        return None
    return scrub(text, payload, kept) or None
