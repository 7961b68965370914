"""Operators' acts: turns that handle nothing and change what is known, each planned, stored and settled like any other.

An act takes number n among the plans, as a plan that holds the whole act: `start_offset` and `end_offset` of its rows
are where it moves a partition to. While a turn is open an act is refused, so that it never runs beside a replay.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ackline.errors import ConfigError, FatalError, GroupMoved, LedgerError
from ackline.steps.action_plans import MOVE_NOTHING, Targets, action_plan
from ackline.steps.commit import Settled, commit_newest
from ackline.steps.genesis import subscribed_before
from ackline.steps.parts import Parts
from ackline.steps.setting_changes import check_unchanged
from ackline.steps.settle import settle_turn
from ackline.turns import Settlement, TurnKind

Choose = Callable[[Settlement], Targets]
"""Where an act moves each partition, given the lane as it is when the act takes its turn."""


def perform_action(parts: Parts, kind: TurnKind, choose: Choose, reason: str) -> Settled:
    """Carry out an act on the live lane and commit what follows from it.

    `choose` is asked again whenever another run has taken the number. Raises FatalError while a turn is open,
    ConfigError for a lane that has not begun, for partitions it does not have, and for targets outside the log;
    TopicChanged for those whose topic is not the one that was read.
    """
    for _ in range(20):
        newest = parts.store.newest()
        if newest is None:
            raise ConfigError(f"{parts.pipeline.name} has not run yet: there is nothing to {kind}")
        open_plan = parts.store.open_plan(newest)
        if open_plan is not None:
            raise FatalError(
                f"{open_plan.turn} is open: let it end (`ackline run {parts.pipeline.name}`), then {kind} again"
            )
        if kind is not TurnKind.RESET:
            check_unchanged(parts, newest)  # else its plan's settings would pass for those that what is pending has
        targets = choose(newest)
        if not targets:
            raise ConfigError(f"{parts.pipeline.name}: no partition was named to {kind}")
        plan = action_plan(parts, newest, kind, targets, reason, inside=True)
        plan = replace(plan, settings={**plan.settings, "kafka": plan.settings["kafka"] | _looked_for(parts, newest)})
        if parts.store.store_plan(plan):
            settle_turn(parts, plan, newest)
            try:
                return commit_newest(parts)
            except GroupMoved:
                if kind not in MOVE_NOTHING:
                    raise
                return Settled(parts.store.newest(), {})  # it is done; what the group is moved for, the next run says
    raise LedgerError("20 times another run took the turn that this act was about to take; are runs looping?")


def _looked_for(parts: Parts, newest: Settlement) -> dict[str, Any]:
    """What the plan of an operator's act says of topics: an act looks for none, so a topic that was put into the file
    before it is as new to the lane after it."""
    before = subscribed_before(parts, newest) or parts.pipeline.kafka
    return before.model_dump(mode="json", include={"topics", "pattern", "partitions", "partition_filter"})
