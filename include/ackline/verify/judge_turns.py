"""Rules on turns, and on a pipeline that must be finished (`--settled`).

Each turn has one plan and one settlement, and reads the offsets that its plan contains. In a finished pipeline nothing
is open, pending or behind.
"""

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ackline.verify.evidence import (
    NEVER,
    Evidence,
    Findings,
    Ints,
    Log,
    TopicPartition,
    count_covering,
    find_uncovered,
    slice_between,
    to_ranges,
)
from ackline.verify.judge_floors import own_turn
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.rows import DEAD, OF_RANGES


class EpochTurns(NamedTuple):
    """The turns of one epoch that have a plan, and those that have a settlement."""

    epoch: int
    planned: set[int]
    settled: set[int]

    @property
    def last(self) -> int:
        """The highest turn of the epoch."""
        return max(self.planned | self.settled)


def turns_by_epoch(evidence: Evidence) -> list[EpochTurns]:
    """Return the planned and the settled turns of each epoch, in the order of epochs."""
    planned, settled = (_turns_of(table) for table in (evidence.planned, evidence.settlements))
    return [
        EpochTurns(epoch, planned.get(epoch, set()), settled.get(epoch, set()))
        for epoch in sorted(planned.keys() | settled.keys())
    ]


def _turns_of(table: pa.Table) -> dict[int, set[int]]:
    turns: dict[int, set[int]] = {}
    for row in table.select(["epoch", "turn"]).to_pylist():
        turns.setdefault(row["epoch"], set()).add(row["turn"])
    return turns


def check_turns_are_stored_once(lane: LaneHistory, found: Findings) -> None:
    """I11: a turn has at most one plan and one settlement of each partition, so two writers cannot both have it."""
    for name, table in (("settlement", lane.evidence.settlements), ("plan", lane.evidence.planned)):
        rows = table.select(["epoch", "turn", "topic", "partition"]).to_pylist()
        for (epoch, turn, topic, partition), times in Counter(tuple(row.values()) for row in rows).items():
            if times > 1:
                what = f"turn {turn} of epoch {epoch} has {times} {name}s"
                found.add("I11", what, TopicPartition(topic, partition))


def check_turns_follow_each_other(lane: LaneHistory, found: Findings) -> None:
    """I11: turns have no hole, each settled turn has a plan, and only the last turn may be open."""
    for turns in turns_by_epoch(lane.evidence):
        epoch, planned, settled = turns
        for turn in sorted(settled - planned - {0}):  # turn 0 is the genesis of the lane, which needs no plan
            found.add("I11", f"turn {turn} of epoch {epoch} is settled, but has no plan")
        for turn in sorted(planned - settled - {turns.last}):
            found.add("I11", f"turn {turn} of epoch {epoch} has no settlement, but later turns exist")
        for turn in sorted(set(range(min(settled | {1}), max(settled, default=0))) - settled - planned):
            found.add("I11", f"turn {turn} of epoch {epoch} does not exist, but later turns do")


def check_waived_turns_are_void(lane: LaneHistory, found: Findings) -> None:
    """I7: at most once, a turn is void if it was waived, and only then: its claim and its waiver exclude each other.

    A turn that is void and not waived may have been handed out by a driver that has claimed it. The next turn plans the
    same offsets again.
    """
    kinds = {(epoch, s.turn): s.kind for (epoch, _), settlements in lane.settlements.items() for s in settlements}
    once = {(epoch, plan.turn) for (epoch, _), plans in lane.plans.items() for plan in plans if plan.hands_out_once}
    void = {turn for turn, kind in kinds.items() if kind == "void"}
    for epoch, turn in sorted(once & void - lane.waived):
        found.add(
            "I7", f"turn {turn} of epoch {epoch} is void, but was not waived: its records may be handed out twice"
        )
    for epoch, turn in sorted(lane.waived & (kinds.keys() - void)):
        found.add("I7", f"turn {turn} of epoch {epoch} was waived, but is settled as a {kinds[epoch, turn]}")
    for epoch, turn in sorted(lane.waived & lane.evidence.marked("start")):
        found.add("I7", f"turn {turn} of epoch {epoch} was waived, but a driver has started it")


def check_void_turns_have_a_reason(lane: LaneHistory, found: Findings) -> None:
    """I11: a void settlement names why the turn was closed, whether an operator has closed it or a step."""
    rows = lane.evidence.settlements.select(["epoch", "turn", "kind", "reason"]).to_pylist()
    for epoch, turn in sorted({(r["epoch"], r["turn"]) for r in rows if r["kind"] == "void" and not r["reason"]}):
        found.add("I11", f"turn {turn} of epoch {epoch} is void, and no reason is stored")


