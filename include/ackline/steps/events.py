"""Events for the listener, made from what a settlement has made final: by kind, and in batches."""

from collections.abc import Sequence
from typing import Any

from ackline.audit.turn_outcomes import TurnOutcomes
from ackline.ledger import PartitionState, PendingKind
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.outcome_rows import OutcomeColumns
from ackline.pending import PendingRuns
from ackline.range_arrays import index_of_range
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement, TurnKind


def notify_settled(parts: Parts, plan: Plan, settlement: Settlement, outcomes: TurnOutcomes) -> None:
    """Passes the events of a settlement to the listener.

    Only the process that has stored the settlement calls this. If others did too, every event would come again.
    """

    if parts.listener is None:  # a large turn has millions of events
        return
    if plan.kind is TurnKind.GENESIS:
        parts.notify("partitions_changed", {tp: settlement.partitions[tp] for tp in plan.partitions})
    acked = {tp: counts[Outcome.ACKED] for tp, counts in outcomes.counts.items() if counts.get(Outcome.ACKED)}
    if acked:
        parts.notify("acked", plan.turn, acked)
    offsets: dict[str, dict[TopicPartition, Sequence[Any]]] = {"retry": {}, "dead": {}, "expired": {}}
    for tp, rows in outcomes.rows.items():
        columns = OutcomeColumns.of(rows)
        offsets["retry"][tp] = _retried(columns.with_outcome(Outcome.FAILED), settlement.partitions[tp].state)
        offsets["dead"][tp] = columns.with_outcome(Outcome.DEAD).offsets.tolist()
        expired = columns.with_outcome(Outcome.EXPIRED)
        offsets["expired"][tp] = list(zip(expired.offsets.tolist(), expired.ends.tolist(), strict=True))
    for event, details in offsets.items():
        if any(details.values()):
            parts.notify(event, plan.turn, {tp: numbers for tp, numbers in details.items() if numbers})


def _retried(failed: OutcomeColumns, state: PartitionState) -> list[int]:
    """Returns the failed offsets that get another attempt after the settlement."""
    retries = PendingRuns.of(state.pending).of_kind(PendingKind.RETRY)
    index = index_of_range(failed.offsets, (retries.starts, retries.ends))
    offsets: list[int] = failed.offsets[index >= 0].tolist()
    return offsets
