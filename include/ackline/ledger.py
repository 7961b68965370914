"""The ledger of one partition: its state, and the fold that moves the state forward by one turn. Pure.

A turn reads a fresh range and due retries (`ackline.planning`). Its outcomes are stored only once the whole range has
been read, so an offset of the range without a row was acked or holds no record. The ledger therefore keeps only what is
pending, and the fold costs O(pending + rows that did not succeed), never O(records read). settle folds the outcomes
and stores the state in the table `settlements`. The floor of the state is the only offset that settle may commit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from ackline.backoff import Backoff
from ackline.errors import LedgerError
from ackline.offsets import OffsetRange, ValuedRange, ValuedRanges, merge, subtract
from ackline.outcome import ErrorClass, Outcome

MOST_GAP_RANGES = 16
"""How many ranges of gaps a state holds. A limit, because each turn above a floor that stays may add one."""


class PendingKind(StrEnum):
    """Why an offset is not settled. The lowest pending offset holds the floor."""

    RETRY = "retry"
    """It failed and is retried when due. The only kind that the handler gets again."""
    DEAD_LETTER = "dead_letter"
    """It has no attempt left, or the handler declared it dead. The broker has not acknowledged its dead letter yet."""
    IN_FLIGHT = "in_flight"
    """The handler has handed it on; the answer is not there yet."""


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


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The ledger of one partition: each existing offset below `complete_to` is settled or pending, never both (I4)."""

    complete_to: int
    """The end of what is proved to have been read and handled whole."""
    pending: ValuedRanges[Pending] = ()
    """The offsets below `complete_to` that are not settled."""
    gaps_above_floor: ValuedRanges[int] = ()
    """Ranges between the floor and `complete_to`, each with how many of its offsets gave no record to a handler: gaps,
    and ranges that expired or were skipped. Their places inside the range are not known. The planning counts the
    records above the floor with it; it settles nothing."""

    @property
    def uncommitted(self) -> int:
        """How many records were read above the floor, pending or settled: what the window limits (I8). At most this
        many; fewer if the floor has moved into a range of `gaps_above_floor`."""
        return self.complete_to - self.floor - sum(gaps.value for gaps in self.gaps_above_floor)

    @property
    def floor(self) -> int:
        """The lowest offset that is not settled: what may be committed (I1)."""
        return self.pending[0].start if self.pending else self.complete_to

    def pending_by_kind(self) -> dict[PendingKind, int]:
        """How many offsets are pending of each kind, zeros included."""
        counts = dict.fromkeys(PendingKind, 0)
        for pending in self.pending:
            counts[pending.value.kind] += len(pending)
        return counts

    @property
    def next_due(self) -> datetime | None:
        """The earliest due time of the pending retries, or None if there are none."""
        return min((pending.value.due for pending in self.pending if pending.value.due is not None), default=None)


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

    @property
    def end(self) -> int:
        """The exclusive end of the row's offsets."""
        return self.offset + 1 if self.end_offset is None else self.end_offset


def fold(
    state: PartitionState,
    fresh: OffsetRange,
    retries: ValuedRanges[int],
    rows: Iterable[OutcomeRow],
    policy: Backoff,
    seed: str = "",
    gaps: int = 0,
) -> PartitionState:
    """Returns the state after a turn that read the range `fresh` and made `retries` (value: the number of the attempt).

    `rows` are the turn's outcomes and decisions, in any order (S5). Each retry, each decision and each fresh record
    that did not succeed needs its row. A fresh acked record needs none: replay has proved that it read the whole range,
    so an offset without a row is acked or a gap (S6). A decision overrides an attempt at the same offset. `seed` names
    the partition (lane, epoch, topic, partition) for the jitter. `gaps` is how many offsets of `fresh` held no record,
    or 0 if that is not known.

    Raises LedgerError if the turn and its rows do not fit this state; each misfit would lose a record silently or
    un-ack one (I2, I4, S7).
    """
    _check_turn_starts_here(state, fresh, retries)
    attempts: list[OutcomeRow] = []
    decisions: list[OutcomeRow] = []
    for row in rows:
        (attempts if row.attempt else decisions).append(row)
    states = _states_of_attempts(fresh, retries, attempts, policy, seed)
    decided = _decided_ranges(decisions)
    _check_each_retry_is_answered(retries, states, decided)
    _check_nothing_skipped_over(state.complete_to, fresh.start, decided)

    attempted = [OffsetRange(offset, offset + 1) for offset in sorted(states)]
    still_pending = subtract(subtract(state.pending, attempted), decided)
    failed = (ValuedRange(o, o + 1, pending) for o, pending in sorted(states.items()) if pending is not None)
    # fresh.end is at or above the old complete_to, and each offset that stops being pending has a terminal outcome:
    # neither complete_to nor the floor moves back (I3), and an acked offset above a pending one does not raise the
    # floor (S8).
    after = PartitionState(fresh.end, merge(still_pending, subtract(failed, decided)))
    without_records = ValuedRange(state.complete_to, fresh.end, fresh.start - state.complete_to + gaps)
    return replace(after, gaps_above_floor=_gaps_above(after.floor, [*state.gaps_above_floor, without_records]))


