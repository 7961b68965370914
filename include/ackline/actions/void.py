"""`ackline void`: closes an open turn that can't be carried out, or gives up rows that can't be published.

The handler of such a turn kills the driver, for example. What becomes of the turn depends on what is stored of it, and
never on the state of a process:
- At least once, and at most once before the claim, it is void: nothing of it counts, and its offsets are planned again.
- At most once after the claim, its ranges are recorded as lost, because the handler may have been called for them. If
  outcomes are stored, a run settles the turn, unless a file of them is lost.
- An operator action or a genesis is settled: its plan holds all that it does. Only a skip reads more, the files of
  rows that wait for records in flight. If these are lost or damaged, the skip is void.
The ledger is written before the group is read. So a turn can be closed while the group is busy or no broker answers.

`ackline void --give-up TABLE` gives up rows of the newest settled turn (`ackline.outputs.given_up`).
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from ackline.actions.actions import commit_or_reason, perform_action
from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.lane.adapters import Adapters
from ackline.lane.claim import close_if_waived, operator_loss, record_lost, replace_by_lost, store_void, waive
from ackline.lane.plans import Targets
from ackline.lane.ways_out import run
from ackline.ledger.turns import Marker, MarkerKind, OperatorLoss, Plan, Settlement, TurnId, TurnKind
from ackline.outputs.given_up import DroppedOutputs, give_up
from ackline.pipeline.pipeline import claims
from ackline.steps.settle import settle_turn

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


def open_turn(adapters: Adapters) -> OpenTurn:
    """Returns the lane's open turn. Stores nothing. Raises ConfigError if no turn is open."""
    plan, _ = _open_plan(adapters)
    has_outcomes = adapters.store.has_outcomes(plan.turn)
    if not plan.kind.replays:
        return OpenTurn(plan, Consequence.SETTLED, has_outcomes)
    claimed = claims(plan) and adapters.store.has_claim(plan.turn)
    return OpenTurn(plan, Consequence.LOST if claimed else Consequence.VOID, has_outcomes)


def void_open_turn(adapters: Adapters, turn: TurnId, reason: str, pause: bool = False) -> ClosedTurn:
    """Closes the open turn `turn`, and commits the newest floor. With `pause`, the partitions that it reads are paused.

    Raises ConfigError if no turn is open, FatalError if another turn is, or if `turn` is claimed and reported
    and no file of its outcomes is lost, or its decisions are stored.
    """
    plan, before = _open_plan(adapters)
    if plan.turn != turn:
        raise FatalError(f"{turn} is not open any more; {plan.turn} is. Nothing was stored. Look at that turn first")
    consequence = _close(adapters, plan, before, reason, pause)
    not_paused = _pause(adapters, plan, reason) if pause and consequence is not Consequence.SETTLED else None
    return ClosedTurn(plan, consequence, commit_or_reason(adapters), not_paused)


def _open_plan(adapters: Adapters) -> tuple[Plan, Settlement]:
    newest, plan = adapters.newest_and_open_plan()
    if newest is None or plan is None:
        raise ConfigError(
            f"{adapters.pipeline.name} has no open turn in its lane {adapters.store.lane}: nothing to void"
        )
    return plan, newest


def _close(adapters: Adapters, plan: Plan, before: Settlement, reason: str, pause: bool) -> Consequence:
    waiver = Marker(
        MarkerKind.WAIVER, adapters.run_id, adapters.now(), adapters.actor, reason, by_operator=True, pause=pause
    )
    if not plan.kind.replays:
        return _close_action(adapters, plan, before, waiver)
    if not claims(plan):
        # One commit. Its number is the one that settling the turn would take, so the first of the two decides.
        stored = store_void(adapters, plan, before, waiver)
        consequence = Consequence.VOID if stored else _settled_meanwhile(adapters, plan)
        if consequence is Consequence.VOID:
            # Stops naming the files that are lost or damaged. After the void settlement: before it, settle would take
            # the rows of a removed file for gaps. Maintenance does it too, for a process that dies in between.
            try:
                adapters.store.drop_lost_files(plan.turn)
            except AcklineError as error:
                _logger.warning("%s. The turn is void; `ackline maintain` drops the lost files of its outcomes", error)
        return consequence
    # The waiver takes the claim's number (lane/claim.py). If it is refused, the handler may have been called. A waived
    # turn is never handed out, so it has no outcomes whose files could be lost.
    if waive(adapters, plan, waiver):
        close_if_waived(adapters, plan, before)
        return _settled_meanwhile(adapters, plan)
    return _lose(adapters, plan, before, OperatorLoss(reason, pause))


