"""Topic-partitions, offsets and ranges of offsets, one by one and as arrays. Pure.

Topic-partitions, offsets, ranges of offsets, and ranges whose offsets all have the same value.

The ledger keeps what it stores about single offsets as such ranges, so a million neighbours that failed alike cost one
entry. Every operation here is one pass over sorted sequences. Pure: imports nothing of Kafka, Spark or Delta.

Sorted, disjoint offset ranges as arrays: what `ackline.ledger.offsets` does, for millions of ranges at once. Pure.

Ranges are two int64 arrays, `starts` and `ends` (exclusive). No range is empty.

Which offsets of a partition are part of a lane, and which of them it reads next. Pure.

The live lane holds every offset of a partition. A backfill lane holds the ranges that its genesis has stored, and
`complete_to` jumps over what is between them. Ranges are sorted and disjoint, and none is empty.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

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


@dataclass(frozen=True, slots=True)
class ValuedRange(Generic[V]):
    """Offsets `[start, end)` that all have the same value, such as a pending state or the number of an attempt."""

    start: int
    end: int
    value: V

    def __len__(self) -> int:
        return self.end - self.start


ValuedRanges: TypeAlias = tuple[ValuedRange[V], ...]
"""Sorted, disjoint ranges, each with its value."""


def join(valued: Iterable[ValuedRange[V]]) -> ValuedRanges[V]:
    """The same offsets and values in as few ranges as possible: drops empty ranges, joins touching ones of equal value.

    Raises ValueError if `valued` is not sorted and disjoint.
    """
    joined: list[ValuedRange[V]] = []
    for current in valued:
        if current.start >= current.end:
            continue
        last = joined[-1] if joined else None
        if last is not None and current.start < last.end:
            raise ValueError(f"ranges overlap at offset {current.start}")
        if last is not None and last.end == current.start and last.value == current.value:
            joined[-1] = replace(last, end=current.end)
        else:
            joined.append(current)
    return tuple(joined)


def subtract(valued: Iterable[ValuedRange[V]], holes: Sequence[OffsetRange]) -> Iterator[ValuedRange[V]]:
    """The offsets of `valued` that are in none of `holes`. Both are sorted and disjoint."""
    first = 0
    for current in valued:
        start = current.start
        while first < len(holes) and holes[first].end <= start:
            first += 1
        # `first` stays on the first hole that reaches into this range: its end may reach into the next range, too.
        hole = first
        while hole < len(holes) and holes[hole].start < current.end:
            if holes[hole].start > start:
                yield ValuedRange(start, holes[hole].start, current.value)
            start = max(start, holes[hole].end)
            hole += 1
        if start < current.end:
            yield ValuedRange(start, current.end, current.value)


def merge(a: Iterable[ValuedRange[V]], b: Iterable[ValuedRange[V]]) -> ValuedRanges[V]:
    """The ranges of both. Raises ValueError if an offset is in both."""
    return join(sorted([*a, *b], key=lambda current: current.start))


def count(valued: Iterable[ValuedRange[V]]) -> int:
    """How many offsets the ranges hold."""
    return sum(current.end - current.start for current in valued)


Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ranges: TypeAlias = tuple[Int64s, Int64s]


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


def union(starts: Int64s, ends: Int64s) -> Ranges:
    """Returns the offsets of ranges that may overlap and come in any order, as ranges that do not touch."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = starts[1:] > ends[:-1]
    lasts = np.append(begins[1:], True) if len(starts) else begins
    return starts[begins], ends[lasts]


def subtract_ranges(ranges: Ranges, holes: Ranges) -> tuple[Int64s, Int64s, Int64s]:
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


ChosenRanges = Sequence[OffsetRange] | None
"""The ranges of one partition; None for a lane that holds every offset."""


def joined(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Returns the offsets of ranges that may overlap and come in any order, in as few ranges as possible."""
    result: list[OffsetRange] = []
    for current in sorted(current for current in ranges if current):
        if result and current.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, current.end))
        else:
            result.append(current)
    return tuple(result)


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


def count_offsets(ranges: Iterable[OffsetRange]) -> int:
    """Returns how many offsets the ranges hold."""
    return sum(map(len, ranges))
