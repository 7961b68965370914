"""Outcomes of attempts and of records, and rows of the table `outcomes`: one as a value, and many as columns. Pure.

Also the timestamps of records. Kafka takes any 64-bit number as a timestamp, and means milliseconds since 1970. A
producer that writes microseconds or nanoseconds, or a time before 1970, stores a number that is no time. Such a record
is handled like any other, as a record without a timestamp.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, repeat
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ackline.ledger.offsets import Bools, Int64s, Ranges
from ackline.ledger.pending import NEVER, UNKNOWN_KEY, microseconds, time_of


class Outcome(StrEnum):
    """The values of the column `outcome` of the table `outcomes`."""

    ACKED = "acked"
    """The handler returned."""
    FAILED = "failed"
    """The attempt failed; the record may get another one."""
    SKIPPED = "skipped"
    """The handler skipped the record, it is a tombstone or unwanted, or an operator or a setting skipped it."""
    DROPPED = "dropped"
    """The attempt failed under a guarantee that never retries."""
    IN_FLIGHT = "in_flight"
    """The handler has handed the record on; the answer is not there yet."""
    HELD_BACK = "held_back"
    """The handler did not get the record: a lower one of its key, or of its partition, is not settled (`order`)."""
    DEAD = "dead"
    """No attempt is left, or the handler declared the record dead; its dead letter, if any, was acknowledged."""
    EXPIRED = "expired"
    """Retention took the record before it was read or retried."""
    COMPACTED = "compacted"
    """Compaction took the record before its retry."""
    LOST = "lost"
    """At most once: the record was handed out, and no outcome was ever stored."""

    @property
    def terminal(self) -> bool:
        """Whether the record needs nothing more. Each record gets exactly one terminal outcome in a lane and epoch."""
        return self not in (Outcome.FAILED, Outcome.IN_FLIGHT, Outcome.HELD_BACK)


class ErrorClass(StrEnum):
    """The values of `error_class` that Ackline itself writes; exceptions of a handler keep their own class names."""

    SKIP = "Skip"
    DEAD = "Dead"
    TOMBSTONE = "Tombstone"
    INVALID_OUTCOME = "InvalidOutcome"
    TIMEOUT = "Timeout"
    WORKER_LOST = "WorkerLost"
    UNDECODABLE = "Undecodable"
    UNMATCHED = "Unmatched"
    WHERE_ERROR = "WhereError"
    UNACKED = "Unacked"
    UNKNOWN_STREAM = "UnknownStream"
    BAD_OUTPUT = "BadOutput"
    FAIL = "Fail"
    ACK_TIMEOUT = "AckTimeout"
    ACK_FAILED = "AckFailed"


def is_of_class(error_class: str | None, wanted: str | None) -> bool:
    """Returns whether an error class is the wanted one: None wants any, an empty text wants records without a class."""
    return wanted is None or (error_class or "") == wanted


class AnswerKind(StrEnum):
    """The values of the column `answer`: what has ended or renewed an attempt in flight, beside its own row."""

    ACK = "ack"
    FAIL = "fail"
    RENEW = "renew"
    TIMEOUT = "timeout"
    """No answer: the deadline has passed."""


UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_TIMESTAMP = -1
"""Kafka's value for a record without a timestamp."""
LATEST_MILLISECOND = 253_402_300_799_999
"""The end of the year 9999: the last time that `datetime` holds, and that an audit table takes."""


def timestamp_of(milliseconds: int) -> datetime | None:
    """Returns a record's timestamp as a time in UTC; None if it is before 1970 or after 9999."""
    if not 0 <= milliseconds <= LATEST_MILLISECOND:
        return None
    return UNIX_EPOCH + timedelta(milliseconds=milliseconds)


_CHUNK = 10_000
_NO_END = -1
_ANSWERS = (None, *AnswerKind)


