"""The frame that all plans share: turn, run, time and the settings in force; and the check of that time."""

from collections.abc import Mapping
from datetime import datetime

from ackline.errors import ConfigError
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
        parts.pipeline.settings() | (parts.request.settings() if kind is TurnKind.RUN else {}),
        parts.actor,
        reason,
    )


def check_clock(parts: Parts, last: datetime | None) -> None:
    """Raises ConfigError for a fixed clock behind the last turn: due times and grace periods would run backwards."""
    if parts.fixed_now and last and parts.fixed_now < last:
        raise ConfigError(
            f"--now {parts.fixed_now.isoformat()} is before the last turn, of {last.isoformat()}", key="--now"
        )
