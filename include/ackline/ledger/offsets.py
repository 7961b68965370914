"""Topic-partitions, offsets, and the algebra of offset ranges. Pure.

A range is `[start, end)`. Where there are few, or each has a value, ranges are objects: `OffsetRange`, `ValuedRange`.
The algebra works on `Ranges`, two arrays, because a turn may leave millions of ranges; `arrays_of` and `ranges_of`
convert. Except for `union`, each operation takes sorted, disjoint ranges, and is one pass over them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

V = TypeVar("V")


class TopicPartition(NamedTuple):
    """A partition of a topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` as in Kafka: `end` is the next offset, not the last one of the range.

    Raises ValueError for a negative start, and for an end below the start.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < self.start:
            raise ValueError(f"not an offset range: [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class LogBounds(NamedTuple):
    """The readable part `[start, end)` of a partition's log."""

    start: int
    """The log start: the lowest offset that retention has left."""
    end: int
    """The log end; under `read_committed` the last stable offset."""
    leader_epoch: int | None = None
    """The epoch of the leader that reported these bounds; None if it is not known.

    In a plan it also covers the state: whatever is settled or pending below the planned end is in the log of that
    leader as it was read."""
    open_transaction: int = 0
    """How many offsets an open transaction holds back above `end`: its own, and all that were written after its first
    one. 0 under `read_uncommitted`."""

    @property
    def high_watermark(self) -> int:
        """The end of the log, open transactions included."""
        return self.end + self.open_transaction

    def read_to(self, complete_to: int) -> "LogBounds":
        """Returns the bounds for a lane that has read everything below `complete_to`.

        Under `read_uncommitted`, which was an earlier setting or that of the group's former owner, a lane reads into an
        open transaction. The log is not truncated then: its end is `complete_to` until the transaction ends (S43).
        """
        if not self.end < complete_to <= self.high_watermark:
            return self
        return self._replace(end=complete_to, open_transaction=self.high_watermark - complete_to)


@dataclass(frozen=True, slots=True)
class ValuedRange(Generic[V]):
    """Offsets `[start, end)` that all have the same value, such as a pending state or the number of an attempt."""

    start: int
    end: int
    value: V

    def __len__(self) -> int:
        return self.end - self.start


ValuedRanges: TypeAlias = Sequence[ValuedRange[V]]
"""Sorted, disjoint ranges, each with its value."""
AnyRange: TypeAlias = OffsetRange | ValuedRange[Any]


class Runs:
    """Base of a sequence of sorted, disjoint ranges that holds them as columns: none becomes an object to be counted
    or compared with others."""

    __slots__ = ("ends", "starts")
    starts: "Int64s"
    ends: "Int64s"

    @property
    def ranges(self) -> "Ranges":
        """The offsets of the ranges, without their values."""
        return self.starts, self.ends


class OffsetRuns(Runs):
    """Sorted, disjoint ranges of offsets without values. Equal to runs of the same ranges."""

    __slots__ = ()

    def __init__(self, ranges: "Ranges") -> None:
        self.starts, self.ends = ranges

    @classmethod
    def of(cls, ranges: Iterable[AnyRange]) -> "OffsetRuns":
        """Returns these ranges as columns."""
        return cls(arrays_of(ranges))

    def within(self, ranges: "Ranges") -> "OffsetRuns":
        """Returns the offsets that are in `ranges` too."""
        return OffsetRuns(intersect(self.ranges, ranges)[:2]) if len(self) else self

    def plus(self, ranges: "Ranges") -> "OffsetRuns":
        """Returns these offsets and those of `ranges`, in as few ranges as possible."""
        return OffsetRuns(union(self.ranges, ranges)) if len(ranges[0]) else self

    def __contains__(self, offset: int) -> bool:
        return int(index_of_range(np.array([offset]), self.ranges)[0]) >= 0

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(ranges_of(self.ranges))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, OffsetRuns) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"OffsetRuns{tuple(self)}" if len(self) <= 5 else f"OffsetRuns({len(self)} runs from {self.starts[0]})"


def count(ranges: Iterable[AnyRange]) -> int:
    """Returns how many offsets the ranges hold."""
    if isinstance(ranges, Runs):
        return int((ranges.ends - ranges.starts).sum())
    return sum(map(len, ranges))


Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ranges: TypeAlias = tuple[Int64s, Int64s]
"""Starts and exclusive ends of ranges that are sorted and disjoint. None is empty."""
NO_RANGES: Ranges = (np.zeros(0, np.int64), np.zeros(0, np.int64))
NO_RUNS = OffsetRuns(NO_RANGES)
"""No ranges, for the many partitions that have none."""


def arrays_of(ranges: Iterable[AnyRange]) -> Ranges:
    """Returns the starts and ends of ranges, without their values."""
    if isinstance(ranges, Runs):
        return ranges.starts, ranges.ends
    starts, ends = np.array([(each.start, each.end) for each in ranges], dtype=np.int64).reshape(-1, 2).T
    return starts, ends


def ranges_of(arrays: Ranges) -> tuple[OffsetRange, ...]:
    """Returns arrays of starts and ends as ranges."""
    return tuple(OffsetRange(*pair) for pair in zip(arrays[0].tolist(), arrays[1].tolist(), strict=True))


def index_of_range(offsets: Int64s, ranges: Ranges) -> Int64s:
    """Returns for each offset the index of the range that holds it, or -1 if none does."""
    starts, ends = ranges
    index = np.searchsorted(starts, offsets, side="right") - 1
    if len(starts):
        index[(index >= 0) & (offsets >= ends[index])] = -1
    return index


def spread(ranges: Ranges) -> tuple[Int64s, Int64s]:
    """Returns every offset of the ranges, and for each the index of its range."""
    starts, ends = ranges
    lengths = ends - starts
    index = np.repeat(np.arange(len(starts)), lengths)
    first = np.cumsum(lengths) - lengths
    return starts[index] + np.arange(len(index)) - first[index], index


def union(*ranges: Ranges) -> Ranges:
    """Returns the offsets of all ranges, which may be empty, overlap and come in any order, in as few as possible."""
    starts, ends = (np.concatenate(arrays) for arrays in zip(NO_RANGES, *ranges, strict=True))
    real = starts < ends
    order = np.argsort(starts[real], kind="stable")
    starts, ends = starts[real][order], np.maximum.accumulate(ends[real][order])
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = starts[1:] > ends[:-1]
    lasts = np.append(begins[1:], True) if len(starts) else begins
    return starts[begins], ends[lasts]


def subtract(ranges: Ranges, holes: Ranges) -> tuple[Int64s, Int64s, Int64s]:
    """Returns the offsets of `ranges` that are in none of `holes`: starts and ends of the pieces, and for each piece
    the index of its range."""
    starts, ends = ranges
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    # What is between two holes is kept. A piece is the part of such a space that is inside a range.
    space_starts, space_ends = np.append(low, holes[1]), np.append(holes[0], high)
    first = np.searchsorted(space_ends, starts, side="right")
    pieces = np.searchsorted(space_starts, ends, side="left") - first
    space, index = spread((first, first + pieces))
    piece_starts, piece_ends = (
        np.maximum(starts[index], space_starts[space]),
        np.minimum(ends[index], space_ends[space]),
    )
    real = piece_starts < piece_ends
    return piece_starts[real], piece_ends[real], index[real]


def intersect(ranges: Ranges, others: Ranges) -> tuple[Int64s, Int64s, Int64s]:
    """Returns the offsets of `ranges` that are in `others`, as `subtract` returns pieces."""
    return subtract(ranges, subtract(ranges, others)[:2])


def joined(ranges: Iterable[AnyRange]) -> tuple[OffsetRange, ...]:
    """Returns the offsets of ranges that may be empty, overlap and come in any order, in as few as possible."""
    return ranges_of(union(arrays_of(ranges)))


ChosenRanges = Sequence[OffsetRange] | None
"""The ranges of one partition that are part of a lane; None for the live lane, which holds every offset. A backfill
lane holds what its genesis has stored, and `complete_to` jumps over what is between its ranges."""


def clipped(chosen: ChosenRanges, start: int, end: int) -> list[OffsetRange]:
    """Returns the chosen offsets in `[start, end)`; for a lane that holds every offset, all of these."""
    every = [OffsetRange(start, end)] if chosen is None and start < end else chosen or ()
    parts = ((max(current.start, start), min(current.end, end)) for current in every)
    return [OffsetRange(low, high) for low, high in parts if low < high]


def next_range(chosen: ChosenRanges, start: int, end: int) -> OffsetRange:
    """Returns the first chosen range at or above `start` as far as it is below `end`, the end of the log.

    Empty if there is none: at the next chosen offset, which the log does not have yet, or at the end of the lane if
    nothing is left to read.
    """
    if chosen is None:
        return OffsetRange(start, max(start, end))
    left = next((current for current in chosen if current.end > start), None)
    if left is None:
        behind = max(start, chosen[-1].end) if chosen else start
        return OffsetRange(behind, behind)
    first = max(start, left.start)
    return OffsetRange(first, max(first, min(left.end, end)))
