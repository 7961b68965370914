"""Operator actions: turns that handle no record and change the lane's state (skip, reset, pause, resume).

An action takes number n among the plans, as a plan that holds the whole action: `start_offset` and `end_offset` of its
rows are the offset that it moves a partition to. From then on any process can finish it, so a crash after the plan
loses nothing: the next run finds the open plan and settles it. Its number among the plans is also the fence against a
run that takes the same turn. While a turn is open, an action is refused, so it never runs beside a replay.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ackline.errors import ConfigError, FatalError, GroupMoved
from ackline.steps.action_plans import PAUSE_KINDS, Targets, action_plan
from ackline.steps.commit import CommitResult, commit_newest
from ackline.steps.genesis import previous_subscription
from ackline.steps.parts import Parts
from ackline.steps.races import MAX_LOST_RACES, too_many_lost_races
from ackline.steps.setting_changes import check_settings_unchanged
from ackline.steps.settle import settle_turn
from ackline.steps.void import close_if_waived, void_advice
from ackline.turns import Plan, Settlement, TurnKind

Choose = Callable[[Settlement], Targets]
"""The targets of an action, given the lane as it is when the action takes its turn."""


def perform_action(parts: Parts, kind: TurnKind, choose: Choose, reason: str) -> CommitResult:
    """Carries out an action on the live lane, and commits what follows from it.

    `choose` is called again whenever another run has taken the turn, because the lane has moved then. Raises FatalError
    while a turn is open; ConfigError for a lane that has not begun, for partitions that it does not have, and for
    targets outside the log; TopicChanged for partitions whose topic is not the one that was read.
    """
    for _ in range(MAX_LOST_RACES):
        newest = parts.store.newest()
        if newest is None:
            raise ConfigError(f"{parts.pipeline.name} has not run yet: there is nothing to {kind}")
        open_plan = parts.store.open_plan(newest)
        if open_plan is not None and close_if_waived(parts, open_plan, newest):
            continue
        if open_plan is not None:
            raise FatalError(
                f"{open_plan.turn} is open: let it end (`ackline run {parts.pipeline.name}`), then {kind} again. "
                f"{void_advice(open_plan.turn)}"
            )
        plan = _plan(parts, newest, kind, choose, reason)
        # Refused if another process has stored plan n since `newest` was read. Nothing is stored then; look again.
        if parts.store.store_plan(plan):
            settle_turn(parts, plan, newest)
            return _commit(parts, kind)
    raise too_many_lost_races(parts, f"taking the turn of a {kind}")


def _plan(parts: Parts, newest: Settlement, kind: TurnKind, choose: Choose, reason: str) -> Plan:
    if kind is not TurnKind.RESET:
        # The plan stores the settings in force, and the next turn takes them for those that pending records were
        # planned under. A changed guarantee would not show. A reset leaves nothing pending, so it may change them.
        check_settings_unchanged(parts, newest)
    targets = choose(newest)
    if not targets:
        raise ConfigError(f"{parts.pipeline.name}: no partition was named to {kind}")
    plan = action_plan(parts, newest, kind, targets, reason, inside=True)
    kafka = plan.settings["kafka"] | _subscription_of_last_look(parts, newest)
    return replace(plan, settings={**plan.settings, "kafka": kafka})


def _subscription_of_last_look(parts: Parts, newest: Settlement) -> dict[str, Any]:
    """Returns the subscription that the plan of an action stores: that of the last turn that looked for topics.

    An action looks for no topics. With the file's subscription in its plan, a topic that was added to the file before
    the action would count as missing at that turn. It would start at its log start instead of by `start` (S30).
    """
    before = previous_subscription(parts, newest) or parts.pipeline.kafka
    return before.model_dump(mode="json", include={"topics", "pattern", "partitions", "partition_filter"})


def _commit(parts: Parts, kind: TurnKind) -> CommitResult:
    try:
        return commit_newest(parts)
    except GroupMoved:
        if kind not in PAUSE_KINDS:
            raise
        # Pause and resume move no offset and acknowledge no move of the group. They are done; the next run reports
        # the move.
        return CommitResult(parts.store.newest(), {})
