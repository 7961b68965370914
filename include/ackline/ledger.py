"""The heart: what is known of a partition, and how a turn moves it. Pure, and O(pending + what did not succeed).

A turn over the fresh range `[start, end)` and due retries comes with outcomes that are *proved* complete: every
offset of the range that is not mentioned was acked or holds no record. So the ledger keeps only what is pending. The
floor, `min(pending)` or `complete_to`, is the one number that may be committed to Kafka.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from ackline.backoff import Backoff
from ackline.errors import LedgerError
from ackline.offsets import OffsetRange, Run, Runs, merge, subtract
from ackline.outcome import ErrorClass, Outcome


class PendingKind(StrEnum):
    """Why an offset holds the floor."""

    RETRY = "retry"
    """Failed, to be tried again when due: the only kind that reaches the handler."""
    DEAD_LETTER = "dead_letter"
    """Exhausted, or declared dead by its handler; its dead letter is not confirmed yet."""
    IN_FLIGHT = "in_flight"
    """Handed out, its end not known yet."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The state of a pending offset; `attempts` were made so far, `due` is the earliest time of the next."""

    kind: PendingKind
    attempts: int
    due: datetime | None
    error_class: str | None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Everything the ledger knows of a partition. Each existing offset below `complete_to` is settled or pending."""

    complete_to: int
    pending: Runs[Pending] = ()

    @property
    def floor(self) -> int:
        """The lowest offset that is not settled: what may be committed."""
        return self.pending[0].start if self.pending else self.complete_to

    def pending_by_kind(self) -> dict[PendingKind, int]:
        """How many offsets are pending, of each kind (zeros included)."""
        found = dict.fromkeys(PendingKind, 0)
        for run in self.pending:
            found[run.value.kind] += len(run)
        return found

    @property
    def next_due(self) -> datetime | None:
        """When the next retry is due, or None where none waits."""
        return min((run.value.due for run in self.pending if run.value.due is not None), default=None)


class OutcomeRow(NamedTuple):
    """What the ledger needs of a row of `outcomes`: an attempt, or a decision (attempt 0) on one offset or a range."""

    offset: int
    attempt: int
    outcome: Outcome
    handled_at: datetime
    error_class: str | None = None
    end_offset: int | None = None
    reason: str | None = None

    @property
    def end(self) -> int:
        """The offset after the last one that the row speaks of."""
        return self.offset + 1 if self.end_offset is None else self.end_offset


def fold(
    state: PartitionState,
    fresh: OffsetRange,
    retries: Runs[int],
    rows: Iterable[OutcomeRow],
    policy: Backoff,
    seed: str = "",
) -> PartitionState:
    """The state after a turn over `fresh` and `retries` (value: number of the attempt made).

    `rows` hold at least everything that did not succeed, every retry and every decision (attempt 0), in any order
    (S5); of fresh acked rows none is needed. Raises LedgerError where the turn does not start from this state (a retry
    that is not pending, fresh offsets below `complete_to`), a retry is not answered, an outcome belongs to no planned
    attempt, or offsets between `complete_to` and `fresh` are passed over undecided: each would lose a record silently,
    or un-ack one.
    """
    _check_start(state, fresh, retries)
    attempts: list[OutcomeRow] = []
    decisions: list[OutcomeRow] = []
    for row in rows:
        (attempts if row.attempt else decisions).append(row)
    touched = _attempted(fresh, retries, attempts, policy, seed)
    holes = _decided(decisions, touched)
    for run in subtract(retries, holes):
        for offset in range(run.start, run.end):
            if offset not in touched:
                raise LedgerError(
                    f"the outcomes of the turn say nothing of the retry at offset {offset}", offset=offset
                )
    _check_passed_over(state.complete_to, fresh.start, holes)
    at_offsets = [OffsetRange(offset, offset + 1) for offset in sorted(touched)]
    left = subtract(subtract(state.pending, at_offsets), holes)
    new = subtract((Run(o, o + 1, p) for o, p in sorted(touched.items()) if p is not None), holes)
    return PartitionState(max(state.complete_to, fresh.end), merge(left, new))


def _check_start(state: PartitionState, fresh: OffsetRange, retries: Runs[int]) -> None:
    if fresh.start < state.complete_to:
        raise LedgerError(f"{fresh} starts below {state.complete_to}, up to which all was read", offset=fresh.start)
    for attempt in {run.value for run in retries}:
        waiting = [
            OffsetRange(run.start, run.end)
            for run in state.pending
            if run.value.kind is PendingKind.RETRY and run.value.attempts == attempt - 1
        ]
        for run in subtract((run for run in retries if run.value == attempt), waiting):
            raise LedgerError(f"attempt {attempt} at offset {run.start} is not what waits there", offset=run.start)


def _attempted(
    fresh: OffsetRange, retries: Runs[int], attempts: Iterable[OutcomeRow], policy: Backoff, seed: str
) -> dict[int, Pending | None]:
    """Each attempted offset with what it is pending as, or None where it is settled."""
    planned = {offset: run.value for run in retries for offset in range(run.start, run.end)}
    touched: dict[int, Pending | None] = {}
    for row in attempts:
        expected = planned.get(row.offset, 1 if fresh.start <= row.offset < fresh.end else None)
        if row.attempt != expected:
            raise LedgerError(
                f"attempt {row.attempt} at offset {row.offset}, planned was {expected}", offset=row.offset
            )
        if row.offset in touched:
            raise LedgerError(f"two attempts at offset {row.offset} in one turn", offset=row.offset)
        touched[row.offset] = None if row.outcome.terminal else failed(row, policy, seed)
    return touched


def _decided(decisions: Iterable[OutcomeRow], touched: dict[int, Pending | None]) -> list[OffsetRange]:
    """Mark single decided offsets as settled in `touched`; returns the ranges that were decided whole."""
    holes = []
    for row in decisions:
        if not row.outcome.terminal:
            raise LedgerError(f"a decision can't be {row.outcome}", offset=row.offset)
        if row.end_offset is None:
            touched[row.offset] = None
        else:
            holes.append(OffsetRange(row.offset, row.end_offset))
    return _joined(holes)


def failed(row: OutcomeRow, policy: Backoff, seed: str = "") -> Pending:
    """The pending state of a failed attempt: a retry with its due time, or a dead letter when there is no next.

    `seed` names the partition (lane, epoch, topic, partition), so that jitter is the same whenever this is asked again.
    """
    due = None
    if row.error_class != ErrorClass.DEAD:
        due = policy.next_attempt(row.attempt, row.handled_at, row.error_class, f"{seed}/{row.offset}/{row.attempt}")
    if due is None:
        return Pending(PendingKind.DEAD_LETTER, row.attempt, None, row.error_class)
    return Pending(PendingKind.RETRY, row.attempt, due, row.error_class)


def _joined(holes: Iterable[OffsetRange]) -> list[OffsetRange]:
    joined: list[OffsetRange] = []
    for hole in sorted(holes):
        if joined and hole.start <= joined[-1].end:
            joined[-1] = OffsetRange(joined[-1].start, max(joined[-1].end, hole.end))
        else:
            joined.append(hole)
    return joined


def _check_passed_over(complete_to: int, start: int, holes: Sequence[OffsetRange]) -> None:
    passed = [Run(complete_to, start, None)] if complete_to < start else []
    for run in subtract(passed, holes):
        raise LedgerError(f"offsets [{run.start}, {run.end}) would be passed over undecided", offset=run.start)
