"""The summaries that tasks log and return as XCom: offsets and counts, and no payload, key or secret."""

from typing import Any

from ackline.offsets import count
from ackline.steps.commit import CommitResult
from ackline.steps.plan import Planned


def planned_summary(planned: Planned) -> dict[str, Any]:
    """Returns the turn and, for each partition, the fresh range, the number of retries, or why it reads nothing."""
    plan, leaderless = planned.plan, [str(tp) for tp in planned.leaderless]
    if plan is None:
        return {"turn": None, "missing": list(planned.missing), "leaderless": leaderless}
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": planned_partition.fresh.start,
            "end": planned_partition.fresh.end,
            "retries": count(planned_partition.retries),
            "why": planned_partition.why,
        }
        for tp, planned_partition in sorted(plan.partitions.items())
    ]
    return {
        "turn": plan.turn.n,
        "epoch": plan.turn.epoch,
        "adopted": planned.adopted,
        "missing": list(planned.missing),
        "leaderless": leaderless,
        "partitions": partitions,
    }


def settled_summary(result: CommitResult) -> dict[str, Any]:
    """Returns the newest turn and, for each partition, its state and the committed offset as read back."""
    settlement = result.settlement
    if settlement is None:
        return {"turn": None}
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "floor": settled.state.floor,
            "complete_to": settled.state.complete_to,
            "pending": {kind.value: pending for kind, pending in settled.state.pending_by_kind().items()},
            "outcomes": dict(settled.counts),
            "committed": result.committed[tp].offset if tp in result.committed else None,
        }
        for tp, settled in sorted(settlement.partitions.items())
    ]
    return {
        "turn": settlement.turn.n,
        "epoch": settlement.turn.epoch,
        "kind": settlement.kind.value,
        "partitions": partitions,
    }
