"""Guarantee and isolation are promised to what is under way: they change between turns, with nothing pending."""

from collections.abc import Mapping
from typing import Any

from ackline.errors import ConfigError
from ackline.steps.parts import Parts
from ackline.turns import Plan, Settlement


def check_unchanged(parts: Parts, newest: Settlement) -> None:
    """Raise ConfigError where guarantee or isolation changed while something is pending, promised under the old.

    Asked before any turn but a reset: the next asks the settings of its plan.
    """
    if newest.turn.n == 0 or not any(one.state.pending for one in newest.partitions.values()):
        return
    for key, old, new in _changed(parts, parts.store.plan(newest.turn).settings):
        raise ConfigError(
            f"{key} was changed from {old} to {new} while records are pending; change it back until nothing is, or "
            f"begin a new epoch with `ackline reset {parts.pipeline.name} --to floor`",
            key=key,
        )


def check_open(parts: Parts, plan: Plan) -> None:
    """Raise ConfigError where an open plan would be handed out under another guarantee or isolation than its own: at
    most once, its records may have been handed out already."""
    for key, old, new in _changed(parts, plan.settings):
        raise ConfigError(
            f"{key} was changed from {old} to {new} while {plan.turn} is open; change it back until it is settled",
            key=key,
        )


def _changed(parts: Parts, before: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    now = parts.pipeline.settings()
    both = (
        ("guarantee", before["guarantee"], now["guarantee"]),
        ("kafka.isolation", before["kafka"]["isolation"], now["kafka"]["isolation"]),
    )
    return [one for one in both if one[1] != one[2]]
