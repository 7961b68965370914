"""Topic-partitions, offsets, ranges of offsets, and ranges whose offsets all have the same value.

The ledger keeps what it stores about single offsets as such ranges, so a million neighbours that failed alike cost one
entry. Every operation here is one pass over sorted sequences. Pure: imports nothing of Kafka, Spark or Delta.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

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
