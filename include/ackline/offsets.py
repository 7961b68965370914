"""Offsets, ranges of them, and runs: sorted, disjoint ranges that each carry a value.

Everything the ledger keeps about single offsets is kept as runs of equal value, so that a million neighbours which
failed alike cost one entry. All operations are linear merges of sorted sequences.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeAlias, TypeVar

V = TypeVar("V")


class TopicPartition(NamedTuple):
    """A partition of a topic, ordered by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `[start, end)` as in Kafka: `end` is the next offset, not the last.

    Raises ValueError for a negative start, or an end before the start.
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
    """The readable log `[start, end)`; `end` is the last stable offset under read_committed.

    `leader_epoch` is the epoch of the leader that said so. In a plan it vouches for the state, too: what was settled or
    is pending below the planned end is in that leader's log as it was read. None where nothing vouches for it.
    """

    start: int
    end: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Run(Generic[V]):
    """Offsets `[start, end)`, all with the same value."""

    start: int
    end: int
    value: V

    def __len__(self) -> int:
        return self.end - self.start


Runs: TypeAlias = tuple[Run[V], ...]


def join(runs: Iterable[Run[V]]) -> Runs[V]:
    """The same runs with touching ones of equal value made one. `runs` are sorted and disjoint; else ValueError."""
    joined: list[Run[V]] = []
    for run in runs:
        if run.start >= run.end:
            continue
        last = joined[-1] if joined else None
        if last is not None and run.start < last.end:
            raise ValueError(f"runs overlap at offset {run.start}")
        if last is not None and last.end == run.start and last.value == run.value:
            joined[-1] = replace(last, end=run.end)
        else:
            joined.append(run)
    return tuple(joined)


def subtract(runs: Iterable[Run[V]], holes: Sequence[OffsetRange]) -> Iterator[Run[V]]:
    """What is left of `runs` outside `holes`; both sorted and disjoint."""
    at = 0
    for run in runs:
        start = run.start
        while at < len(holes) and holes[at].end <= start:
            at += 1
        ahead = at
        while ahead < len(holes) and holes[ahead].start < run.end:
            if holes[ahead].start > start:
                yield Run(start, holes[ahead].start, run.value)
            start = max(start, holes[ahead].end)
            ahead += 1
        if start < run.end:
            yield Run(start, run.end, run.value)


def merge(a: Iterable[Run[V]], b: Iterable[Run[V]]) -> Runs[V]:
    """Both as one; they are disjoint from each other, else ValueError."""
    return join(sorted([*a, *b], key=lambda run: run.start))


def ranges(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Sorted, distinct offsets as the fewest ranges."""
    return tuple(OffsetRange(run.start, run.end) for run in join(Run(o, o + 1, None) for o in offsets))


def count(runs: Iterable[Run[V]]) -> int:
    """How many offsets `runs` hold."""
    return sum(run.end - run.start for run in runs)


def take(runs: Iterable[Run[V]], limit: int) -> Runs[V]:
    """The first `limit` offsets of `runs`."""
    taken: list[Run[V]] = []
    for run in runs:
        if limit <= 0:
            break
        taken.append(replace(run, end=min(run.end, run.start + limit)))
        limit -= len(taken[-1])
    return tuple(taken)
