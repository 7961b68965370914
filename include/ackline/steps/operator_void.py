"""`ackline void`: an operator closes an open turn that can't be carried out: its handler kills the driver, for example.

What becomes of the turn depends on what is stored of it, and never on the state of a process:
- At least once, and at most once before the claim, it is void: nothing of it counts, and its offsets are planned again.
- At most once after the claim, its ranges are recorded as lost, because the handler may have been called for them. If
  outcomes are stored, a run settles the turn, unless a file of them is lost.
- An operator action or a genesis is settled. Nothing in it can fail for good, and its plan holds all that it does.
The ledger is written before the group is asked. So a turn can be closed while the group is busy or no broker answers.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum

from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.steps.action_plans import Targets
from ackline.steps.claim import operator_loss, record_lost, replace_by_lost
from ackline.steps.commit import commit_newest
from ackline.steps.operator_actions import not_committed_reason, perform_action
from ackline.steps.parts import Parts
from ackline.steps.settle import settle_turn
from ackline.steps.void import close_if_waived, is_at_most_once, store_void, waive
from ackline.turns import LIVE, Marker, MarkerKind, OperatorLoss, Plan, Settlement, TurnId, TurnKind

_logger = logging.getLogger(__name__)


class Consequence(StrEnum):
    """What becomes of an open turn that an operator closes."""

    VOID = "void"
    """Nothing of it counts, and its offsets are planned again."""
    LOST = "lost"
    """Its ranges are recorded as lost: the turn is claimed, and the handler may have been called."""
    SETTLED = "settled"
    """It is settled: an operator action, a genesis, or a turn that another process has settled meanwhile."""


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open turn, and what would become of it. `has_outcomes`: replay has reported it, so a run can settle it."""

    plan: Plan
    consequence: Consequence
    has_outcomes: bool


@dataclass(frozen=True, slots=True)
class ClosedTurn:
    """What became of the turn. `not_committed` is why the group's offsets were not committed; None if they were, or if
    the lane commits none. `not_paused` is why partitions were not paused that were to be."""

    plan: Plan
    consequence: Consequence
    not_committed: str | None = None
    not_paused: str | None = None


def open_turn(parts: Parts) -> OpenTurn:
    """Returns the lane's open turn. Stores nothing. Raises ConfigError if no turn is open."""
    plan, _ = _open_plan(parts)
    has_outcomes = parts.store.has_outcomes(plan.turn)
    if plan.kind is not TurnKind.RUN:
        return OpenTurn(plan, Consequence.SETTLED, has_outcomes)
    claimed = is_at_most_once(plan) and parts.store.has_claim(plan.turn)
    return OpenTurn(plan, Consequence.LOST if claimed else Consequence.VOID, has_outcomes)


def void_open_turn(parts: Parts, turn: TurnId, reason: str, pause: bool = False) -> ClosedTurn:
    """Closes the open turn `turn`, and commits the newest floor. With `pause`, the partitions that it reads are paused.

    Raises ConfigError if no turn is open, FatalError if another turn is, or if `turn` is claimed and reported
    and no file of its outcomes is lost, or its decisions are stored.
    """
    plan, before = _open_plan(parts)
    if plan.turn != turn:
        raise FatalError(f"{turn} is not open any more; {plan.turn} is. Nothing was stored. Look at that turn first")
    consequence = _close(parts, plan, before, reason, pause)
    not_paused = _pause(parts, plan, reason) if pause and consequence is not Consequence.SETTLED else None
    return ClosedTurn(plan, consequence, commit_or_reason(parts), not_paused)


def _open_plan(parts: Parts) -> tuple[Plan, Settlement]:
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest else None
    if newest is None or plan is None:
        raise ConfigError(f"{parts.pipeline.name} has no open turn in its lane {parts.store.lane}: nothing to void")
    return plan, newest


def _close(parts: Parts, plan: Plan, before: Settlement, reason: str, pause: bool) -> Consequence:
    if plan.kind is not TurnKind.RUN:
        settle_turn(parts, plan, before)
        return Consequence.SETTLED
    waiver = Marker(MarkerKind.WAIVER, parts.run_id, parts.now(), parts.actor, reason, by_operator=True, pause=pause)
    if not is_at_most_once(plan):
        # One commit. Its number is the one that settling the turn would take, so the first of the two decides.
        stored = store_void(parts, plan, before, waiver)
        consequence = Consequence.VOID if stored else _settled_meanwhile(parts, plan)
        if consequence is Consequence.VOID:
            _drop_lost_files(parts, plan)
        return consequence
    # The waiver takes the claim's number (steps/void.py). If it is refused, the handler may have been called. A waived
    # turn is never handed out, so it has no outcomes whose files could be lost.
    if waive(parts, plan, waiver):
        close_if_waived(parts, plan, before)
        return _settled_meanwhile(parts, plan)
    return _lose(parts, plan, before, OperatorLoss(reason, pause))


