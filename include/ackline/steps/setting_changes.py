"""Guarantee and isolation level change between turns only, and only while nothing is pending; the ack topic only while
nothing is in flight.

Records under way were planned under the old values. Under other values, a record that was handed out at most once could
be handed out again (I7), or a failure that was to be retried could be dropped.
"""

from collections.abc import Mapping
from typing import Any

from ackline.backfill_arguments import id_of
from ackline.errors import ConfigError
from ackline.pending import PendingKind
from ackline.steps.parts import Parts
from ackline.steps.void import void_advice
from ackline.turns import Plan, Settlement


def check_settings_unchanged(parts: Parts, newest: Settlement) -> None:
    """Raises ConfigError if guarantee or isolation level changed while records are pending under the old one, and if
    the ack topic changed while records are in flight.

    Checked before every turn but a reset, against the settings of the last turn's plan.
    """
    if newest.turn.n == 0 or not any(settled.state.pending for settled in newest.partitions.values()):
        return
    name, lane = parts.pipeline.name, parts.store.lane
    way_out = (
        f"begin a new epoch with `ackline reset {name} --to floor --reason …`"
        if parts.commits
        else f"end the backfill with `ackline backfill {name} --cancel {id_of(lane)}`"
    )
    settings = parts.store.plan(newest.turn).settings
    changes = _changes(parts, settings)
    if any(settled.state.pending_by_kind()[PendingKind.IN_FLIGHT] for settled in newest.partitions.values()):
        # Answers to the tokens that were handed out come to the old topic, and no turn would read them there.
        old, new = settings.get("ack_topic"), parts.pipeline.ack_topic
        changes += [("ack_topic", str(old), str(new))] if old != new else []
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while records are pending; change it back until nothing is, or "
            f"{way_out}",
            key=key,
        )


def check_open_plan_settings(parts: Parts, plan: Plan) -> None:
    """Raises ConfigError if an open plan would be handed out under another guarantee or isolation level than its own,
    or without the ack topic in which it reads the answers.

    A plan that was made at most once may have been handed out already.
    """
    changes, ack_topic = _changes(parts, plan.settings), parts.pipeline.ack_topic
    if plan.ack_position is not None and plan.ack_position.topic != ack_topic:
        changes.append(("ack_topic", plan.ack_position.topic, str(ack_topic)))
    for key, old, new in changes:
        raise ConfigError(
            f"{key} was changed from {old} to {new} while {plan.turn} is open; change it back until it is settled. "
            f"{void_advice(plan.turn)}",
            key=key,
        )


def _changes(parts: Parts, before: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns key, old and new value of each of the two settings that differs."""
    now = parts.pipeline.settings()
    values = (
        ("guarantee", before["guarantee"], now["guarantee"]),
        ("kafka.isolation", before["kafka"]["isolation"], now["kafka"]["isolation"]),
    )
    return [(key, old, new) for key, old, new in values if old != new]
