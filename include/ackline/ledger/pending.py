"""What is pending in a partition: runs of neighbouring offsets in the same state, as columns. Pure.

A turn may leave millions of offsets pending, each with a due time of its own. A run takes 28 bytes here, and ten times
as much as objects. `PendingRuns` is a sequence of `ValuedRange[Pending]` for all that reads a few of them, and has
columns for all that reads every one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ackline.ledger.offsets import Bools, Int64s, Ranges, Runs, ValuedRange, arrays_of, intersect, subtract

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
LATEST_TIME = datetime.max.replace(tzinfo=UTC) - timedelta(seconds=1)
"""The latest due time and deadline: a second before the end of the calendar. Statistics of files round times up."""
LATEST = (LATEST_TIME - _EPOCH) // MICROSECOND
"""The latest due time and deadline, in microseconds since 1970."""
NEVER = int(np.iinfo(np.int64).max)
"""The due time of what has no next attempt."""
UNKNOWN_KEY = int(np.iinfo(np.int64).min)
"""Stands for the key of a pending record that is not known."""
_CHUNK = 10_000


class PendingKind(StrEnum):
    """Why an offset is not settled. The lowest pending offset holds the floor."""

    RETRY = "retry"
    """It failed and is retried when due."""
    DEAD_LETTER = "dead_letter"
    """It has no attempt left, or the handler declared it dead. The broker has not acknowledged its dead letter yet."""
    IN_FLIGHT = "in_flight"
    """The handler has handed it on; the answer is not there yet."""
    HELD_BACK = "held_back"
    """It waits for a lower offset of its key, or of its partition (`ackline.ledger.order`)."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The state of one pending offset."""

    kind: PendingKind
    attempts: int
    """How many attempts were made so far."""
    due: datetime | None
    """The earliest time of the next attempt, aware; None if there is no next attempt."""
    error_class: str | None
    """The error class of the last attempt."""


class PendingState(NamedTuple):
    """A pending state without its due time."""

    kind: PendingKind
    attempts: int
    error_class: str | None