def _settled_meanwhile(parts: Parts, plan: Plan) -> Consequence:
    kind = parts.store.settlement(plan.turn).kind
    return Consequence.VOID if kind is TurnKind.VOID else Consequence.SETTLED


def _lose(parts: Parts, plan: Plan, before: Settlement, loss: OperatorLoss) -> Consequence:
    """Records the ranges of a claimed turn as lost, unless its driver has reported meanwhile, and settles the turn.

    The writes, in this order: the start marker; one commit of the lost ranges with reason, pause and an operator's
    mark; decisions n; settlement n, which takes reason and pause from that commit. A crash before the second leaves the
    turn open, and no driver that has not started it yet ever starts it. After it, any process that settles the turn, a
    run or this command again, finds the mark and stores the same settlement.
    """
    if not parts.store.has_claim(plan.turn):
        raise FatalError(f"{plan.turn} is not open any more: another process has closed it. Nothing was stored")
    if operator_loss(parts, plan):  # an operator's process has died before it could settle the turn
        settle_turn(parts, plan, before)
        return Consequence.LOST
    if parts.store.has_outcomes(plan.turn):
        _lose_reported(parts, plan, loss)
        settle_turn(parts, plan, before)
        return Consequence.LOST
    # The start marker comes first: a driver that has claimed the turn and not started yet then calls no handler. The
    # lost ranges are outcomes n, so the report of a driver that has started is refused.
    parts.store.store_start_marker(plan, parts.run_id, parts.now())
    lost = record_lost(parts, plan, loss.reason, loss)
    settle_turn(parts, plan, before)
    return Consequence.LOST if lost else Consequence.SETTLED


def _lose_reported(parts: Parts, plan: Plan, loss: OperatorLoss) -> None:
    """Records the ranges of a claimed turn as lost in place of its outcomes, if files of these are lost."""
    if not parts.store.has_lost_files(plan.turn):
        raise FatalError(
            f"{plan.turn} is claimed, its outcomes are stored and no file of them is lost or damaged, so it is neither "
            f"void nor lost. Settle it with `ackline run {parts.pipeline.name}`"
        )
    # Refused if decisions n are stored: another process may have read the outcomes whole and settle the turn by them.
    if not replace_by_lost(parts, plan, loss):
        raise FatalError(
            f"{plan.turn} is claimed, its outcomes and decisions are stored, and files of its outcomes are lost. "
            f"Restore the folder of the table outcomes from a backup, then settle the turn with "
            f"`ackline run {parts.pipeline.name}`"
        )


def _drop_lost_files(parts: Parts, plan: Plan) -> None:
    """Stops naming those files of a void turn that are lost or damaged.

    After the void settlement: before it, settle would take the rows of a removed file for gaps. The turn is closed
    whether this succeeds or not, and maintenance does it too, for a process that dies in between.
    """
    try:
        parts.store.drop_lost_files(plan.turn)
    except AcklineError as error:
        _logger.warning("%s. The turn is void; `ackline maintain` drops the lost files of its outcomes", error)


def _pause(parts: Parts, plan: Plan, reason: str) -> str | None:
    """Pauses the partitions that the closed turn was to read, unless they are paused. Returns why it could not.

    The settlement of our own void or loss has paused them. A turn of its own does it where another process has closed
    the turn: by an earlier waiver or loss, which was stored without a pause, or by a void of its own.
    """

    def choose(newest: Settlement) -> Targets:
        return {tp: newest.partitions[tp].state.floor for tp, planned in plan.partitions.items() if not planned.empty}

    newest = parts.store.newest()
    if newest is None or all(newest.partitions[tp].paused for tp in choose(newest)):
        return None
    try:
        perform_action(parts, TurnKind.PAUSE, choose, reason)
    except AcklineError as error:  # another run has taken the next turn; this turn is closed all the same
        return str(error)
    return None


def commit_or_reason(parts: Parts) -> str | None:
    """Commits the newest floor. Returns why it was not committed: what the operator did is stored all the same, and the
    next run commits it or stops with the same error."""
    if parts.store.lane != LIVE:
        return None
    try:
        commit_newest(parts)
    except AcklineError as error:
        return not_committed_reason(error)
    return None
