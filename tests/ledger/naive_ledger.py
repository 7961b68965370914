"""The ledger written for clarity and not for cost: a dict with an entry for each offset.

It shares no code with `ackline.ledger.fold` but the names of the states. The properties compare the fold with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome

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
