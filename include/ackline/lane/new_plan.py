"""What all plans share: turn, run, time and the settings in force, the ranges of the lane, and the checks of both.

Guarantee and isolation level change between turns only, and only while nothing is pending; the ack topic changes only
while nothing is in flight. Records under way were planned under the old values. Under other values, a record that was
handed out at most once could be handed out again (I7), or a failure that was to be retried could be dropped.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ackline.errors import ConfigError
from ackline.lane.adapters import Adapters
from ackline.lane.void import void_advice
from ackline.ledger.offsets import ChosenRanges, OffsetRange, TopicPartition
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import Plan, PlannedPartition, Settlement, TurnId, TurnKind, is_backfill
from ackline.pipeline.arguments import id_of


def new_plan(
    adapters: Adapters,
    newest: Settlement,
    kind: TurnKind,
    partitions: Mapping[TopicPartition, PlannedPartition],
    reason: str = "",
    of_run: Mapping[str, Any] | None = None,
) -> Plan:
    """Returns a plan for the turn after `newest`, with the settings in force.

    `of_run` is what only the plan of a run stores beside them. `ackline.steps.run_plan.new_run_plan` gives it.
    """
    return Plan(
        newest.turn._replace(n=newest.turn.n + 1),
        kind,
        adapters.run_id,
        adapters.now(),
        partitions,
        adapters.pipeline.kafka.isolation,
        adapters.pipeline.settings() | dict(of_run or {}),
        adapters.actor,
        reason,
    )


def check_clock(adapters: Adapters, last: datetime | None) -> None:
    """Raises ConfigError for a fixed clock behind the last turn: due times and grace periods would run backwards."""
    if adapters.fixed_now and last and adapters.fixed_now < last:
        raise ConfigError(
            f"--now {adapters.fixed_now.isoformat()} is before the last turn, of {last.isoformat()}", key="--now"
        )


LaneRanges = Mapping[TopicPartition, tuple[OffsetRange, ...]] | None
"""The ranges of each partition; None for the live lane, which holds every offset."""


def lane_ranges(adapters: Adapters, epoch: int) -> LaneRanges:
    """Returns the ranges that the lane reads whole in an epoch; None for the live lane. Reads the genesis."""
    if not is_backfill(adapters.store.lane):
        return None
    genesis = adapters.store.settlement(TurnId(adapters.store.pipeline, adapters.store.lane, epoch, 0))
    return {tp: settled.ranges or () for tp, settled in genesis.partitions.items()}


def chosen_in(ranges: LaneRanges, tp: TopicPartition) -> ChosenRanges:
    """Returns the ranges of one partition; None for the live lane."""
    return None if ranges is None else ranges[tp]


def check_settings_unchanged(adapters: Adapters, newest: Settlement) -> None:
    """Raises ConfigError if guarantee or isolation level changed while records are pending under the old one, and if
    the ack topic changed while records are in flight.

    Checked before every turn but a reset, against the settings of the last turn's plan.
    """
    if newest.turn.n == 0 or not any(settled.state.pending for settled in newest.partitions.values()):
        return
    name, lane = adapters.pipeline.name, adapters.store.lane
    way_out = (
        f"begin a new epoch with `ackline reset {name} --to floor --reason …`"
        if adapters.commits
        else f"end the backfill with `ackline backfill {name} --cancel {id_of(lane)}`"
    )
    settings = adapters.store.plan(newest.turn).settings
    changes = _changes(adapters, settings)
    if any(settled.state.pending_by_kind()[PendingKind.IN_FLIGHT] for settled in newest.partitions.values()):
        # Answers to the tokens that were handed out come to the old topic, and no turn would read them there.
        old, new = settings.get("ack_topic"), adapters.pipeline.ack_topic
        changes += [("ack_topic", str(old), str(new))] if old != new else []
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while records are pending; change it back until nothing is, or "
            f"{way_out}",
            key=key,
        )


def check_open_plan_settings(adapters: Adapters, plan: Plan) -> None:
    """Raises ConfigError if an open plan would be handed out under another guarantee or isolation level than its own,
    without the ack topic in which it reads the answers, or with handlers that belong to other steps.

    A plan that was made at most once may have been handed out already. The turn runs by the steps of its plan and the
    handlers of the file (`ackline.pipeline.turn_settings`): a source that emits to a stream that no step of the plan
    takes would fail or drop its records.
    """
    changes, ack_topic = _changes(adapters, plan.settings), adapters.pipeline.ack_topic
    changes += _changed_steps(adapters.pipeline.settings(), plan.settings)
    if plan.ack_position is not None and plan.ack_position.topic != ack_topic:
        changes.append(("ack_topic", plan.ack_position.topic, str(ack_topic)))
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while {plan.turn} is open; change it back until it is settled. "
            f"{void_advice(plan.turn)}",
            key=key,
        )


def _changed_steps(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the key `steps`, with the names of the steps, if they differ in more than their handlers."""

    def wiring(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{key: step[key] for key in step if key != "handler"} for step in settings.get("steps") or ()]

    def names(settings: Mapping[str, Any]) -> str:
        return ", ".join(step["name"] for step in settings.get("steps") or ()) or "none"

    return [] if wiring(now) == wiring(before) else [("steps", names(before), names(now))]


def _changes(adapters: Adapters, before: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns key, old and new value of each of the two settings that differs."""
    now = adapters.pipeline.settings()
    values = (
        ("guarantee", before["guarantee"], now["guarantee"]),
        ("kafka.isolation", before["kafka"]["isolation"], now["kafka"]["isolation"]),
    )
    return [(key, old, new) for key, old, new in values if old != new]
