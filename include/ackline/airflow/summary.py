"""The summaries that tasks log and return as XCom: offsets and counts, and no payload, key or secret.

A lane may have thousands of partitions. A summary holds totals and the WORST partitions, sorted by topic and number;
the tables hold all of them.
"""

from collections import Counter
from typing import Any

from ackline.offsets import TopicPartition, count
from ackline.steps.commit import CommitResult
from ackline.steps.plan import Planned
from ackline.turns import PlannedPartition, SettledPartition, worst_partitions

WORST = 10
"""How many partitions a summary lists."""


def planned_summary(planned: Planned) -> dict[str, Any]:
    """Returns the turn, totals, and of the partitions with the most unread offsets the fresh range, the number of
    retries, or why the turn reads nothing."""
    plan = planned.plan
    missing, leaderless = list(planned.missing[:WORST]), [str(tp) for tp in planned.leaderless[:WORST]]
    if plan is None:
        return {"turn": None, "missing": missing, "leaderless": leaderless}
    unread = {tp: max(0, of_tp.log.end - of_tp.complete_to) for tp, of_tp in plan.partitions.items()}
    return {
        "turn": plan.turn.n,
        "epoch": plan.turn.epoch,
        "adopted": planned.adopted,
        "missing": missing,
        "leaderless": leaderless,
        "totals": {
            "partitions": len(plan.partitions),
            "fresh": sum(len(of_tp.fresh) for of_tp in plan.partitions.values()),
            "retries": sum(count(of_tp.retries) for of_tp in plan.partitions.values()),
            "unread": sum(unread.values()),
        },
        "partitions": [_planned(tp, plan.partitions[tp]) for tp in worst_partitions(unread, WORST)],
    }


def _planned(tp: TopicPartition, planned: PlannedPartition) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "start": planned.fresh.start,
        "end": planned.fresh.end,
        "retries": count(planned.retries),
        "why": planned.why,
    }


def settled_summary(result: CommitResult) -> dict[str, Any]:
    """Returns the newest turn, totals, and of the partitions with the most offsets that are not settled their state and
    the committed offset as read back."""
    settlement = result.settlement
    if settlement is None:
        return {"turn": None}
    outcomes: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for settled in settlement.partitions.values():
        outcomes.update(settled.counts)
        pending.update({kind.value: number for kind, number in settled.state.pending_by_kind().items()})
    behind = {tp: settled.unsettled for tp, settled in settlement.partitions.items()}
    return {
        "turn": settlement.turn.n,
        "epoch": settlement.turn.epoch,
        "kind": settlement.kind.value,
        "totals": {
            "partitions": len(settlement.partitions),
            "pending": dict(pending),
            "outcomes": dict(outcomes),
            "committed": len(result.committed),
        },
        "partitions": [_settled(tp, settlement.partitions[tp], result) for tp in worst_partitions(behind, WORST)],
    }


def _settled(tp: TopicPartition, settled: SettledPartition, result: CommitResult) -> dict[str, Any]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "floor": settled.state.floor,
        "complete_to": settled.state.complete_to,
        "pending": {kind.value: pending for kind, pending in settled.state.pending_by_kind().items()},
        "outcomes": dict(settled.counts),
        "committed": result.committed[tp].offset if tp in result.committed else None,
    }
