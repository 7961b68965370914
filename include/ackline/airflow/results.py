"""The summaries that tasks return: in the log and in XCom. They hold no payload, key or secret.

A lane may have thousands of partitions. A summary holds totals and the WORST partitions, sorted by topic and number;
the tables hold all of them.
"""

from collections import Counter
from typing import Any

from ackline.actions.objects import PlannedObject, SettledObject
from ackline.lane.commit import CommitResult
from ackline.ledger.offsets import count
from ackline.ledger.turns import worst_partitions
from ackline.steps.plan import Planned

WORST = 10
"""How many partitions a summary lists."""


def planned_summary(planned: Planned) -> dict[str, Any]:
    """Returns the turn, totals, and the partitions with the most unread offsets, each with its fresh range and the
    number of its retries, or why the turn reads nothing of it."""
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
        "partitions": [PlannedObject.of(tp, plan.partitions[tp]).dump() for tp in worst_partitions(unread, WORST)],
    }


def settled_summary(result: CommitResult) -> dict[str, Any]:
    """Returns the newest turn, totals, and the partitions with the most offsets that are not settled, each with its
    state and the committed offset as read back."""
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
        "partitions": [
            SettledObject.of(tp, settlement.partitions[tp], result.committed.get(tp)).dump()
            for tp in worst_partitions(behind, WORST)
        ],
    }