class PendingRuns(Runs, Sequence[ValuedRange[Pending]]):
    """Sorted, disjoint runs of pending offsets. Touching runs differ in their state or key. Equal to a tuple of the
    same runs.

    `starts` and `ends` are the runs, `dues` are microseconds since 1970, or NEVER. `codes` are indexes of `states`.
    `keys` has what `ackline.ledger.order` knows of the key of each run; None if no key is known.
    """

    __slots__ = ("codes", "dues", "keys", "states")

    def __init__(
        self,
        starts: Int64s,
        ends: Int64s,
        codes: npt.NDArray[np.int32],
        dues: Int64s,
        states: Sequence[PendingState],
        keys: Int64s | None = None,
    ) -> None:
        self.starts, self.ends, self.codes, self.dues = starts, ends, codes, dues
        self.states = tuple(states)
        self.keys = keys if keys is not None and (keys != UNKNOWN_KEY).any() else None

    @classmethod
    def of(cls, runs: Iterable[ValuedRange[Pending]]) -> "PendingRuns":
        """Returns these runs as columns. Raises ValueError if they are not sorted and disjoint."""
        if isinstance(runs, PendingRuns):
            return runs
        every = [run for run in runs if run.start < run.end]
        states: dict[PendingState, int] = {}
        codes = [
            states.setdefault(PendingState(run.value.kind, run.value.attempts, run.value.error_class), len(states))
            for run in every
        ]
        starts, ends = arrays_of(every)
        dues = np.array([microseconds(run.value.due) for run in every], dtype=np.int64)
        return cls(starts, ends, np.array(codes, dtype=np.int32), dues, list(states)).joined()

    def with_keys(self, keys: Int64s) -> "PendingRuns":
        """Returns the runs with these keys."""
        return PendingRuns(self.starts, self.ends, self.codes, self.dues, self.states, keys)

    def joined(self) -> "PendingRuns":
        """Returns the same offsets in as few runs as possible. Raises ValueError if runs overlap."""
        overlap = self.starts[1:] < self.ends[:-1]
        if overlap.any():
            raise ValueError(f"ranges overlap at offset {self.starts[1:][overlap][0]}")
        begins = np.ones(len(self), dtype=np.bool_)
        touching = self.starts[1:] == self.ends[:-1]
        same = (self.codes[1:] == self.codes[:-1]) & (self.dues[1:] == self.dues[:-1])
        if self.keys is not None:
            same &= self.keys[1:] == self.keys[:-1]
        begins[1:] = ~(touching & same)
        if begins.all():
            return self
        lasts = np.append(begins[1:], True)
        kept = self.chosen(begins)
        return PendingRuns(kept.starts, self.ends[lasts], kept.codes, kept.dues, self.states, kept.keys)

    def minus(self, holes: Ranges) -> "PendingRuns":
        """Returns what is pending outside of `holes`."""
        return self._pieces(*subtract(self.ranges, holes))

    def within(self, ranges: Ranges) -> "PendingRuns":
        """Returns what is pending inside of `ranges`."""
        return self._pieces(*intersect(self.ranges, ranges))

    def _pieces(self, starts: Int64s, ends: Int64s, index: Int64s) -> "PendingRuns":
        whole = self.chosen(index)
        return PendingRuns(starts, ends, whole.codes, whole.dues, self.states, whole.keys)

    def due_by(self, time: datetime) -> "PendingRuns":
        """Returns the same runs, with the retries among them due at `time` at the latest."""
        retries = self.in_state(lambda state: state.kind is PendingKind.RETRY)
        dues = np.where(retries, np.minimum(self.dues, microseconds(time)), self.dues)
        return PendingRuns(self.starts, self.ends, self.codes, dues, self.states, self.keys).joined()

    def plus(self, others: "PendingRuns") -> "PendingRuns":
        """Returns what is pending in either. Raises ValueError if an offset is in both."""
        codes = {state: code for code, state in enumerate(self.states)}
        recoded = np.array([codes.setdefault(state, len(codes)) for state in others.states], dtype=np.int32)
        starts = np.concatenate([self.starts, others.starts])
        order = np.argsort(starts, kind="stable")
        keys: Int64s | None = None
        if self.keys is not None or others.keys is not None:
            keys = np.concatenate([self.known_keys, others.known_keys])[order]
        return PendingRuns(
            starts[order],
            np.concatenate([self.ends, others.ends])[order],
            np.concatenate([self.codes, recoded[others.codes]])[order],
            np.concatenate([self.dues, others.dues])[order],
            list(codes),
            keys,
        ).joined()

    def where(self, wanted: Callable[[PendingState], bool]) -> "PendingRuns":
        """Returns the runs in the wanted states."""
        return self.chosen(self.in_state(wanted))

    def of_kind(self, kind: PendingKind) -> "PendingRuns":
        """Returns the runs of this kind."""
        return self.where(lambda state: state.kind is kind)

    def in_state(self, wanted: Callable[[PendingState], bool]) -> Bools:
        """Returns for each run whether it is in one of the wanted states."""
        chosen: Bools = np.array([wanted(state) for state in self.states], dtype=np.bool_)
        return chosen[self.codes] if len(self) else np.zeros(0, dtype=np.bool_)

    def due_at(self, now: datetime) -> "PendingRuns":
        """Returns the retries that are due at `now`."""
        retries = self.in_state(lambda state: state.kind is PendingKind.RETRY)
        return self.chosen(retries & (self.dues <= microseconds(now)))

    def overdue_at(self, now: datetime) -> "PendingRuns":
        """Returns the records in flight whose deadline has passed at `now`."""
        in_flight = self.in_state(lambda state: state.kind is PendingKind.IN_FLIGHT)
        return self.chosen(in_flight & (self.dues <= microseconds(now)))

    def chosen(self, rows: Bools | Int64s | slice) -> "PendingRuns":
        """Returns the runs for which `rows` is true, or those with these indexes."""
        keys = None if self.keys is None else self.keys[rows]
        return PendingRuns(self.starts[rows], self.ends[rows], self.codes[rows], self.dues[rows], self.states, keys)

    @property
    def known_keys(self) -> Int64s:
        """What is known of the key of each run, UNKNOWN_KEY where nothing is."""
        return np.full(len(self), UNKNOWN_KEY) if self.keys is None else self.keys

    @property
    def attempts(self) -> Int64s:
        """How many attempts were made at the offsets of each run."""
        made: Int64s = np.array([state.attempts for state in self.states], dtype=np.int64)
        return made[self.codes] if len(self) else made[:0]

    @property
    def offsets(self) -> int:
        """How many offsets are pending."""
        return int((self.ends - self.starts).sum())

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[ValuedRange[Pending]]:
        for first in range(0, len(self), _CHUNK):
            part = slice(first, first + _CHUNK)
            columns = (column[part].tolist() for column in (self.starts, self.ends, self.codes, self.dues))
            for start, end, code, due in zip(*columns, strict=True):
                kind, attempts, error_class = self.states[code]
                yield ValuedRange(start, end, Pending(kind, attempts, time_of(due), error_class))

    @overload
    def __getitem__(self, index: int) -> ValuedRange[Pending]: ...
    @overload
    def __getitem__(self, index: slice) -> "PendingRuns": ...
    def __getitem__(self, index: int | slice) -> "ValuedRange[Pending] | PendingRuns":
        runs = self.chosen(index if isinstance(index, slice) else slice(index, index + 1 or None))
        if isinstance(index, slice):
            return runs
        for run in runs:
            return run
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PendingRuns) and self.states == other.states:
            columns = ("starts", "ends", "codes", "dues", "known_keys")
            return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"PendingRuns{tuple(self[:5])}" if len(self) <= 5 else f"PendingRuns({len(self)} runs from {self[0]})"