def check_settlements_cover_every_partition(lane: LaneHistory, found: Findings) -> None:
    """I4: a settlement has the state of each partition of the lane, because the next turn begins with that state.

    Each epoch of a backfill lane begins with the partitions of its own choice.
    """
    settled: dict[tuple[int, int], set[TopicPartition]] = {}
    for (epoch, tp), settlements in lane.settlements.items():
        for settlement in settlements:
            settled.setdefault((epoch, settlement.turn), set()).add(tp)
    known: set[TopicPartition] = set()
    for epoch, turn in sorted(settled):
        if turn == 0 and lane.evidence.lane != "live":
            known = set()
        for tp in sorted(known - settled[epoch, turn]):
            found.add("I4", f"turn {turn} of epoch {epoch} is settled without this partition", tp)
        known |= settled[epoch, turn]


def check_plans_stay_in_window(partition: PartitionHistory, found: Findings) -> None:
    """I8: at least once, no turn plans so many fresh offsets that more than `max_uncommitted` are above the floor.

    Records above the floor are those with a first attempt, or that were held back. Each fresh offset may be a record,
    so it counts as one.
    """
    rows = partition.outcomes.attempts
    read = np.union1d(rows.offset[rows.attempt == 1], partition.outcomes.held_back.offset)
    turns = [settlement.turn for settlement in partition.settlements]
    for plan in partition.plans:
        window, before = plan.settings.get("max_uncommitted"), bisect_left(turns, plan.turn)
        windowed = plan.kind == "run" and plan.settings.get("guarantee") == "at_least_once"
        floor = partition.settlements[before - 1].floor if before else partition.start
        if not windowed or not window or floor is None or plan.start >= plan.end:
            continue
        above, fresh = len(slice_between(read, floor, plan.start)), plan.end - plan.start
        if above + fresh > window:
            what = (
                f"is the end of the plan of turn {plan.turn}, which reads {fresh} offsets although {above} records "
                f"above the floor {floor} were read and max_uncommitted is {window}"
            )
            found.add_offsets("I8", what, partition.tp, [plan.end])


def check_nothing_is_passed_over(partition: PartitionHistory, found: Findings) -> None:
    """I4: a turn moves complete_to only over offsets that it reads, or for which it stores a row of a range.

    A lane of single offsets begins with all of them below complete_to, pending.
    """
    if partition.reads_single_offsets:
        return
    plans = {plan.turn: plan for plan in partition.plans if plan.kind == "run"}
    rows = partition.outcomes
    ranges = rows.where((rows.attempt == 0) & np.isin(rows.outcome, OF_RANGES))
    complete_to = partition.start
    if complete_to is None:
        return  # check_epoch_has_start_and_state reports it
    for settlement in partition.settlements:
        if settlement.complete_to > complete_to:
            own, plan = ranges.turn == settlement.turn, plans.get(settlement.turn)
            covered = list(zip(ranges.offset[own].tolist(), ranges.end[own].tolist(), strict=True))
            if plan and settlement.kind == "run":
                covered.append((plan.start, plan.end))
            if partition.chosen is not None:
                covered += partition.chosen.others
            what = (
                f"turn {settlement.turn} ({settlement.kind}) moves complete_to past it, "
                "but neither reads it nor has a row for it"
            )
            passed_over = find_uncovered(complete_to, settlement.complete_to, covered)
            found.add_offsets("I4", what, partition.tp, passed_over)
        complete_to = max(complete_to, settlement.complete_to)


def check_first_attempts_are_planned(partition: PartitionHistory, found: Findings) -> None:
    """I11: a turn makes first attempts only of offsets in its plan, so a late process cannot add its own range.

    What was held back in an earlier turn is read again like a retry: `check_retries_were_pending_and_due` judges it.
    """
    plans = {plan.turn: plan for plan in partition.plans if plan.kind == "run"}
    rows = partition.outcomes.attempts
    first = rows.where(rows.attempt == 1)
    turns, index = np.unique(first.turn, return_inverse=True)
    start, end = to_ranges((plans[turn].start, plans[turn].end) if turn in plans else (0, 0) for turn in turns.tolist())
    outside = (first.offset < start[index]) | (first.offset >= end[index])
    for turn in turns.tolist() if partition.reads_single_offsets else ():
        own = first.turn == turn
        outside[own] &= count_covering(first.offset[own], *to_ranges(plans[turn].first if turn in plans else ())) == 0
    held_back = partition.outcomes.held_back
    begun, found_at = np.unique(held_back.offset, return_index=True)  # the first row of an offset is of its first turn
    if len(begun):
        at = np.minimum(np.searchsorted(begun, first.offset), len(begun) - 1)
        outside &= (begun[at] != first.offset) | (held_back.turn[found_at][at] >= first.turn)
    unplanned = first.offset[outside]
    found.add_offsets("I11", "has a first attempt in a turn whose plan does not contain it", partition.tp, unplanned)


