"""Close a turn as void: it changes no state, and none of its rows counts."""

from dataclasses import replace

from ackline.metrics import fetch_metrics
from ackline.offsets import TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement, TurnKind


def void_turn(parts: Parts, plan: Plan, before: Settlement, reason: str) -> None:
    """Stores a void settlement for a plan that can't be carried out.

    The void settlement takes number n of the settlements. So it races with a process that settles the turn: the first
    one stored decides, and the other one is refused.
    """
    partitions = {
        tp: replace(
            settled,
            old_floor=settled.state.floor,
            counts={},
            gaps=0,
            evidence="void",
            # What the plan has found out about the group stays true although the turn is void: a foreign offset is
            # acknowledged only until a plan has found a commit of this ledger.
            acknowledged_foreign_offset=acknowledged_foreign_offset(tp, plan, before),
            metrics=fetch_metrics(settled.metrics),
        )
        for tp, settled in before.partitions.items()
    }
    parts.store.store_settlement(
        Settlement(plan.turn, TurnKind.VOID, parts.run_id, parts.now(), partitions, parts.actor, reason), plan
    )


def acknowledged_foreign_offset(tp: TopicPartition, plan: Plan, before: Settlement) -> int | None:
    """Returns the foreign offset that stays acknowledged: by the plan if it holds the partition, else as before."""
    partitions = plan.partitions if tp in plan.partitions else before.partitions
    return partitions[tp].acknowledged_foreign_offset
