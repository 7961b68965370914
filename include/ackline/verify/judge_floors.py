"""Rules on the state that settlements leave, and on the committed offsets of the group.

The state is the floor, complete_to and the pending offsets. The metadata of a commit names a ledger, a pipeline, an
epoch and a turn.
"""

import json
from itertools import pairwise

import numpy as np

from ackline.verify.evidence import NEVER, Evidence, Findings, Ints, Log, TopicPartition, Turn, count_covering
from ackline.verify.lane_history import LaneHistory, PartitionHistory


def check_floor_is_lowest_pending(partition: PartitionHistory, found: Findings) -> None:
    """I4: the floor is the lowest pending offset that is not released, or complete_to if there is none.

    What is released is what the settlement has stored as that, whatever the pipeline file says today.
    """
    for settlement in partition.settlements:
        lowest = settlement.lowest_holding
        if settlement.floor != lowest:
            what = f"is the floor of turn {settlement.turn}, but by its pending offsets and complete_to it is {lowest}"
            found.add_offsets("I4", what, partition.tp, [settlement.floor])


def check_each_turn_goes_on_from_the_one_before(partition: PartitionHistory, found: Findings) -> None:
    """I3: no turn lowers the floor or complete_to of an epoch, and each continues from the floor of the turn before it.

    I11: a void turn keeps both.
    """
    for before, settlement in pairwise(partition.settlements):
        if settlement.floor < before.floor:
            what = f"turn {settlement.turn} ({settlement.kind}) lowers the floor from {before.floor}"
            found.add_offsets("I3", what, partition.tp, [settlement.floor])
        if settlement.old_floor != before.floor:
            what = f"is the old floor of turn {settlement.turn}, but turn {before.turn} left the floor {before.floor}"
            found.add_offsets("I3", what, partition.tp, [settlement.old_floor])
        if settlement.complete_to < before.complete_to:
            what = f"turn {settlement.turn} lowers complete_to from {before.complete_to}"
            found.add_offsets("I3", what, partition.tp, [settlement.complete_to])
        same = (settlement.floor, settlement.complete_to) == (before.floor, before.complete_to)
        if settlement.kind == "void" and not same:
            what = f"turn {settlement.turn} is void, but changes the floor or complete_to"
            found.add_offsets("I11", what, partition.tp, [settlement.floor])


def check_floor_passes_only_settled_offsets(partition: PartitionHistory, found: Findings) -> None:
    """I1: after no turn was the floor above an offset that was not settled yet, unless it was released by then."""
    turns = partition.offset_turns
    passed = _turns_that_pass(turns.offset, [(s.turn, s.floor) for s in partition.settlements])
    is_early = (turns.settled < NEVER) & (passed < turns.settled)
    for settlement in partition.settlements:
        if settlement.released:
            is_early &= ~(settlement.is_released(turns.offset) & (passed >= settlement.turn))
    early = turns.offset[is_early]
    found.add_offsets("I1", "the floor passed it before the turn that settled it", partition.tp, early)


def check_complete_to_passes_only_read_offsets(partition: PartitionHistory, found: Findings) -> None:
    """I4: complete_to never passes an offset before the turn that first read it.

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
    unsettled = turns.where(waited)
    for settlement in partition.settlements:
        turn, pending = settlement.turn, settlement.pending
        is_unread = (pending.attempts == 0) & ~pending.held
        unread = pending.where(is_unread)
        early = turns.offset[(unread.count_covering(turns.offset) > 0) & (turns.first <= turn)]
        found.add_offsets("I4", f"is pending as unread after turn {turn}, but has an outcome", partition.tp, early)
        pending = pending.where(~is_unread)
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


def named_turn(log: Log, pipeline: str, ledger: str | None) -> Turn | None:
    """Return the turn that a commit names; None if it is of another pipeline or ledger, or not of Ackline at all.

    With `ledger` None, a commit of any ledger of the pipeline is accepted.
    """
    try:
        metadata = json.loads(log.metadata)
        if metadata["pipeline"] != pipeline or ledger not in (None, metadata["ledger"]):
            return None
        return int(metadata["epoch"]), int(metadata["n"])
    except (ValueError, TypeError, KeyError):
        return None


def own_turn(evidence: Evidence, log: Log) -> Turn | None:
    """Return the turn that the commit names; None if it is not a commit of the pipeline and ledger that are judged."""
    return named_turn(log, evidence.pipeline, evidence.ledger)


def check_commit_is_of_this_ledger(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I1: no other ledger of this pipeline has committed, so the tables are not an old or a wrong copy."""
    evidence = lane.evidence
    foreign = own_turn(evidence, log) is None and named_turn(log, evidence.pipeline, None) is not None
    if foreign and log.committed is not None:
        found.add_offsets("I1", "is committed by another ledger of this pipeline", tp, [log.committed])