def check_calls_are_in_order(partition: PartitionHistory, found: Findings) -> None:
    """I19: in a turn with an order, no attempt comes before each lower record of its key is settled.

    An earlier turn has settled it, or the same turn by an attempt at it, or because it is gone. A dead letter and an
    answer from outside come after the calls of their turn. A record that no turn has read is none. Which key a record
    has is known from any row of it.
    """
    orders = {plan.turn: plan.order for plan in partition.plans if plan.order != "none"}
    rows = partition.outcomes.attempts
    for order in sorted(set(orders.values())):
        known = partition.outcomes.where(partition.outcomes.keyed | (order == "partition"))
        offsets, first = np.unique(known.offset, return_index=True)
        keys = known.key[first] if order == "key" else np.zeros(len(offsets), np.int64)
        by_key = np.lexsort((offsets, keys))
        released = _released(partition, offsets)[by_key]
        begins = np.diff(keys[by_key], prepend=keys[by_key][:1] - 1) != 0
        begins[:1] = True
        before = np.empty(len(offsets), np.int64)
        for group in np.split(np.arange(len(offsets)), np.flatnonzero(begins)[1:]):
            before[by_key[group]] = np.maximum.accumulate(np.concatenate([[-1], released[group]]))[:-1]
        turns = [turn for turn, of_turn in orders.items() if of_turn == order]
        called = rows.where(np.isin(rows.turn, turns) & ~rows.uncalled & np.isin(rows.offset, offsets))
        early = before[np.searchsorted(offsets, called.offset)] > 2 * called.turn
        what = "has an attempt in a turn that began before each lower record of its key was settled"
        found.add_offsets("I19", what, partition.tp, called.offset[early])


def _released(partition: PartitionHistory, offsets: Ints) -> Ints:
    """Return from when on each offset holds nothing back: twice the turn that settled it, and one more if it did so
    after its calls; NEVER if none did."""
    turns, terminal = partition.offset_turns, partition.outcomes.terminal
    settled = turns.settled[np.searchsorted(turns.offset, offsets)]
    ended = terminal.where(terminal.answered | (terminal.outcome == DEAD))
    after = np.isin(offsets, ended.offset)
    return np.where(settled == NEVER, NEVER, np.where(settled == NEVER, 0, settled) * 2 + after)


def check_no_turn_is_open(lane: LaneHistory, found: Findings) -> None:
    """I12: the last turn of each epoch has a settlement."""
    for turns in turns_by_epoch(lane.evidence):
        if turns.last not in turns.settled:
            found.add("settled", f"turn {turns.last} of epoch {turns.epoch} is still open")


def check_nothing_is_pending(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I12: the last settlement has the log's end as floor and as complete_to, and no pending offset."""
    settlements = lane.partition(lane.newest_epoch, tp).settlements
    if not settlements and lane.evidence.lane != "live":
        return  # nothing of the partition was chosen
    if not settlements:
        found.add("settled", "no settlement of the newest epoch has this partition", tp)
        return
    last = settlements[-1]
    found.add_offsets("settled", "is still pending", tp, last.pending.start)
    chosen = lane.partition(lane.newest_epoch, tp).chosen
    end = log.end if chosen is None else int(max(chosen.end, default=0))
    for name, value in (("floor", last.floor), ("complete_to", last.complete_to)):
        if value != end:
            what = "the log ends" if chosen is None else "what was chosen ends"
            found.add("settled", f"{name} is {value}, but {what} at {end}", tp)


def check_commit_is_the_log_end(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I12: the pipeline and ledger that are judged have committed the log's end. Only the lane `live` commits."""
    if lane.evidence.lane != "live" or not lane.partition(lane.newest_epoch, tp).settlements:
        return  # check_nothing_is_pending reports a partition without settlement
    if log.committed != log.end or own_turn(lane.evidence, log) is None:
        committed = "nothing" if log.committed is None else f"{log.committed} with metadata {log.metadata!r}"
        what = f"the group has committed {committed}; this ledger must have committed the log's end, {log.end}"
        found.add("settled", what, tp)


def judge_settled(lane: LaneHistory, found: Findings) -> None:
    """Apply all rules on a pipeline that must be finished."""
    check_no_turn_is_open(lane, found)
    for tp, log in lane.evidence.logs.items():
        check_nothing_is_pending(lane, tp, log, found)
        check_commit_is_the_log_end(lane, tp, log, found)
