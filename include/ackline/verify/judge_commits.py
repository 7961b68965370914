"""Rules on the committed offsets of the group, whose metadata names a ledger, a pipeline, an epoch and a turn."""

import json
from typing import NamedTuple

from ackline.verify.arrays import count_covering
from ackline.verify.evidence import Evidence, Log, TopicPartition
from ackline.verify.findings import Findings
from ackline.verify.lane_history import LaneHistory, PartitionHistory


class NamedTurn(NamedTuple):
    """The turn that the metadata of a commit names."""

    epoch: int
    turn: int


def named_turn(log: Log, pipeline: str, ledger: str | None) -> NamedTurn | None:
    """Return the turn that the commit names; None if it is of another pipeline or ledger, or not of Ackline at all.

    With `ledger` None, a commit of any ledger of the pipeline is accepted.
    """
    try:
        metadata = json.loads(log.metadata)
        if metadata["pipeline"] != pipeline or ledger not in (None, metadata["ledger"]):
            return None
        return NamedTurn(int(metadata["epoch"]), int(metadata["n"]))
    except (ValueError, TypeError, KeyError):
        return None


def own_turn(evidence: Evidence, log: Log) -> NamedTurn | None:
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
    partition = lane.partition(named.epoch, tp)
    floor = floor_after(partition, named.turn)
    if log.committed == claimed_offset(partition, named.turn):
        return
    if floor is None or named.turn not in settled_turns(lane, named.epoch) | {0}:
        what = f"is committed for turn {named.turn} of epoch {named.epoch}, which is not settled"
        found.add_offsets("I1", what, tp, [log.committed])
    if floor is not None and log.committed != floor:
        side = "above" if log.committed > floor else "below"
        what = f"is committed, {side} the floor {floor} of the turn that its metadata names"
        found.add_offsets("I1", what, tp, [log.committed])


def check_all_below_commit_is_settled(lane: LaneHistory, tp: TopicPartition, log: Log, found: Findings) -> None:
    """I2: each record below the committed offset has a terminal outcome, so the commit loses nothing.

    A claim is committed before its turn is settled: then only the records below the floor before it must be settled.
    """
    named = own_turn(lane.evidence, log)
    if named is None or log.committed is None:
        return
    partition = lane.partition(named.epoch, tp)
    if partition.start is None:
        return
    end = log.committed
    if log.committed == claimed_offset(partition, named.turn):
        before = partition.settlements_before(named.turn)
        end = before[-1].floor if before else partition.start
    received, terminal = partition.offsets_between(partition.start, end), partition.outcomes.terminal
    settled = count_covering(received, terminal.offset, terminal.end) + partition.counted.count_covering(received)
    what = "is below the committed offset, but has no terminal outcome"
    found.add_offsets("I2", what, tp, received[settled == 0])


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