def check_commit_is_the_floor(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I1: a committed offset is the floor of the settled turn that its metadata names, or the claim of that turn."""
    named = own_turn(lane.evidence, log)
    if named is None or log.committed is None:
        return
    epoch, turn = named
    partition = lane.partition(epoch, tp)
    floor = floor_after(partition, turn)
    if log.committed == claimed_offset(partition, turn):
        return
    if floor is None or turn not in settled_turns(lane, epoch) | {0}:
        what = f"is committed for turn {turn} of epoch {epoch}, which is not settled"
        found.add_offsets("I1", what, tp, [log.committed])
    if floor is not None and log.committed != floor:
        side = "above" if log.committed > floor else "below"
        what = f"is committed, {side} the floor {floor} of the turn that its metadata names"
        found.add_offsets("I1", what, tp, [log.committed])


def check_all_below_commit_is_settled(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I2: each record below the committed offset has a terminal outcome, or the turn that the commit names has released
    it, so the commit loses nothing.

    A claim is committed before its turn is settled: then only the records below the floor before it must be settled.
    """
    named = own_turn(lane.evidence, log)
    if named is None or log.committed is None:
        return
    epoch, turn = named
    partition = lane.partition(epoch, tp)
    is_claim = log.committed == claimed_offset(partition, turn)
    end = floor_after(partition, turn - 1) if is_claim else log.committed
    if partition.start is None or end is None:
        return
    received, terminal = partition.offsets_between(partition.start, end), partition.outcomes.terminal
    settled = count_covering(received, terminal.offset, terminal.end) + partition.counted.count_covering(received)
    released = [s.is_released(received) for s in partition.settlements_before(turn + 1)[-1:]]
    left = received[(settled == 0) & ~np.logical_or.reduce([*released, np.zeros(len(received), np.bool_)])]
    found.add_offsets("I2", "is below the committed offset, but has no terminal outcome", tp, left)


def settled_turns(lane: LaneHistory, epoch: int) -> set[int]:
    """Return the turns of an epoch that have a settlement of any partition."""
    return {s.turn for (of_epoch, _), settlements in lane.settlements.items() if of_epoch == epoch for s in settlements}


def floor_after(partition: PartitionHistory, turn: int) -> int | None:
    """Return the floor of a turn, or of the last settled one before it; None if the partition has no start either."""
    settlements = partition.settlements_before(turn + 1)
    return settlements[-1].floor if settlements else partition.start


def claimed_offset(partition: PartitionHistory, turn: int) -> int | None:
    """Return the offset that a turn under at most once commits before its hand-out; None under other guarantees, and
    for a waived turn, whose end no process may commit.

    It is the end of the turn's plan. A plan that reads nothing of the partition claims the floor before the turn.
    """
    plan = next((plan for plan in partition.plans if plan.turn == turn and plan.at_most_once), None)
    if plan is None or turn in partition.waived:
        return None
    if plan.start < plan.end:
        return plan.end
    before = partition.settlements_before(turn)
    return before[-1].floor if before else floor_after(partition, turn)


def judge_commits(lane: LaneHistory, found: Findings) -> None:
    """Apply all rules on committed offsets. Only the lane `live` commits."""
    if lane.evidence.lane != "live":
        return
    for tp, log in lane.evidence.logs.items():
        check_commit_is_of_this_ledger(lane, tp, log, found)
        check_commit_is_the_floor(lane, tp, log, found)
        check_all_below_commit_is_settled(lane, tp, log, found)
