"""Rules on the state that settlements leave: the floor, complete_to and the pending offsets."""

from itertools import pairwise

import numpy as np

from ackline.verify.arrays import NEVER, Ints
from ackline.verify.findings import Findings
from ackline.verify.lane_history import PartitionHistory
from ackline.verify.outcome_rows import OffsetTurns
from ackline.verify.turn_rows import Settlement


def check_floor_is_lowest_pending(partition: PartitionHistory, found: Findings) -> None:
    """I4: the floor is the lowest pending offset, or complete_to if nothing is pending."""
    for settlement in partition.settlements:
        lowest = int(min(settlement.pending.start, default=settlement.complete_to))
        if settlement.floor != lowest:
            what = f"is the floor of turn {settlement.turn}, but by its pending offsets and complete_to it is {lowest}"
            found.add_offsets("I4", what, partition.tp, [settlement.floor])


def check_floor_never_falls(partition: PartitionHistory, found: Findings) -> None:
    """I3: no turn lowers the floor of an epoch, and each turn continues from the floor of the turn before it."""
    for before, settlement in _successive_settlements(partition):
        if settlement.floor < before.floor:
            what = f"turn {settlement.turn} ({settlement.kind}) lowers the floor from {before.floor}"
            found.add_offsets("I3", what, partition.tp, [settlement.floor])
        if settlement.old_floor != before.floor:
            what = f"is the old floor of turn {settlement.turn}, but turn {before.turn} left the floor {before.floor}"
            found.add_offsets("I3", what, partition.tp, [settlement.old_floor])


def check_complete_to_never_falls(partition: PartitionHistory, found: Findings) -> None:
    """I3: no turn lowers the complete_to of an epoch."""
    for before, settlement in _successive_settlements(partition):
        if settlement.complete_to < before.complete_to:
            what = f"turn {settlement.turn} lowers complete_to from {before.complete_to}"
            found.add_offsets("I3", what, partition.tp, [settlement.complete_to])


def check_void_turns_change_nothing(partition: PartitionHistory, found: Findings) -> None:
    """I11: a void turn keeps the floor and complete_to of the turn before it."""
    for before, settlement in _successive_settlements(partition):
        same = (settlement.floor, settlement.complete_to) == (before.floor, before.complete_to)
        if settlement.kind == "void" and not same:
            what = f"turn {settlement.turn} is void, but changes the floor or complete_to"
            found.add_offsets("I11", what, partition.tp, [settlement.floor])


def _successive_settlements(partition: PartitionHistory) -> list[tuple[Settlement, Settlement]]:
    """Return each settlement of the epoch with the one before it."""
    return list(pairwise(partition.settlements))


def check_floor_passes_only_settled_offsets(partition: PartitionHistory, found: Findings) -> None:
    """I1: after no turn was the floor above an offset that was not settled yet."""
    turns = partition.offset_turns
    passed = _turns_that_pass(turns.offset, [(s.turn, s.floor) for s in partition.settlements])
    early = turns.offset[(turns.settled < NEVER) & (passed < turns.settled)]
    found.add_offsets("I1", "the floor passed it before the turn that settled it", partition.tp, early)


def check_complete_to_passes_only_read_offsets(partition: PartitionHistory, found: Findings) -> None:
    """I4: after no turn was complete_to above an offset whose first outcome came in a later turn.

    It is above the single offsets of a backfill lane from the start: they are pending until they are read.
    """
    if partition.reads_single_offsets:
        return
    turns = partition.offset_turns
    passed = _turns_that_pass(turns.offset, [(s.turn, s.complete_to) for s in partition.settlements])
    early = turns.offset[(turns.first < NEVER) & (passed < turns.first)]
    found.add_offsets("I4", "complete_to passed it before the turn of its first outcome", partition.tp, early)


def check_pending_offsets_after_each_turn(partition: PartitionHistory, found: Findings) -> None:
    """I4: after each turn, exactly the offsets that have an outcome but no terminal one are pending."""
    turns = partition.offset_turns
    waited = turns.settled > turns.first
    unsettled = OffsetTurns(turns.offset[waited], turns.first[waited], turns.settled[waited], turns.tried[waited])
    for settlement in partition.settlements:
        turn, pending = settlement.turn, settlement.pending
        unread = pending.where(pending.attempts == 0)
        early = turns.offset[(unread.count_covering(turns.offset) > 0) & (turns.first <= turn)]
        found.add_offsets("I4", f"is pending as unread after turn {turn}, but has an outcome", partition.tp, early)
        pending = pending.where(pending.attempts != 0)
        is_pending = pending.count_covering(unsettled.offset) > 0
        must_be = (unsettled.first <= turn) & (turn < unsettled.settled)
        what = f"has failed and is not settled, but is not pending after turn {turn}"
        found.add_offsets("I4", what, partition.tp, unsettled.offset[must_be & ~is_pending])
        # A range can hold millions of offsets, so the ranges become offsets only if their size proves a violation.
        if pending.size > int((must_be & is_pending).sum()):
            spread = [np.arange(start, end) for start, end in zip(pending.start, pending.end, strict=True)]
            what = f"is pending after turn {turn}, but its outcomes do not make it so"
            found.add_offsets("I4", what, partition.tp, np.setdiff1d(np.concatenate(spread), unsettled.offset[must_be]))


def _turns_that_pass(offsets: Ints, bounds: list[tuple[int, int]]) -> Ints:
    """Return, for each offset, the first turn whose bound is above it; NEVER if there is none.

    `bounds` are turns and their floor or complete_to. A bound that falls is taken as the highest one so far.
    """
    turns = np.array([*(turn for turn, _ in bounds), NEVER], dtype=np.int64)
    highest = np.maximum.accumulate(np.array([bound for _, bound in bounds], dtype=np.int64))
    return turns[np.searchsorted(highest, offsets, "right")]
