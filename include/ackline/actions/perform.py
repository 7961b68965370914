"""One way to carry out any operator action: the command and the DAG show it, ask or look for a confirmation, and do it.

Each action is a value with two methods. `preview` changes nothing and returns what the action would change; `perform`
carries it out and returns what it has changed. Both raise what the action itself raises.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ackline.actions.actions import PreparedAction, perform_action, prepare_action
from ackline.actions.adopt_ledger import adopt_ledger, prepare_adoption
from ackline.actions.form import GIVE_UP, PAUSE, REASON, Action, ActionRequest, check_entered, request_of
from ackline.actions.objects import JsonObject
from ackline.actions.report import (
    action_object,
    action_text,
    adoption_object,
    adoption_text,
    dropped_object,
    dropped_text,
    unpublished_preview,
    void_object,
    void_preview,
    void_text,
)
from ackline.actions.targets import choose_targets
from ackline.actions.void import drop_outputs, open_turn, unpublished_turn, void_open_turn
from ackline.lane.adapters import Adapters
from ackline.lane.plans import Targets
from ackline.ledger.turns import Settlement, TurnId
from ackline.pipeline.form import Entered


@dataclass(frozen=True, slots=True)
class Report:
    """What an action would change, or has changed: for a person and for a program."""

    text: str
    body: JsonObject


@dataclass(slots=True)
class OperatorAction(ABC):
    """An action as an operator has entered it."""

    reason: str
    question: str
    """What a terminal is asked, after the preview."""
    shown: TurnId | None = field(default=None, init=False)
    """The turn that `preview` has shown."""

    @abstractmethod
    def preview(self, adapters: Adapters) -> Report:
        """Returns what the action would change. Stores nothing."""

    @abstractmethod
    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        """Carries the action out. With `as_shown` it is refused if it would take another turn than the one shown."""


@dataclass(slots=True)
class _OnLane(OperatorAction):
    """retry, skip, reset, pause, resume."""

    request: ActionRequest

    def preview(self, adapters: Adapters) -> Report:
        action = prepare_action(adapters, self.request.kind, lambda lane: self._targets(adapters, lane), self.reason)
        self.shown = action.plan.turn
        return Report(action_text(action, done=False), action_object(action, dry_run=True))

    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        turn = self.shown if as_shown else None
        done = perform_action(
            adapters, self.request.kind, lambda lane: self._targets(adapters, lane), self.reason, turn
        )
        action = PreparedAction(done.plan, done.before)
        body = action_object(action, dry_run=False, not_committed=done.not_committed)
        return Report(_with_commit(action_text(action, done=True), done.not_committed), body)

    def _targets(self, adapters: Adapters, newest: Settlement) -> Targets:
        return choose_targets(adapters, self.request, newest)


@dataclass(slots=True)
class _Void(OperatorAction):
    pause: bool

    def preview(self, adapters: Adapters) -> Report:
        turn = open_turn(adapters)
        self.shown, self.question = turn.plan.turn, f"Close {turn.plan.turn}?"
        return Report(void_preview(turn, self.pause), void_object(turn, self.reason, self.pause))

    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        closed = void_open_turn(adapters, self.shown or open_turn(adapters).plan.turn, self.reason, self.pause)
        return Report(void_text(closed, adapters.pipeline.name), void_object(closed, self.reason, self.pause))


@dataclass(slots=True)
class _GiveUp(OperatorAction):
    """void --give-up."""

    tables: Sequence[str]

    def preview(self, adapters: Adapters) -> Report:
        turn = unpublished_turn(adapters, self.tables)
        self.shown, self.question = turn.turn, f"Give up the rows of {turn.turn} that can't be published?"
        return Report(unpublished_preview(turn), dropped_object(turn, self.reason))

    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        turn = self.shown or unpublished_turn(adapters, self.tables).turn
        dropped = drop_outputs(adapters, turn, self.tables, self.reason)
        return Report(dropped_text(dropped), dropped_object(dropped, self.reason))


@dataclass(slots=True)
class _AdoptLedger(OperatorAction):
    def preview(self, adapters: Adapters) -> Report:
        adoption = prepare_adoption(adapters, self.reason)
        return Report(
            adoption_text(adoption, done=False), adoption_object(adapters, adoption, self.reason, dry_run=True)
        )

    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        done = adopt_ledger(adapters, self.reason)
        text = _with_commit(adoption_text(done, done=True), done.not_committed)
        return Report(text, adoption_object(adapters, done, self.reason, dry_run=False))


def _with_commit(text: str, not_committed: str | None) -> str:
    return text if not_committed is None else f"{text}\nIt is stored; {not_committed}"


def entered_action(action: Action, name: str, entered: Entered, now: datetime) -> OperatorAction:
    """Returns the action that was entered for the pipeline `name`. Reads neither tables nor Kafka.

    Raises ConfigError for fields that the action does not take, for a reason that is missing, and for values that can't
    be read.
    """
    check_entered(action, entered)
    reason: str = entered.value(REASON) or ""
    if action.kind is not None:
        return _OnLane(reason, f"{action.name.capitalize()} {name}?", request_of(action.kind, entered, now))
    if entered.value(GIVE_UP):
        return _GiveUp(reason, "", entered.value(GIVE_UP))
    if action.name == "void":
        return _Void(reason, "", entered.value(PAUSE))
    return _AdoptLedger(reason, f"Adopt the ledger of {name}?")
