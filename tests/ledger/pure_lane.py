"""A lane without Kafka, Spark or tables, and the ledger written for clarity and not for cost.

A poll of the lane plans, handles in memory and folds, as the three steps do. The log of a partition is a pair of
bounds, and the set of offsets below its end that hold no record. The naive ledger is a dict with an entry for each
offset. It shares no code with `ackline.ledger.fold` but the names of the states, and the properties compare the
fold with it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction
from random import Random
from typing import NamedTuple

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.planning import Limits, PartitionView, plan_partitions
from ackline.ledger.turns import PlannedPartition
from tests.ledger.strategies import NOON

FIRST = TopicPartition("orders", 0)
AT_ONCE = RetryPolicy(initial_delay=timedelta(0), period=timedelta(0), max_retries=100)
WIDE = Limits(max_uncommitted=10_000_000, max_records_per_run=5_000_000)


class Call(NamedTuple):
    tp: TopicPartition
    offset: int
    attempt: int


Handle = Callable[[Call], Outcome]


def acks(_: Call) -> Outcome:
    return Outcome.ACKED


def fails(*offsets: int, times: int = 1_000) -> Handle:
    """A handler that fails at these offsets, at each in its first `times` attempts."""
    return lambda call: Outcome.FAILED if call.offset in offsets and call.attempt <= times else Outcome.ACKED


@dataclass
class Poll:
    """What a poll planned and did. `rows` are all its outcomes and decisions."""

    planned: Mapping[TopicPartition, PlannedPartition]
    calls: list[Call] = field(default_factory=list)
    rows: dict[TopicPartition, list[OutcomeRow]] = field(default_factory=dict)

    @property
    def offsets(self) -> list[int]:
        return [call.offset for call in self.calls]


@dataclass
class PureLane:
    """The states and logs of the partitions, and the clock. `confirms`: whether dead letters are acknowledged."""

    logs: dict[TopicPartition, LogBounds]
    policy: RetryPolicy = AT_ONCE
    limits: Limits = WIDE
    gaps: set[tuple[TopicPartition, int]] = field(default_factory=set)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    now: datetime = NOON
    confirms: bool = True
    dead: list[tuple[TopicPartition, int]] = field(default_factory=list)
    shuffle: Random | None = None

    def __post_init__(self) -> None:
        for tp, log in self.logs.items():
            self.states.setdefault(tp, PartitionState(log.start))

    @classmethod
    def of(cls, records: int, policy: RetryPolicy = AT_ONCE, limits: Limits = WIDE) -> "PureLane":
        """A lane of one partition with the offsets 0 to `records` - 1."""
        return cls({FIRST: LogBounds(0, records)}, policy, limits)

    @property
    def floor(self) -> int:
        return self.states[FIRST].floor

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def poll(self, handle: Handle = acks) -> Poll:
        """One run: plans, handles each record, folds, acknowledges the dead letters and folds these too."""
        views = {tp: PartitionView(f"id-{tp.topic}", state, self.logs[tp]) for tp, state in self.states.items()}
        poll = Poll(plan_partitions(views, self.limits, self.now))
        for tp, planned in sorted(poll.planned.items()):
            poll.rows[tp] = self._handled(tp, planned, handle, poll.calls)
            self.states[tp] = self._settled(tp, planned, poll.rows[tp])
        return poll

    def _handled(
        self, tp: TopicPartition, planned: PlannedPartition, handle: Handle, calls: list[Call]
    ) -> list[OutcomeRow]:
        rows = []
        passed = self.states[tp].complete_to
        if passed < planned.fresh.start:
            rows.append(OutcomeRow(passed, 0, Outcome.EXPIRED, self.now, None, planned.fresh.start))
        fresh = ValuedRange(planned.fresh.start, planned.fresh.end, 1)
        for attempts in (*planned.retries, fresh):
            for offset in range(attempts.start, attempts.end):
                row = self._row(Call(tp, offset, attempts.value), handle, calls)
                if row is not None:
                    rows.append(row)
        if self.shuffle:
            self.shuffle.shuffle(rows)
        return rows

    def _row(self, call: Call, handle: Handle, calls: list[Call]) -> OutcomeRow | None:
        if call.offset < self.logs[call.tp].start:
            return OutcomeRow(call.offset, 0, Outcome.EXPIRED, self.now)
        if (call.tp, call.offset) in self.gaps:
            return OutcomeRow(call.offset, 0, Outcome.COMPACTED, self.now) if call.attempt > 1 else None
        calls.append(call)
        result = handle(call)
        outcome = Outcome.FAILED if result is Outcome.DEAD else result
        error = ErrorClass.DEAD.value if result is Outcome.DEAD else "ValueError" if outcome is Outcome.FAILED else None
        return OutcomeRow(call.offset, call.attempt, outcome, self.now, error)

    def _settled(self, tp: TopicPartition, planned: PlannedPartition, rows: list[OutcomeRow]) -> PartitionState:
        before = self.states[tp]
        gaps = sum((tp, offset) in self.gaps for offset in range(planned.fresh.start, planned.fresh.end))
        state = fold(before, planned.fresh, planned.retries, rows, self.policy, gaps=gaps)
        for pending in state.pending if self.confirms else ():
            if pending.value.kind is PendingKind.DEAD_LETTER:
                for offset in range(pending.start, pending.end):
                    self.dead.append((tp, offset))
                    rows.append(OutcomeRow(offset, 0, Outcome.DEAD, self.now, pending.value.error_class))
        return fold(before, planned.fresh, planned.retries, rows, self.policy, gaps=gaps)

    def expire(self, start: int, tp: TopicPartition = FIRST) -> None:
        """Retention takes everything below `start`."""
        self.logs[tp] = self.logs[tp]._replace(start=start)

    def grow(self, end: int, tp: TopicPartition = FIRST) -> None:
        self.logs[tp] = self.logs[tp]._replace(end=end)


TERMINAL = {
    Outcome.ACKED, Outcome.SKIPPED, Outcome.DROPPED, Outcome.DEAD, Outcome.EXPIRED, Outcome.COMPACTED, Outcome.LOST,
}  # fmt: skip


def naive_delay(policy: RetryPolicy, attempts: int) -> timedelta:
    """The delay in exact numbers: initial_delay for n = 1, else min(max_delay, period · multiplier^(n−1)) (S11)."""
    microsecond = timedelta(microseconds=1)
    exact = Fraction(policy.initial_delay // microsecond)
    if attempts > 1:
        exact = Fraction(policy.period // microsecond) * Fraction(policy.multiplier) ** (attempts - 1)
    return min(round(exact), policy.max_delay // microsecond) * microsecond


@dataclass
class NaiveLedger:
    """One partition. `ends` holds the terminal outcomes of each offset: an offset has at most one."""

    complete_to: int
    pending: dict[int, Pending] = field(default_factory=dict)
    ends: dict[int, list[Outcome]] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return min(self.pending, default=self.complete_to)

    def turn(
        self, fresh: OffsetRange, retries: Mapping[int, int], rows: Iterable[OutcomeRow], policy: RetryPolicy
    ) -> None:
        """Take one turn, offset by offset, attempts before decisions. Offsets of `fresh` without a row were acked."""
        self.complete_to = max(self.complete_to, fresh.end)
        for row in sorted(rows, key=lambda row: row.attempt == 0):
            if row.attempt:
                assert row.attempt == retries.get(row.offset, 1)
                self._attempt(row, policy)
            else:
                for offset in range(row.offset, row.end):
                    self._end(offset, row.outcome)

    def _attempt(self, row: OutcomeRow, policy: RetryPolicy) -> None:
        if row.outcome in TERMINAL:
            self._end(row.offset, row.outcome)
        elif row.error_class == "Dead" or row.attempt > policy.max_retries:
            self.pending[row.offset] = Pending(PendingKind.DEAD_LETTER, row.attempt, None, row.error_class)
        else:
            due = row.handled_at + naive_delay(policy, row.attempt)
            self.pending[row.offset] = Pending(PendingKind.RETRY, row.attempt, due, row.error_class)

    def _end(self, offset: int, outcome: Outcome) -> None:
        self.pending.pop(offset, None)
        self.ends.setdefault(offset, []).append(outcome)

    def due(self, now: datetime) -> set[int]:
        return {offset for offset, state in self.pending.items() if state.due is not None and state.due <= now}

    def agrees_with(self, state: PartitionState) -> bool:
        """Whether `state` is the same, offset by offset."""
        pending = {offset: valued.value for valued in state.pending for offset in range(valued.start, valued.end)}
        return (pending, state.complete_to, state.floor) == (self.pending, self.complete_to, self.floor)