def _gaps_above(floor: int, gaps: Iterable[ValuedRange[int]]) -> ValuedRanges[int]:
    """The part of `gaps` at or above the floor, as at most MOST_GAP_RANGES ranges.

    No step here adds gaps that are not there, so `PartitionState.uncommitted` never falls below the number of records.
    Where the floor is inside a range, the offsets below the floor may all be gaps: they are subtracted. A merged range
    has the same gaps, but subtracts the records that it now contains too. So the two ranges are merged that have the
    fewest records from the start of one to the start of the other. With none, a long gap that many turns have read,
    merging loses nothing.
    """
    above: list[ValuedRange[int]] = []
    for known in gaps:
        start = max(known.start, floor)
        left = known.value - (start - known.start)
        if left > 0:
            above.append(ValuedRange(start, known.end, left))
    while len(above) > 1:
        records = [second.start - first.start - first.value for first, second in pairwise(above)]
        fewest = min(records)
        if fewest > 0 and len(above) <= MOST_GAP_RANGES:
            break
        at = records.index(fewest)
        first, second = above[at : at + 2]
        above[at : at + 2] = [ValuedRange(first.start, second.end, first.value + second.value)]
    return tuple(above)


def _check_turn_starts_here(state: PartitionState, fresh: OffsetRange, retries: ValuedRanges[int]) -> None:
    """Prove that the turn was planned from this state and not from an older one (S7)."""
    # Offsets below complete_to are settled or pending: a row of a second fresh read would un-ack a settled one (I4).
    if fresh.start < state.complete_to:
        raise LedgerError(
            f"the fresh range {fresh} starts below {state.complete_to}, and all offsets below that were read already",
            offset=fresh.start,
        )
    # A retry must be the attempt that is pending at its offset. Otherwise one of three holds: the offset is settled,
    # and a failure would un-ack it; or this attempt was made already (I5); or only the dead letter is missing, and the
    # handler must not get the record again.
    for attempt in {retry.value for retry in retries}:
        waiting = [
            OffsetRange(pending.start, pending.end)
            for pending in state.pending
            if pending.value.kind is PendingKind.RETRY and pending.value.attempts == attempt - 1
        ]
        for unexpected in subtract((retry for retry in retries if retry.value == attempt), waiting):
            raise LedgerError(
                f"attempt {attempt} was planned at offset {unexpected.start}, where no such attempt is pending",
                offset=unexpected.start,
            )


def _states_of_attempts(
    fresh: OffsetRange, retries: ValuedRanges[int], attempts: Iterable[OutcomeRow], policy: Backoff, seed: str
) -> dict[int, Pending | None]:
    """Maps each offset that has an attempt to its state after it: pending, or None if the attempt settled it."""
    planned = {offset: retry.value for retry in retries for offset in range(retry.start, retry.end)}
    states: dict[int, Pending | None] = {}
    for row in attempts:
        expected = planned.get(row.offset, 1 if fresh.start <= row.offset < fresh.end else None)
        # A row that this turn did not plan is of another turn, and would settle or un-ack what this one has not read.
        if row.attempt != expected:
            raise LedgerError(
                f"the outcome at offset {row.offset} is of attempt {row.attempt}, planned was {expected}",
                offset=row.offset,
            )
        # With two outcomes of one attempt the state would depend on the order of the rows (S5).
        if row.offset in states:
            raise LedgerError(f"two attempts at offset {row.offset} in one turn", offset=row.offset)
        states[row.offset] = None if row.outcome.terminal else _pending_after_failure(row, policy, seed)
    return states


def _pending_after_failure(row: OutcomeRow, policy: Backoff, seed: str) -> Pending:
    """A retry with its due time, or a dead letter if no attempt is left (I5, S13).

    The seed makes the jitter the same whenever settle computes this again (I9)."""
    due = None
    if row.error_class != ErrorClass.DEAD:
        due = policy.next_attempt(row.attempt, row.handled_at, row.error_class, f"{seed}/{row.offset}/{row.attempt}")
    kind = PendingKind.DEAD_LETTER if due is None else PendingKind.RETRY
    return Pending(kind, row.attempt, due, row.error_class)


def _decided_ranges(decisions: Iterable[OutcomeRow]) -> list[OffsetRange]:
    """The offsets that settle has decided, as sorted, disjoint ranges; rows may overlap."""
    decided: list[OffsetRange] = []
    for row in sorted(decisions, key=lambda row: row.offset):
        # A decision ends an offset. One that left it open would take the offset out of pending without settling it.
        if not row.outcome.terminal:
            raise LedgerError(
                f"the decision at offset {row.offset} is {row.outcome}, which settles nothing", offset=row.offset
            )
        if decided and row.offset <= decided[-1].end:
            decided[-1] = OffsetRange(decided[-1].start, max(decided[-1].end, row.end))
        else:
            decided.append(OffsetRange(row.offset, row.end))
    return decided


def _check_each_retry_is_answered(
    retries: ValuedRanges[int], states: dict[int, Pending | None], decided: Sequence[OffsetRange]
) -> None:
    """Prove that each retry has an outcome or a decision. Retries are read offset by offset, so no range proves them:
    to count a missing row as a success would pass over a record that was perhaps never handled (S8)."""
    for retry in subtract(retries, decided):
        for offset in range(retry.start, retry.end):
            if offset not in states:
                raise LedgerError(f"the turn has no outcome for the retry at offset {offset}", offset=offset)


def _check_nothing_skipped_over(complete_to: int, start: int, decided: Sequence[OffsetRange]) -> None:
    """Prove that each offset between `complete_to` and the fresh range has a decision, such as `expired`. The new
    complete_to is above them: without a decision they would be neither settled nor pending (I4)."""
    passed = [ValuedRange(complete_to, start, None)] if complete_to < start else []
    for skipped in subtract(passed, decided):
        raise LedgerError(
            f"offsets [{skipped.start}, {skipped.end}) would be skipped over: the turn neither read nor decided them",
            offset=skipped.start,
        )