class OutcomeRow(NamedTuple):
    """A row of the table `outcomes`, as far as the ledger needs it: an attempt, or a decision of settle."""

    offset: int
    attempt: int
    """The number of the attempt, counted from 1; 0 in a decision."""
    outcome: Outcome
    handled_at: datetime
    error_class: str | None = None
    end_offset: int | None = None
    """The exclusive end, where the row stands for a whole range; None for a row of one offset."""
    reason: str | None = None
    due: datetime | None = None
    """The deadline, if the outcome is `in_flight`; None means none."""
    answer: AnswerKind | None = None
    """Why settle has ended or renewed the attempt, which was in flight; None in the row of the attempt itself."""
    letter: str | None = None
    """Of a dead record: where its dead letter is, as TOPIC[PARTITION] OFFSET; None without one."""
    key: int = UNKNOWN_KEY
    """What `ackline.ledger.order` knows of the record's key."""

    @property
    def end(self) -> int:
        """The exclusive end of the row's offsets."""
        return self.offset + 1 if self.end_offset is None else self.end_offset


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The decisions that whole ranges have one outcome, a row for each. They are made while they are iterated, and only
    columns are held: an operator may skip millions of scattered records."""

    ranges: Ranges
    outcome: Outcome
    handled_at: datetime
    reason: str | None = None

    def __len__(self) -> int:
        return len(self.ranges[0])

    def __iter__(self) -> Iterator[OutcomeRow]:
        for first in range(0, len(self), _CHUNK):
            starts, ends = (column[first : first + _CHUNK].tolist() for column in self.ranges)
            for start, end in zip(starts, ends, strict=True):
                yield OutcomeRow(start, 0, self.outcome, self.handled_at, None, end, self.reason)

    @property
    def offsets(self) -> int:
        """How many offsets the ranges hold."""
        starts, ends = self.ranges
        return int((ends - starts).sum())


class OutcomeColumns(Sequence[OutcomeRow]):
    """Outcome rows of one topic-partition as columns, without their reasons: 32 bytes a row.

    `end_offsets` has -1 for a row of one offset, `handled_at` and `dues` are in microseconds since 1970. `codes` are
    indexes of `results`, `answers` are indexes of None and the kinds of answers. `dues` and `answers` are None if no
    row has one, as in a pipeline without records in flight. `keys` has what `ackline.ledger.order` knows of the key of
    each record; None if no key is known.
    """

    __slots__ = ("answers", "attempts", "codes", "dues", "end_offsets", "handled_at", "keys", "offsets", "results")

    def __init__(
        self,
        offsets: Int64s,
        end_offsets: Int64s,
        attempts: npt.NDArray[np.int32],
        handled_at: Int64s,
        codes: npt.NDArray[np.int32],
        results: Sequence[tuple[Outcome, str | None]],
        dues: Int64s | None = None,
        answers: npt.NDArray[np.int8] | None = None,
        keys: Int64s | None = None,
    ) -> None:
        self.offsets, self.end_offsets, self.attempts = offsets, end_offsets, attempts
        self.handled_at, self.codes, self.results = handled_at, codes, tuple(results)
        self.dues, self.answers, self.keys = dues, answers, keys

    @classmethod
    def of(cls, rows: Iterable[OutcomeRow]) -> "OutcomeColumns":
        """Returns these rows as columns. Holds few rows as objects at a time: a turn may decide millions."""
        if isinstance(rows, OutcomeColumns):
            return rows
        if rows == ():  # as of most partitions of a turn that has thousands
            return _NO_ROWS
        remaining = iter(rows)
        parts = [cls._of_few(few) for few in iter(lambda: list(islice(remaining, _CHUNK)), [])]
        return cls.concat(parts) if len(parts) > 1 else parts[0] if parts else cls._of_few([])

    @classmethod
    def _of_few(cls, every: Sequence[OutcomeRow]) -> "OutcomeColumns":
        results: dict[tuple[Outcome, str | None], int] = {}
        codes = [results.setdefault((row.outcome, row.error_class), len(results)) for row in every]
        ends = [_NO_END if row.end_offset is None else row.end_offset for row in every]
        return cls(
            np.array([row.offset for row in every], dtype=np.int64),
            np.array(ends, dtype=np.int64),
            np.array([row.attempt for row in every], dtype=np.int32),
            np.array([microseconds(row.handled_at) for row in every], dtype=np.int64),
            np.array(codes, dtype=np.int32),
            list(results),
            np.array([microseconds(row.due) for row in every]) if any(row.due for row in every) else None,
            answer_codes([row.answer for row in every]),
            np.array([row.key for row in every]) if any(row.key != UNKNOWN_KEY for row in every) else None,
        )

    @classmethod
    def concat(cls, parts: Iterable[Iterable[OutcomeRow]]) -> "OutcomeColumns":
        """Returns the rows of all parts."""
        columns = [cls.of(part) for part in parts] or [cls.of(())]
        if len(columns) == 1:
            return columns[0]
        results: dict[tuple[Outcome, str | None], int] = {}
        codes = [np.zeros(0, dtype=np.int32)]
        for part in columns:
            recoded = [results.setdefault(result, len(results)) for result in part.results]
            codes.append(np.array(recoded, dtype=np.int32)[part.codes] if len(part) else codes[0])
        names = ("offsets", "end_offsets", "attempts", "handled_at")
        offsets, ends, attempts, times = (np.concatenate([getattr(part, n) for part in columns]) for n in names)
        dues: Int64s | None = None
        if any(part.dues is not None for part in columns):
            dues = np.concatenate([part.deadlines for part in columns])
        answers: npt.NDArray[np.int8] | None = None
        if any(part.answers is not None for part in columns):
            answers = np.concatenate(
                [np.zeros(len(part), dtype=np.int8) if part.answers is None else part.answers for part in columns]
            )
        keys: Int64s | None = None
        if any(part.keys is not None for part in columns):
            keys = np.concatenate([part.known_keys for part in columns])
        return cls(offsets, ends, attempts, times, np.concatenate(codes), list(results), dues, answers, keys)

    @property
    def ends(self) -> Int64s:
        """The exclusive end of each row's offsets."""
        ends: Int64s = np.where(self.end_offsets == _NO_END, self.offsets + 1, self.end_offsets)
        return ends

    @property
    def deadlines(self) -> Int64s:
        """The deadline of each row, in microseconds since 1970; NEVER without one."""
        return np.full(len(self), NEVER) if self.dues is None else self.dues

    @property
    def answered(self) -> Bools:
        """Whether each row ends or renews an attempt that was in flight."""
        return np.zeros(len(self), dtype=np.bool_) if self.answers is None else self.answers > 0

    @property
    def known_keys(self) -> Int64s:
        """What is known of the key of each record, UNKNOWN_KEY where nothing is."""
        return np.full(len(self), UNKNOWN_KEY) if self.keys is None else self.keys

    def not_after(self, time: int) -> "OutcomeColumns":
        """Returns the rows with each attempt that was handled after `time`, in microseconds since 1970, as one that was
        handled then: its deadline moves with it. Answers from outside and decisions stay as they are."""
        late = np.where((self.attempts > 0) & ~self.answered, np.maximum(self.handled_at - time, 0), 0)
        if not late.any():
            return self
        moved = self.where(np.arange(len(self)))
        moved.handled_at = self.handled_at - late
        moved.dues = None if self.dues is None else np.where(self.dues == NEVER, NEVER, self.dues - late)
        return moved

    def has(self, outcome: Outcome) -> Bools:
        """Returns whether each row has this outcome."""
        return self._has([result is outcome for result, _ in self.results])

    def with_outcome(self, outcome: Outcome) -> "OutcomeColumns":
        """Returns the rows with this outcome."""
        return self.where(self.has(outcome))

    def of_ranges(self) -> "OutcomeColumns":
        """Returns the rows that stand for a range of offsets."""
        return self.where(self.end_offsets != _NO_END)

    @property
    def terminal(self) -> Bools:
        """Whether each row settles its offsets."""
        return self._has([outcome.terminal for outcome, _ in self.results])

    def _has(self, wanted: Sequence[bool]) -> Bools:
        chosen: Bools = np.array(wanted, dtype=np.bool_)
        return chosen[self.codes] if len(self) else np.zeros(0, dtype=np.bool_)

    def where(self, rows: Bools | Int64s) -> "OutcomeColumns":
        """Returns the rows for which `rows` is true, or those with these indexes."""
        return OutcomeColumns(
            self.offsets[rows],
            self.end_offsets[rows],
            self.attempts[rows],
            self.handled_at[rows],
            self.codes[rows],
            self.results,
            None if self.dues is None else self.dues[rows],
            None if self.answers is None else self.answers[rows],
            None if self.keys is None else self.keys[rows],
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def values(self) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        """Yields each row as its numbers: offset, end, attempt, time, code, deadline, answer. The last two are NEVER
        and 0 where no row has one."""
        for first in range(0, len(self), _CHUNK):
            part = slice(first, first + _CHUNK)
            columns = (self.offsets, self.end_offsets, self.attempts, self.handled_at, self.codes)
            values = [column[part].tolist() for column in columns]
            dues = repeat(NEVER, len(values[0])) if self.dues is None else self.dues[part].tolist()
            answers = repeat(0, len(values[0])) if self.answers is None else self.answers[part].tolist()
            yield from zip(*values, dues, answers, strict=True)

    def __iter__(self) -> Iterator[OutcomeRow]:
        keys = repeat(UNKNOWN_KEY) if self.keys is None else iter(self.keys.tolist())
        for (offset, end, attempt, time, code, due, answer), key in zip(self.values(), keys, strict=False):
            outcome, error_class = self.results[code]
            handled_at = time_of(time)
            assert handled_at is not None
            yield OutcomeRow(
                offset, attempt, outcome, handled_at, error_class, None if end == _NO_END else end,
                due=time_of(due), answer=_ANSWERS[answer], key=key,
            )  # fmt: skip

    @overload
    def __getitem__(self, index: int) -> OutcomeRow: ...
    @overload
    def __getitem__(self, index: slice) -> "OutcomeColumns": ...
    def __getitem__(self, index: int | slice) -> "OutcomeRow | OutcomeColumns":
        rows = self.where(np.arange(len(self))[index if isinstance(index, slice) else slice(index, index + 1 or None)])
        if isinstance(index, slice):
            return rows
        for row in rows:
            return row
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"OutcomeColumns({len(self)} rows)"


def answer_codes(answers: Sequence[str | None]) -> npt.NDArray[np.int8] | None:
    """Returns the kinds of answers as `OutcomeColumns.answers` has them; None if no row has one."""
    if not any(answers):
        return None
    return np.array([_ANSWERS.index(AnswerKind(answer) if answer else None) for answer in answers], dtype=np.int8)


_NO_ROWS = OutcomeColumns.of([])
