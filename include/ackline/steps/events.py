"""What a settlement has made final, as events for the listener: by kind, and in batches."""

import bisect
from collections.abc import Callable
from typing import Any

from ackline.audit.store import TurnOutcomes
from ackline.ledger import OutcomeRow, PendingKind
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement, TurnKind


def tell_settled(parts: Parts, plan: Plan, settlement: Settlement, found: TurnOutcomes) -> None:
    """Tell the listener of a settlement that this process has stored; who lost its number tells nothing."""

    def waits(tp: TopicPartition, row: OutcomeRow) -> bool:
        return row.outcome is Outcome.FAILED and pending_as(settlement, tp, row.offset) is PendingKind.RETRY

    if plan.kind is TurnKind.GENESIS:
        parts.notify("partitions_changed", {tp: settlement.partitions[tp] for tp in plan.partitions})
    acked = {tp: counts[Outcome.ACKED] for tp, counts in found.counts.items() if counts.get(Outcome.ACKED)}
    if acked:
        parts.notify("acked", plan.turn, acked)
    of_kind: list[tuple[str, Callable[[TopicPartition, OutcomeRow], bool], Callable[[OutcomeRow], Any]]] = [
        ("retry", waits, lambda row: row.offset),
        ("dead", lambda _, row: row.outcome is Outcome.DEAD, lambda row: row.offset),
        ("expired", lambda _, row: row.outcome is Outcome.EXPIRED, lambda row: (row.offset, row.end)),
    ]
    for event, belongs, say in of_kind:
        said = {tp: [say(row) for row in rows if belongs(tp, row)] for tp, rows in found.rows.items()}
        if any(said.values()):
            parts.notify(event, plan.turn, {tp: one for tp, one in said.items() if one})


def pending_as(settlement: Settlement, tp: TopicPartition, offset: int) -> PendingKind | None:
    """What an offset is pending as after a settlement; None where it is settled."""
    runs = settlement.partitions[tp].state.pending
    after = bisect.bisect_right(runs, offset, key=lambda run: run.start)
    return runs[after - 1].value.kind if after > 0 and offset < runs[after - 1].end else None