def microseconds(time: datetime | None) -> int:
    """Returns an aware time in microseconds since 1970; NEVER for None."""
    return NEVER if time is None else min((time - _EPOCH) // MICROSECOND, LATEST)


def microseconds_up(time: datetime) -> int:
    """Returns an aware time in microseconds since 1970, rounded up to a millisecond, as outcomes are stamped."""
    return -(-microseconds(time) // 1000) * 1000


def time_of(due: int) -> datetime | None:
    """Returns the time, in UTC, that is `due` microseconds after 1970; None for NEVER."""
    return None if due == NEVER else _EPOCH + timedelta(microseconds=due)


class RetryRuns(Runs, Sequence[ValuedRange[int]]):
    """Sorted, disjoint ranges of planned retries, as columns: 24 bytes each. The value of a range is the number of the
    attempt to be made. Equal to a tuple of the same ranges.
    """

    __slots__ = ("attempts",)

    def __init__(self, starts: Int64s, ends: Int64s, attempts: Int64s) -> None:
        self.starts, self.ends, self.attempts = starts, ends, attempts

    @classmethod
    def of(cls, ranges: Iterable[ValuedRange[int]]) -> "RetryRuns":
        """Returns these ranges as columns."""
        if isinstance(ranges, RetryRuns):
            return ranges
        every = tuple(ranges)
        return cls(*arrays_of(every), np.array([each.value for each in every], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[ValuedRange[int]]:
        for first in range(0, len(self), _CHUNK):
            part = slice(first, first + _CHUNK)
            columns = (column[part].tolist() for column in (self.starts, self.ends, self.attempts))
            for start, end, attempt in zip(*columns, strict=True):
                yield ValuedRange(start, end, attempt)

    @overload
    def __getitem__(self, index: int) -> ValuedRange[int]: ...
    @overload
    def __getitem__(self, index: slice) -> "RetryRuns": ...
    def __getitem__(self, index: int | slice) -> "ValuedRange[int] | RetryRuns":
        if isinstance(index, slice):
            return RetryRuns(self.starts[index], self.ends[index], self.attempts[index])
        return ValuedRange(int(self.starts[index]), int(self.ends[index]), int(self.attempts[index]))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RetryRuns):
            return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _OF_RETRIES)
        return tuple(self) == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"RetryRuns{tuple(self[:5])}" if len(self) <= 5 else f"RetryRuns({len(self)} ranges from {self[0]})"


_OF_RETRIES = ("starts", "ends", "attempts")


def join_attempts(starts: Int64s, ends: Int64s, attempts: Int64s) -> RetryRuns:
    """Returns the ranges, each with the number of an attempt, in as few ranges as possible; drops empty ones.

    Raises ValueError if they are not sorted and disjoint.
    """
    real = starts < ends
    starts, ends, attempts = starts[real], ends[real], attempts[real]
    overlap = starts[1:] < ends[:-1]
    if overlap.any():
        raise ValueError(f"ranges overlap at offset {starts[1:][overlap][0]}")
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = (starts[1:] != ends[:-1]) | (attempts[1:] != attempts[:-1])
    lasts = np.append(begins[1:], True) if len(starts) else begins
    return RetryRuns(starts[begins], ends[lasts], attempts[begins])


NOTHING_PENDING = PendingRuns.of(())
"""No runs, for the many partitions in which nothing is pending."""
