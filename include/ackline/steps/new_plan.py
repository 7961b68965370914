"""The frame that all plans share: turn, run, time and the settings in force; and the check of that time."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.steps.ack_topic import start_position
from ackline.steps.parts import Parts
from ackline.turns import ACK_POSITION, Plan, PlannedPartition, Settlement, TurnKind


def new_plan(
    parts: Parts,
    newest: Settlement,
    kind: TurnKind,
    partitions: Mapping[TopicPartition, PlannedPartition],
    reason: str = "",
) -> Plan:
    """Returns a plan for the turn after `newest`, with the settings in force.

    That of a run holds from where it reads answers from outside, if the pipeline has an ack topic. Raises ConfigError
    if that topic can't be used.
    """
    of_run: dict[str, Any] = {}
    if kind is TurnKind.RUN:
        position = start_position(parts, newest)
        of_run = parts.request.settings() | ({ACK_POSITION: position.as_json()} if position is not None else {})
    return Plan(
        newest.turn._replace(n=newest.turn.n + 1),
        kind,
        parts.run_id,
        parts.now(),
        partitions,
        parts.pipeline.kafka.isolation,
        parts.pipeline.settings() | of_run,
        parts.actor,
        reason,
    )


def check_clock(parts: Parts, last: datetime | None) -> None:
    """Raises ConfigError for a fixed clock behind the last turn: due times and grace periods would run backwards."""
    if parts.fixed_now and last and parts.fixed_now < last:
        raise ConfigError(
            f"--now {parts.fixed_now.isoformat()} is before the last turn, of {last.isoformat()}", key="--now"
        )
