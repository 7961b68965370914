"""Events for the listener, made from what a settlement has made final: by kind, and in batches."""

import bisect
from collections.abc import Callable
from typing import Any

from ackline.audit.turn_outcomes import TurnOutcomes
from ackline.ledger import OutcomeRow, PendingKind
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement, TurnKind


def notify_settled(parts: Parts, plan: Plan, settlement: Settlement, outcomes: TurnOutcomes) -> None:
    """Passes the events of a settlement to the listener.

    Only the process that has stored the settlement calls this. If others did too, every event would come again.
    """

    def will_be_retried(tp: TopicPartition, row: OutcomeRow) -> bool:
        return row.outcome is Outcome.FAILED and pending_kind(settlement, tp, row.offset) is PendingKind.RETRY

    if plan.kind is TurnKind.GENESIS:
        parts.notify("partitions_changed", {tp: settlement.partitions[tp] for tp in plan.partitions})
    acked = {tp: counts[Outcome.ACKED] for tp, counts in outcomes.counts.items() if counts.get(Outcome.ACKED)}
    if acked:
        parts.notify("acked", plan.turn, acked)
    events: list[tuple[str, Callable[[TopicPartition, OutcomeRow], bool], Callable[[OutcomeRow], Any]]] = [
        ("retry", will_be_retried, lambda row: row.offset),
        ("dead", lambda _, row: row.outcome is Outcome.DEAD, lambda row: row.offset),
        ("expired", lambda _, row: row.outcome is Outcome.EXPIRED, lambda row: (row.offset, row.end)),
    ]
    for event, belongs, detail in events:
        details = {tp: [detail(row) for row in rows if belongs(tp, row)] for tp, rows in outcomes.rows.items()}
        if any(details.values()):
            parts.notify(event, plan.turn, {tp: offsets for tp, offsets in details.items() if offsets})


def pending_kind(settlement: Settlement, tp: TopicPartition, offset: int) -> PendingKind | None:
    """Returns why an offset is pending after a settlement; None if it is settled."""
    runs = settlement.partitions[tp].state.pending
    after = bisect.bisect_right(runs, offset, key=lambda run: run.start)
    return runs[after - 1].value.kind if after > 0 and offset < runs[after - 1].end else None
