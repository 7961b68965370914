"""What the tasks say of a turn: offsets and counts. No payload, no key, no secret; logged and kept as XCom."""

from typing import Any

from ackline.offsets import count
from ackline.steps.commit import Settled
from ackline.steps.plan import Planned


def planned_summary(planned: Planned) -> dict[str, Any]:
    """The turn and, for each partition, the fresh range, how many retries, and why where it gets nothing."""
    plan, leaderless = planned.plan, [str(tp) for tp in planned.leaderless]
    if plan is None:
        return {"turn": None, "missing": list(planned.missing), "leaderless": leaderless}
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": one.fresh.start,
            "end": one.fresh.end,
            "retries": count(one.retries),
            "why": one.why,
        }
        for tp, one in sorted(plan.partitions.items())
    ]
    return {
        "turn": plan.turn.n,
        "epoch": plan.turn.epoch,
        "adopted": planned.adopted,
        "missing": list(planned.missing),
        "leaderless": leaderless,
        "partitions": partitions,
    }


def settled_summary(settled: Settled) -> dict[str, Any]:
    """The newest turn and, for each partition, where it stands and what the group holds, read back."""
    settlement = settled.settlement
    if settlement is None:
        return {"turn": None}
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "floor": one.state.floor,
            "complete_to": one.state.complete_to,
            "pending": {kind.value: pending for kind, pending in one.state.pending_by_kind().items()},
            "outcomes": dict(one.counts),
            "committed": settled.committed[tp].offset if tp in settled.committed else None,
        }
        for tp, one in sorted(settlement.partitions.items())
    ]
    return {
        "turn": settlement.turn.n,
        "epoch": settlement.turn.epoch,
        "kind": settlement.kind.value,
        "partitions": partitions,
    }
