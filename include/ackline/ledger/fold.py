"""The ledger of one partition: its state, and the fold that moves the state forward by one turn. Pure.

A turn reads a fresh range and due retries (`ackline.ledger.planning`). Its outcomes are stored only once the whole
range has been read, so an offset of the range without a row was acked or holds no record. The ledger therefore keeps
only what is pending, and the fold costs O(pending + rows that did not succeed), never O(records read). settle folds the
outcomes and stores the state in the table `settlements`. The floor of the state is the only offset that settle may
commit.

A turn may fail as a whole, so the fold works on columns: `OutcomeColumns` in, `PendingRuns` out, some tens of bytes for
each row.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ackline.errors import LedgerError
from ackline.ledger.backoff import Backoff, RetryPolicy
from ackline.ledger.copies import NO_COPIES, Copies
from ackline.ledger.fold_few import due_after, fold_few
from ackline.ledger.offsets import (
    NO_RUNS,
    ChosenRanges,
    Int64s,
    OffsetRange,
    OffsetRuns,
    Ranges,
    ValuedRange,
    ValuedRanges,
    arrays_of,
    clipped,
    index_of_range,
    intersect,
    ranges_of,
    spread,
    subtract,
    union,
)
from ackline.ledger.order import has_no_lower, is_held_back
from ackline.ledger.outcomes import Outcome, OutcomeColumns, OutcomeRow
from ackline.ledger.pending import (
    LATEST,
    NEVER,
    NOTHING_PENDING,
    UNKNOWN_KEY,
    Pending,
    PendingKind,
    PendingRuns,
    PendingState,
    RetryRuns,
    time_of,
)

__all__ = ["MOST_GAP_RANGES", "OutcomeRow", "PartitionState", "Pending", "PendingKind", "fold"]

MOST_GAP_RANGES = 16
"""How many ranges of gaps a state holds. A limit, because each turn above a floor that stays may add one."""


@dataclass(frozen=True, slots=True, init=False)
class PartitionState:
    """The ledger of one partition: each existing offset below `complete_to` is settled or pending, never both (I4)."""

    complete_to: int
    """The end of what is proved to have been read and handled whole."""
    pending: PendingRuns
    """The offsets below `complete_to` that are not settled."""
    gaps_above_floor: ValuedRanges[int]
    """Ranges between the floor and `complete_to`, each with how many of its offsets gave no record to a handler: gaps,
    and ranges that expired or were skipped. Their places inside the range are not known. The planning counts the
    records above the floor with it; it settles nothing."""
    copies: Copies
    """Where the copies of pending records are that were rescued from retention; of no other record."""
    released: OffsetRuns
    """The pending offsets that do not hold the floor, because a settlement has stored where their copies are. An offset
    stays here until it is settled, whatever the pipeline file becomes and whatever becomes of the copy: otherwise the
    floor would move back (I3)."""

    def __init__(
        self,
        complete_to: int,
        pending: Iterable[ValuedRange[Pending]] = NOTHING_PENDING,
        gaps_above_floor: ValuedRanges[int] = (),
        pending_keys: Int64s | None = None,
        copies: Copies = NO_COPIES,
        released: OffsetRuns = NO_RUNS,
    ) -> None:
        runs = PendingRuns.of(pending)
        object.__setattr__(self, "complete_to", complete_to)
        object.__setattr__(self, "pending", runs if pending_keys is None else runs.with_keys(pending_keys))
        object.__setattr__(self, "gaps_above_floor", gaps_above_floor)
        # Each fold and each action makes its state here, so no step carries the copy of a settled record on.
        object.__setattr__(self, "copies", copies.within(runs.ranges))
        object.__setattr__(self, "released", released.within(runs.ranges))

    @property
    def uncommitted(self) -> int:
        """How many records were read above the floor, pending or settled: what the window limits (I8). At most this
        many; fewer if the floor has moved into a range of `gaps_above_floor`."""
        return self.complete_to - self.floor - sum(gaps.value for gaps in self.gaps_above_floor)

    @property
    def floor(self) -> int:
        """The lowest offset that is not settled and not released: what may be committed (I1). `complete_to` if there
        is none."""
        # Not by an object of the first range: a turn may have thousands of partitions, and each step takes the floor of
        # each several times.
        if len(self.released):
            return int(subtract(self.pending.ranges, self.released.ranges)[0].min(initial=self.complete_to))
        return int(self.pending.starts[0]) if self.pending else self.complete_to

    @property
    def holding(self) -> PendingRuns:
        """What is pending and not released: the lowest of it holds the floor."""
        return self.pending.minus(self.released.ranges) if len(self.released) else self.pending

    def with_copies(self, copies: Copies, release: Ranges | None = None) -> "PartitionState":
        """Returns the state with these copies, in which the pending offsets of `release` do not hold the floor any
        more. The caller releases only what has a copy in the same settlement, so that no commit passes a record before
        its copy can be found (S89)."""
        released = self.released if release is None else self.released.plus(release)
        state = replace(self, copies=copies, released=released)
        # What lies below the new floor is no part of the window any more, so its gaps are not to be subtracted (I8).
        return replace(state, gaps_above_floor=_gaps_above(state.floor, state.gaps_above_floor))

    @property
    def first_without_copy(self) -> int:
        """The lowest offset that is not settled and has no copy: what retention takes first that is lost then."""
        starts = subtract(self.pending.ranges, self.copies.ranges)[0] if len(self.copies) else self.pending.starts
        return int(starts.min(initial=self.complete_to))

    @property
    def pending_keys(self) -> Int64s | None:
        """What is known of the keys of `pending`, as the table of settlements stores it; None if no key is known."""
        return self.pending.keys

    def pending_by_kind(self) -> dict[PendingKind, int]:
        """How many offsets are pending of each kind, zeros included."""
        return {kind: self.pending.of_kind(kind).offsets for kind in PendingKind}

    def unsettled_in(self, chosen: Iterable[OffsetRange]) -> int:
        """How many offsets are not settled in a lane that reads `chosen` ranges: those pending, and those not read."""
        return self.pending.offsets + sum(max(0, run.end - max(run.start, self.complete_to)) for run in chosen)

    @property
    def next_due(self) -> datetime | None:
        """The earliest time at which a turn has something to do here: a retry is due, a deadline of a record in flight
        passes, or what has held back a record is settled. None if there is none."""
        pending = self.pending
        if len(held_back := pending.in_state(is_held_back)) and held_back.any():
            pending = pending.chosen(~held_back | has_no_lower(pending))
        return time_of(int(pending.dues.min(initial=NEVER)))


def fold(
    state: PartitionState,
    fresh: OffsetRange,
    retries: ValuedRanges[int],
    rows: Iterable[OutcomeRow],
    policy: Backoff,
    seed: str = "",
    gaps: int = 0,
    chosen: ChosenRanges = None,
) -> PartitionState:
    """Returns the state after a turn that read the range `fresh` and made `retries` (value: the number of the attempt).

    `rows` are the turn's outcomes and decisions, in any order (S5). Each retry, each decision and each fresh record
    that did not succeed needs its row. A fresh acked record needs none: replay has proved that it read the whole range,
    so an offset without a row is acked or a gap (S6). A decision overrides an attempt at the same offset. A row
    with an answer ends or renews an attempt that is in flight, of this turn or of an earlier one. `seed` names the
    partition (lane, epoch, topic, partition) for the jitter. `gaps` is how many offsets of `fresh` held no record,
    or 0 if that is not known. `chosen` are the ranges that are part of the lane; None means every offset.

    Raises LedgerError if the turn and its rows do not fit this state; each misfit would lose a record silently or
    un-ack one (I2, I4, S7).
    """
    columns = OutcomeColumns.of(rows)
    _check_no_copy_is_given_up(state.copies, columns)
    pending = fold_few(state.complete_to, state.pending, fresh, retries, columns, policy, seed, chosen)
    if pending is None:
        pending = _pending_after_turn(state, fresh, retries, columns, policy, seed, chosen)
    # fresh.end is at or above the old complete_to, and each offset that stops being pending has a terminal outcome:
    # neither complete_to nor the floor moves back (I3), and an acked offset above a pending one does not raise the
    # floor (S8). A released offset stays released while it is pending, so it does not come back to hold the floor.
    after = PartitionState(fresh.end, pending, copies=state.copies, released=state.released)
    without_records = ValuedRange(state.complete_to, fresh.end, fresh.start - state.complete_to + gaps)
    above = _gaps_above(after.floor, [*state.gaps_above_floor, without_records])
    return replace(after, gaps_above_floor=above)


def _check_no_copy_is_given_up(copies: Copies, rows: OutcomeColumns) -> None:
    """Prove that no record is settled as gone that has a copy: a process that does not read copies, because it is of an
    earlier version, has found the original gone (S88)."""
    if not len(copies):
        return
    gone = rows.where(rows.has(Outcome.EXPIRED) | rows.has(Outcome.COMPACTED))
    for offset in intersect(copies.ranges, union((gone.offsets, gone.ends)))[0][:1].tolist():
        raise LedgerError(f"offset {offset} is settled as gone, and has a copy in the rescue topic", offset=offset)


def _pending_after_turn(
    state: PartitionState,
    fresh: OffsetRange,
    retries: ValuedRanges[int],
    columns: OutcomeColumns,
    policy: Backoff,
    seed: str,
    chosen: ChosenRanges,
) -> PendingRuns:
    pending = state.pending
    planned = _Retries.of(retries)
    _check_turn_starts_here(state.complete_to, pending, fresh, planned)
    held_back = columns.has(Outcome.HELD_BACK)
    decided = _decided_ranges(columns.where((columns.attempts == 0) & ~held_back))
    attempts = columns.where((columns.attempts != 0) & ~columns.answered)
    if held_back.any():
        attempts = OutcomeColumns.concat([attempts, _with_numbers(columns.where(held_back), fresh, planned)])
    attempts = _by_offset(attempts)
    answers = _by_offset(columns.where(columns.answered))
    _check_attempts_were_planned(attempts, fresh, planned)
    _check_each_retry_is_answered(planned, attempts, decided)
    _check_nothing_skipped_over(state.complete_to, fresh.start, decided, chosen)

    # An attempt comes before its answer, whichever row comes first: the handler hands a record on, then it is answered.
    still_pending = _pending_after(attempts, pending, policy, seed)
    if len(answers):
        _check_answers_end_attempts(answers, still_pending)
        still_pending = _pending_after(answers, still_pending, policy, seed)
    return still_pending.minus(decided)


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


@dataclass(frozen=True, slots=True)
class _Retries:
    """Each planned retry, by rising offset."""

    offsets: Int64s
    attempts: Int64s

    @classmethod
    def of(cls, retries: ValuedRanges[int]) -> "_Retries":
        runs = RetryRuns.of(retries)
        offsets, index = spread(runs.ranges)
        return cls(offsets, runs.attempts[index])


def _check_turn_starts_here(complete_to: int, pending: PendingRuns, fresh: OffsetRange, retries: _Retries) -> None:
    """Prove that the turn was planned from this state and not from an older one (S7)."""
    # Offsets below complete_to are settled or pending: a row of a second fresh read would un-ack a settled one (I4).
    if fresh.start < complete_to:
        raise LedgerError(
            f"the fresh range {fresh} starts below {complete_to}, and all offsets below that were read already",
            offset=fresh.start,
        )
    # A retry must be the attempt that is pending at its offset. Otherwise one of three holds: the offset is settled,
    # and a failure would un-ack it; or this attempt was made already (I5); or only the dead letter is missing, and the
    # handler must not get the record again.
    read_again = (PendingKind.RETRY, PendingKind.HELD_BACK)
    made = [state.attempts if state.kind in read_again else None for state in pending.states]
    next_attempts = np.array([-1 if attempts is None else attempts + 1 for attempts in made], dtype=np.int64)
    run = index_of_range(retries.offsets, pending.ranges)
    expected = np.full(len(run), -1, dtype=np.int64)
    expected[run >= 0] = next_attempts[pending.codes[run[run >= 0]]]
    for index in np.flatnonzero(expected != retries.attempts)[:1].tolist():
        offset, attempt = int(retries.offsets[index]), int(retries.attempts[index])
        raise LedgerError(
            f"attempt {attempt} was planned at offset {offset}, where no such attempt is pending", offset=offset
        )


def _planned_attempts(offsets: Int64s, fresh: OffsetRange, retries: _Retries) -> Int64s:
    """Returns the number of the attempt that was planned at each offset, 0 where none was."""
    expected = np.where((fresh.start <= offsets) & (offsets < fresh.end), 1, 0)
    if len(retries.offsets):
        nearest = np.minimum(np.searchsorted(retries.offsets, offsets), len(retries.offsets) - 1)
        retried = retries.offsets[nearest] == offsets
        expected[retried] = retries.attempts[nearest[retried]]
    return expected


def _with_numbers(held_back: OutcomeColumns, fresh: OffsetRange, retries: _Retries) -> OutcomeColumns:
    """Returns the rows of records that were held back, each with the number of the attempt that was planned and not
    made. One at an offset that was not planned gets a number that no attempt has."""
    numbered = held_back.where(np.arange(len(held_back)))
    planned = _planned_attempts(numbered.offsets, fresh, retries)
    numbered.attempts = np.where(planned > 0, planned, -1).astype(np.int32)
    return numbered


def _check_attempts_were_planned(attempts: OutcomeColumns, fresh: OffsetRange, retries: _Retries) -> None:
    """Prove that each of the attempts, which are sorted by offset, was planned, and was made once."""
    expected = _planned_attempts(attempts.offsets, fresh, retries)
    # A row that this turn did not plan is of another turn, and would settle or un-ack what this one has not read.
    for index in np.flatnonzero(expected != attempts.attempts)[:1].tolist():
        offset = int(attempts.offsets[index])
        raise LedgerError(
            f"the outcome at offset {offset} is of attempt {attempts.attempts[index]}, planned was "
            f"{int(expected[index]) or None}",
            offset=offset,
        )
    # With two outcomes of one attempt the state would depend on the order of the rows (S5).
    for offset in attempts.offsets[1:][attempts.offsets[1:] == attempts.offsets[:-1]][:1].tolist():
        raise LedgerError(f"two attempts at offset {offset} in one turn", offset=offset)


def _by_offset(rows: OutcomeColumns) -> OutcomeColumns:
    return rows.where(np.argsort(rows.offsets, kind="stable"))


def _check_answers_end_attempts(answers: OutcomeColumns, pending: PendingRuns) -> None:
    """Prove that each answer is for the attempt that is in flight at its offset, and that there is one answer each.

    Otherwise the attempt was ended before: a second end would settle or un-ack a record that is settled, or one that is
    tried again (I4)."""
    made = [state.attempts if state.kind is PendingKind.IN_FLIGHT else -1 for state in pending.states]
    run = index_of_range(answers.offsets, pending.ranges)
    in_flight = np.full(len(run), -1, dtype=np.int64)
    in_flight[run >= 0] = np.array(made, dtype=np.int64)[pending.codes[run[run >= 0]]]
    for index in np.flatnonzero(in_flight != answers.attempts)[:1].tolist():
        offset, attempt = int(answers.offsets[index]), int(answers.attempts[index])
        raise LedgerError(f"attempt {attempt} was answered at offset {offset}, but is not in flight", offset=offset)
    for offset in answers.offsets[1:][answers.offsets[1:] == answers.offsets[:-1]][:1].tolist():
        raise LedgerError(f"two answers at offset {offset} in one turn", offset=offset)


def _pending_after(rows: OutcomeColumns, pending: PendingRuns, policy: Backoff, seed: str) -> PendingRuns:
    """What is pending after these rows: all of them end what was pending at their offsets, and some begin anew."""
    if not len(rows):  # as in most partitions of a turn that has thousands
        return pending
    rows = _with_keys(rows, pending)
    left = pending.minus((rows.offsets, rows.offsets + 1))
    left = left.plus(_pending_after_failures(rows.with_outcome(Outcome.FAILED), policy, seed))
    if len(in_flight := rows.with_outcome(Outcome.IN_FLIGHT)):
        left = left.plus(_in_flight(in_flight))
    held_back = rows.with_outcome(Outcome.HELD_BACK)
    return left.plus(_held_back(held_back, pending)) if len(held_back) else left


def _with_keys(rows: OutcomeColumns, pending: PendingRuns) -> OutcomeColumns:
    """Returns the rows, each with the key that is known at its offset: an answer from outside comes without one."""
    if pending.keys is None and rows.keys is None:
        return rows
    keyed, run = rows.where(np.arange(len(rows))), index_of_range(rows.offsets, pending.ranges)
    known = np.where(rows.answered, UNKNOWN_KEY, rows.known_keys)
    known[run >= 0] = np.where(
        pending.known_keys[run[run >= 0]] == UNKNOWN_KEY, known[run >= 0], pending.known_keys[run[run >= 0]]
    )
    keyed.keys = known
    return keyed


def _distinct(*columns: npt.NDArray[Any]) -> tuple[list[tuple[int, ...]], npt.NDArray[np.int32]]:
    """Returns the distinct rows of columns of small numbers, in order, and for each row its index among them."""
    # As one number a row: sorting millions of rows of several columns takes ten times as long.
    rows = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        rows = rows * (int(column.max(initial=0)) + 1) + column
    _, first, index = np.unique(rows, return_index=True, return_inverse=True)
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), index.astype(np.int32)


def _in_flight(rows: OutcomeColumns) -> PendingRuns:
    """Each row as pending until its answer, or until its deadline. Keeps the error class of a skip in its tree."""
    kinds, codes = _distinct(rows.attempts, rows.codes)
    states = [PendingState(PendingKind.IN_FLIGHT, attempt, rows.results[result][1]) for attempt, result in kinds]
    return PendingRuns(rows.offsets, rows.offsets + 1, codes, rows.deadlines, states, rows.keys).joined()


def _held_back(rows: OutcomeColumns, before: PendingRuns) -> PendingRuns:
    """Each row as pending until what holds it back is settled: the attempt that was planned was not made. Its due time
    is since when it waits, also if it is held back again. So of all that a turn may read the longest waiting come
    first, and of a key the lowest."""
    kinds, codes = _distinct(rows.attempts)
    states = [PendingState(PendingKind.HELD_BACK, attempt - 1, None) for (attempt,) in kinds]
    since, run = rows.handled_at.copy(), index_of_range(rows.offsets, before.ranges)
    waited = (run >= 0) & before.in_state(is_held_back)[run] if len(before) else run >= 0
    since[waited] = np.minimum(since[waited], before.dues[run[waited]])
    return PendingRuns(rows.offsets, rows.offsets + 1, codes, since, states, rows.keys).joined()


def _pending_after_failures(failed: OutcomeColumns, policy: Backoff, seed: str) -> PendingRuns:
    """For each row a retry with its due time, or a dead letter if no attempt is left (I5, S13).

    The seed makes the jitter the same whenever settle computes this again (I9)."""
    dues = _dues(failed, policy, seed)
    kinds, codes = _distinct(failed.attempts, failed.codes, dues != NEVER)
    states = [
        PendingState(PendingKind.RETRY if has_next else PendingKind.DEAD_LETTER, attempt, failed.results[result][1])
        for attempt, result, has_next in kinds
    ]
    return PendingRuns(failed.offsets, failed.offsets + 1, codes, dues, states, failed.keys).joined()


def _dues(failed: OutcomeColumns, policy: Backoff, seed: str) -> Int64s:
    """Returns the due time of each row, in microseconds since 1970; NEVER if it gets no further attempt."""
    if not isinstance(policy, RetryPolicy) or policy.uses_seed:
        rows = (
            (offset, attempt, time, failed.results[code][1]) for offset, _, attempt, time, code, *_ in failed.values()
        )
        return np.fromiter((due_after(*row, policy, seed) for row in rows), np.int64, len(failed))
    # Without chance the wait depends on attempt and error class alone, and millions of rows have few of these.
    kinds, kind_of_row = _distinct(failed.attempts, failed.codes)
    of_kinds = (due_after(0, attempt, 0, failed.results[result][1], policy, seed) for attempt, result in kinds)
    waits = np.fromiter(of_kinds, np.int64, len(kinds))[kind_of_row]
    dues: Int64s = np.where(waits == NEVER, NEVER, np.minimum(failed.handled_at + np.minimum(waits, LATEST), LATEST))
    return dues


def _decided_ranges(decisions: OutcomeColumns) -> Ranges:
    """The offsets that settle has decided; rows may overlap."""
    # A decision ends an offset. One that left it open would take the offset out of pending without settling it.
    for row in decisions.where(np.flatnonzero(~decisions.terminal)[:1]):
        raise LedgerError(
            f"the decision at offset {row.offset} is {row.outcome}, which settles nothing", offset=row.offset
        )
    return union((decisions.offsets, decisions.ends))


def _check_each_retry_is_answered(retries: _Retries, attempts: OutcomeColumns, decided: Ranges) -> None:
    """Prove that each retry has an outcome or a decision. Retries are read offset by offset, so no range proves them:
    to count a missing row as a success would pass over a record that was perhaps never handled (S8)."""
    answered = np.isin(retries.offsets, attempts.offsets, assume_unique=True)
    answered |= index_of_range(retries.offsets, decided) >= 0
    for offset in retries.offsets[~answered][:1].tolist():
        raise LedgerError(f"the turn has no outcome for the retry at offset {offset}", offset=offset)


def _check_nothing_skipped_over(complete_to: int, start: int, decided: Ranges, chosen: ChosenRanges) -> None:
    """Prove that each offset between `complete_to` and the fresh range has a decision, such as `expired`. The new
    complete_to is above them: without a decision they would be neither settled nor pending (I4). A backfill lane also
    passes over what is no part of it."""
    starts, ends, _ = subtract(arrays_of(clipped(chosen, complete_to, start)), decided)
    for skipped in ranges_of((starts[:1], ends[:1])):
        raise LedgerError(
            f"offsets {skipped} would be skipped over: the turn neither read nor decided them", offset=skipped.start
        )
