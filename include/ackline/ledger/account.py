"""The account of a backfill, by which no offset that was asked for is missing, and how two lanes differ. Pure.

The outcomes of a partition are runs of offsets with a result each, as arrays, so that a range row of ten million
offsets costs no more than a row of one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np

from ackline.ledger.fold import PartitionState, PendingKind
from ackline.ledger.offsets import (
    Int64s,
    OffsetRange,
    Ranges,
    TopicPartition,
    clipped,
    count,
    index_of_range,
    ranges_of,
    subtract,
    union,
)
from ackline.ledger.order import is_unread
from ackline.ledger.outcomes import Outcome

UNREAD = "unread"
"""The key of offsets that no turn has read yet, beside the kinds of what is pending."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a lane was asked to read of one partition: ranges that are read whole, and single offsets."""

    ranges: tuple[OffsetRange, ...]
    offsets: tuple[OffsetRange, ...] = ()
    """Offsets that were chosen by their outcome, or by time in many places, as joined runs: pending from the start, and
    read exactly."""

    @property
    def every(self) -> tuple[OffsetRange, ...]:
        """All offsets that were asked for. A lane has either ranges or single offsets."""
        return self.ranges or self.offsets


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the offsets that a backfill lane was asked to read."""

    asked: Mapping[TopicPartition, tuple[OffsetRange, ...]]
    outcomes: Mapping[str, int]
    """Offsets by terminal outcome."""
    gaps: int
    pending: Mapping[str, int]
    """Offsets by kind of what is pending, and those that are unread."""
    next_due: datetime | None

    @property
    def offsets(self) -> int:
        """How many offsets were asked for."""
        return sum(map(count, self.asked.values()))

    @property
    def settled(self) -> bool:
        """Whether no offset is left to read or pending."""
        return not any(self.pending.values())

    @property
    def balanced(self) -> bool:
        """Whether each offset that was asked for is counted exactly once. False means an error in Ackline."""
        return self.offsets == sum(self.outcomes.values()) + self.gaps + sum(self.pending.values())


def account_of(
    chosen: Mapping[TopicPartition, Chosen],
    states: Mapping[TopicPartition, PartitionState],
    counts: Mapping[str, int],
    gaps: int,
) -> Account:
    """Returns the account after a turn. `counts` and `gaps` are the sums over all turns of the epoch.

    Unread are offsets from `complete_to` on, and offsets that are pending without an attempt.
    """
    pending: Counter[str] = Counter({kind.value: 0 for kind in PendingKind} | {UNREAD: 0})
    for tp, state in states.items():
        runs = state.pending
        unread = runs.where(is_unread).offsets
        pending.update({kind.value: number for kind, number in state.pending_by_kind().items()})
        pending[PendingKind.RETRY] -= unread
        left = clipped(chosen[tp].ranges, state.complete_to, max((r.end for r in chosen[tp].ranges), default=0))
        pending[UNREAD] += unread + count(left)
    outcomes = {word: number for word, number in counts.items() if number and Outcome(word).terminal}
    dues = [state.next_due for state in states.values() if state.next_due is not None]
    return Account({tp: of.every for tp, of in chosen.items()}, outcomes, gaps, pending, min(dues, default=None))


def chosen_of(ranges: tuple[OffsetRange, ...], state: PartitionState) -> Chosen:
    """Returns what a genesis has stored of one partition."""
    return Chosen(ranges, ranges_of(state.pending.ranges))


class Result(NamedTuple):
    """A terminal outcome, and the error class of its row."""

    outcome: str
    error_class: str | None


@dataclass(frozen=True, slots=True)
class ResultRuns:
    """Disjoint runs of offsets, sorted, each with the index of its result in `results`."""

    starts: Int64s
    ends: Int64s
    codes: Int64s
    results: tuple[Result, ...]

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, Result]]) -> "ResultRuns":
        """Returns runs that may come in any order."""
        every = sorted(runs, key=lambda run: run[:2])
        results = list(dict.fromkeys(result for _, _, result in every))
        columns = [(start, end, results.index(result)) for start, end, result in every]
        starts, ends, codes = np.array(columns, dtype=np.int64).reshape(-1, 3).T
        return cls(starts, ends, codes, tuple(results))

    @property
    def ranges(self) -> Ranges:
        """The offsets of the runs, without their results."""
        return self.starts, self.ends


NO_RUNS = ResultRuns.of(())


def newest_results(epochs: Iterable[ResultRuns]) -> ResultRuns:
    """Returns the result of each offset in the newest epoch that has one. `epochs` begins with the newest epoch."""
    parts, covered = [], NO_RUNS.ranges
    for runs in epochs:
        starts, ends, index = subtract(runs.ranges, covered)
        parts.append(ResultRuns(starts, ends, runs.codes[index], runs.results))
        covered = union(covered, runs.ranges)
    return joined_runs(parts)


def joined_runs(parts: Iterable[ResultRuns]) -> ResultRuns:
    """Returns the runs of all parts, which hold different offsets."""
    codes: dict[Result, int] = {}
    columns = [(NO_RUNS.starts, NO_RUNS.ends, NO_RUNS.codes)]
    for part in parts:
        new_codes = np.array([codes.setdefault(result, len(codes)) for result in part.results], dtype=np.int64)
        columns.append((part.starts, part.ends, new_codes[part.codes] if len(part.codes) else part.codes))
    starts, ends, joined = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(starts, kind="stable")
    return ResultRuns(starts[order], ends[order], joined[order], tuple(codes))


class ChangedRun(NamedTuple):
    """Offsets whose result differs between the two lanes."""

    tp: TopicPartition
    start: int
    end: int
    before: Result
    after: Result


@dataclass(slots=True)
class LaneDiff:
    """How the outcomes of one lane compare with those of another, in offsets.

    `same` have the same outcome and error class in both, `changed` differ, and `only` are settled in one lane alone.
    """

    same: int = 0
    changed: Counter[tuple[Result, Result]] = field(default_factory=Counter)
    only: tuple[int, int] = (0, 0)


def compare(
    before: Mapping[TopicPartition, ResultRuns], after: Mapping[TopicPartition, ResultRuns]
) -> tuple[LaneDiff, Iterator[ChangedRun]]:
    """Returns the counts, and the runs of offsets that differ, by partition and offset."""
    diff = LaneDiff()
    for tp in {*before, *after}:
        a, b = before.get(tp, NO_RUNS), after.get(tp, NO_RUNS)
        starts, ends, in_a, in_b = _pieces(a, b)
        lengths = ends - starts
        diff.only = (
            diff.only[0] + int(lengths[(in_a >= 0) & (in_b < 0)].sum()),
            diff.only[1] + int(lengths[(in_b >= 0) & (in_a < 0)].sum()),
        )
        both = (in_a >= 0) & (in_b >= 0)
        pairs = a.codes[in_a[both]] * max(1, len(b.results)) + b.codes[in_b[both]]
        keys, index = np.unique(pairs, return_inverse=True)
        counts = np.zeros(len(keys), np.int64)
        np.add.at(counts, index, lengths[both])
        for key, number in zip(keys.tolist(), counts.tolist(), strict=True):
            code_a, code_b = divmod(key, max(1, len(b.results)))
            if a.results[code_a] == b.results[code_b]:
                diff.same += number
            else:
                diff.changed[a.results[code_a], b.results[code_b]] += number
    return diff, _changed_runs(before, after)


def _pieces(a: ResultRuns, b: ResultRuns) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Returns pieces in which neither lane changes its result, and the index of the run of each lane, or -1."""
    bounds = np.unique(np.concatenate([a.starts, a.ends, b.starts, b.ends]))
    starts, ends = bounds[:-1], bounds[1:]
    return starts, ends, index_of_range(starts, a.ranges), index_of_range(starts, b.ranges)


def _changed_runs(
    before: Mapping[TopicPartition, ResultRuns], after: Mapping[TopicPartition, ResultRuns]
) -> Iterator[ChangedRun]:
    for tp in sorted({*before} & {*after}):
        a, b = before[tp], after[tp]
        starts, ends, in_a, in_b = _pieces(a, b)
        both = np.flatnonzero((in_a >= 0) & (in_b >= 0))
        for piece in both.tolist():
            old, new = a.results[a.codes[in_a[piece]]], b.results[b.codes[in_b[piece]]]
            if old != new:
                yield ChangedRun(tp, int(starts[piece]), int(ends[piece]), old, new)