def _close_action(adapters: Adapters, plan: Plan, before: Settlement, waiver: Marker) -> Consequence:
    """Settles an open operator action or genesis. A skip that can't be settled is void.

    A skip hands nothing out, so no claim stands against it under any guarantee. Its settlement and the void one take
    the same number: the first of the two decides.
    """
    try:
        settle_turn(adapters, plan, before)
    except FatalError as error:  # rows that wait are gone or damaged, or this machine can't read them
        if not plan.kind.may_be_void:
            raise
        _logger.warning("%s, a skip, can't be settled: %s", plan.turn, error)
        store_void(adapters, plan, before, replace(waiver, pause=False))
        return _settled_meanwhile(adapters, plan)
    return Consequence.SETTLED


def _settled_meanwhile(adapters: Adapters, plan: Plan) -> Consequence:
    kind = adapters.store.settlement(plan.turn).kind
    return Consequence.VOID if kind is TurnKind.VOID else Consequence.SETTLED


def _lose(adapters: Adapters, plan: Plan, before: Settlement, loss: OperatorLoss) -> Consequence:
    """Records the ranges of a claimed turn as lost, unless its driver has reported meanwhile, and settles the turn.

    The writes, in this order: the start marker; one commit of the lost ranges with reason, pause and an operator's
    mark; decisions n; settlement n, which takes reason and pause from that commit. A crash before the second leaves the
    turn open, and no driver that has not started it yet ever starts it. After it, any process that settles the turn, a
    run or this command again, finds the mark and stores the same settlement.
    """
    if not adapters.store.has_claim(plan.turn):
        raise FatalError(f"{plan.turn} is not open any more: another process has closed it. Nothing was stored")
    lost = True
    if operator_loss(adapters, plan):
        pass  # an operator's process has died before it could settle the turn
    elif adapters.store.has_outcomes(plan.turn):
        _lose_reported(adapters, plan, loss)
    else:
        # The start marker comes first: a driver that has claimed the turn and not started yet then calls no handler.
        # The lost ranges are outcomes n, so the report of a driver that has started is refused.
        adapters.store.store_start_marker(plan, adapters.run_id, adapters.now())
        lost = record_lost(adapters, plan, loss.reason, loss)
    settle_turn(adapters, plan, before)
    return Consequence.LOST if lost else Consequence.SETTLED


def _lose_reported(adapters: Adapters, plan: Plan, loss: OperatorLoss) -> None:
    """Records the ranges of a claimed turn as lost in place of its outcomes, if files of these are lost."""
    if not adapters.store.has_lost_files(plan.turn):
        raise FatalError(
            f"{plan.turn} is claimed, its outcomes are stored and no file of them is lost or damaged, so it is neither "
            f"void nor lost. Settle it with `{run(plan.turn)}`"
        )
    # Refused if decisions n are stored: another process may have read the outcomes whole and settle the turn by them.
    if not replace_by_lost(adapters, plan, loss):
        raise FatalError(
            f"{plan.turn} is claimed, its outcomes and decisions are stored, and files of its outcomes are lost. "
            f"Restore the folder of the table outcomes from a backup, then settle the turn with "
            f"`{run(plan.turn)}`"
        )


def _pause(adapters: Adapters, plan: Plan, reason: str) -> str | None:
    """Pauses the partitions that the closed turn was to read, unless they are paused. Returns why it could not.

    The settlement of our own void or loss has paused them. A turn of its own does it where another process has closed
    the turn: by an earlier waiver or loss, which was stored without a pause, or by a void of its own.
    """

    def choose(newest: Settlement) -> Targets:
        return {tp: newest.partitions[tp].state.floor for tp, planned in plan.partitions.items() if not planned.empty}

    newest = adapters.store.newest()
    if newest is None or all(newest.partitions[tp].paused for tp in choose(newest)):
        return None
    try:
        perform_action(adapters, TurnKind.PAUSE, choose, reason)
    except AcklineError as error:  # another run has taken the next turn; this turn is closed all the same
        return str(error)
    return None


def drop_outputs(adapters: Adapters, turn: TurnId, tables: Collection[str], reason: str) -> DroppedOutputs:
    """Publishes the settled turn `turn`, gives up the rows of those of `tables` that can't be published, and commits
    the newest floor. Raises as `give_up` does."""
    dropped = give_up(adapters, turn, tables, reason)
    return replace(dropped, not_committed=commit_or_reason(adapters))
