"""The frame that all plans share: turn, run, time and the settings in force."""

from collections.abc import Mapping

from ackline.offsets import TopicPartition
from ackline.steps.parts import Parts
from ackline.turns import Plan, PlannedPartition, Settlement, TurnKind


def new_plan(
    parts: Parts,
    newest: Settlement,
    kind: TurnKind,
    partitions: Mapping[TopicPartition, PlannedPartition],
    reason: str = "",
) -> Plan:
    """Returns a plan for the turn after `newest`, with the settings in force."""
    return Plan(
        newest.turn._replace(n=newest.turn.n + 1),
        kind,
        parts.run_id,
        parts.now(),
        partitions,
        parts.pipeline.kafka.isolation,
        parts.pipeline.settings(),
        parts.actor,
        reason,
    )
