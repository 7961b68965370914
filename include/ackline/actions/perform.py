"""One way to carry out any operator action: the command and the DAG show it, ask or look for a confirmation, and do it.

Each action is a value with two methods. `preview` changes nothing and returns what the action would change; `perform`
carries it out and returns what it has changed. Both raise what the action itself raises. `choose_targets` says what a
request means for the lane as it is now: where each partition goes, or which pending offsets it is about.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import numpy as np

from ackline.actions.actions import PreparedAction, perform_action, prepare_action
from ackline.actions.adopt_ledger import adopt_ledger, prepare_adoption
from ackline.actions.form import GIVE_UP, PAUSE, REASON, Action, ActionRequest, check_entered, request_of
from ackline.actions.objects import JsonObject
from ackline.actions.report import (
    action_object,
    action_text,
    adoption_object,
    adoption_text,
    done_text,
    dropped_object,
    dropped_text,
    unpublished_preview,
    void_object,
    void_preview,
    void_text,
)
from ackline.actions.void import drop_outputs, open_turn, void_open_turn
from ackline.errors import ConfigError
from ackline.forms.arguments import Destination
from ackline.forms.form import Entered
from ackline.lane.adapters import Adapters
from ackline.lane.plans import LetGo, Targets
from ackline.lane.times import stamped_before
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import is_of_class
from ackline.ledger.pending import PendingKind, PendingRuns
from ackline.ledger.turns import Settlement, TurnId, TurnKind
from ackline.outputs.given_up import unpublished_turn
from ackline.tables.store import LedgerStore


@dataclass(frozen=True, slots=True)
class Report:
    """What an action would change, or has changed: for a person and for a program."""

    text: str
    body: JsonObject
    brief: str | None = None
    """What a person reads of a change that is done and was shown before; None for the whole text."""


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
    notes: tuple[str, ...] | None = None
    """What `preview` has found of the time that partitions are moved to."""

    def preview(self, adapters: Adapters) -> Report:
        targets = partial(choose_targets, adapters, self.request)
        action = self._noted(adapters, prepare_action(adapters, self.request.kind, targets, self.reason))
        self.shown = action.plan.turn
        return Report(action_text(action, done=False), action_object(action, dry_run=True))

    def perform(self, adapters: Adapters, as_shown: bool = False) -> Report:
        if self.notes is None and isinstance(self.request.to, datetime):
            self.preview(adapters)  # it may take a minute, in which an action that is stored would seem not to be
        turn = self.shown if as_shown else None
        targets = partial(choose_targets, adapters, self.request)
        done = perform_action(adapters, self.request.kind, targets, self.reason, turn)
        done = self._noted(adapters, done)
        texts = [_with_commit(text, done.not_committed) for text in (action_text(done, done=True), done_text(done))]
        return Report(texts[0], action_object(done, dry_run=False), texts[1])

    def _noted(self, adapters: Adapters, action: PreparedAction) -> PreparedAction:
        """Returns the action with what is out of order behind its targets, if they are of a time."""
        if self.notes is None and isinstance(self.request.to, datetime):
            logs = {tp: row.log._replace(start=row.fresh.start) for tp, row in action.plan.partitions.items()}
            found = stamped_before(adapters, logs, self.request.to)
            self.notes = tuple(f"{tp}: {note}." for tp, note in sorted(found.items()))
        return replace(action, notes=self.notes or ())


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
        brief = f"Done: the ledger of {adapters.pipeline.name} is adopted."
        texts = [_with_commit(text, done.not_committed) for text in (adoption_text(done, done=True), brief)]
        return Report(texts[0], adoption_object(adapters, done, self.reason, dry_run=False), texts[1])


def _with_commit(text: str, not_committed: str | None) -> str:
    return text if not_committed is None else f"{text}\nIt is stored; {not_committed}"


def entered_action(action: Action, name: str, entered: Entered, now: datetime, dry_run: bool = False) -> OperatorAction:
    """Returns the action that was entered for the pipeline `name`. Reads neither tables nor Kafka. Raises ConfigError
    as `check_entered` does, and for values that can't be read."""
    check_entered(action, entered, dry_run)
    reason: str = entered.value(REASON) or ""
    if action.kind is not None:
        return _OnLane(reason, f"{action.name.capitalize()} {name}?", request_of(action.kind, entered, now))
    if entered.value(GIVE_UP):
        return _GiveUp(reason, "", entered.value(GIVE_UP))
    if action.name == "void":
        return _Void(reason, "", entered.value(PAUSE))
    return _AdoptLedger(reason, f"Adopt the ledger of {name}?")


def choose_targets(adapters: Adapters, request: ActionRequest, newest: Settlement) -> Targets:
    """Returns the targets of a request, given the lane as it is.

    Raises ConfigError for partitions that the lane does not have, for a single offset and several partitions, for a
    skip that goes back, and if nothing that is pending is selected.
    """
    name = adapters.pipeline.name
    if request.is_about_pending:
        return _pending_targets(request, newest, name)
    chosen = request.partitions.chosen(newest.partitions, name)
    if request.gone:
        return _gone_targets(adapters, chosen, newest)
    floors = {tp: newest.partitions[tp].state.floor for tp in chosen}
    if request.kind.pauses is not None:
        return floors
    if request.kind.opens_epoch:  # a topic created again may lack partitions, which stay at their floor
        topics = adapters.cluster.topics(sorted({tp.topic for tp in chosen}))
        existing = [tp for tp in chosen if tp.topic in topics and tp.partition in topics[tp.topic].partitions]
        chosen = existing or chosen
    else:  # a partition that was let go has nothing to skip
        chosen = [tp for tp in chosen if not newest.partitions[tp].let_go] or chosen
    if isinstance(request.to, int) and len(chosen) > 1 and not request.all_partitions:
        raise ConfigError(
            f"--to {request.to} is one offset, and {len(chosen)} partitions are chosen: choose one with --topic and "
            f"--partition, or write --all-partitions",
            key="--to",
        )
    targets = {tp: floors[tp] + request.by for tp in chosen} if request.by is not None else {}
    targets = targets or _destinations(adapters, request.to, {tp: floors[tp] for tp in chosen})
    for tp, target in targets.items():
        if target < 0:
            raise ConfigError(f"{tp}: offset {target} is below 0; the floor is {floors[tp]}", key="--by")
    return targets if request.kind.opens_epoch else _forward(targets, floors, request, name)


def _gone_targets(
    adapters: Adapters, chosen: Iterable[TopicPartition], newest: Settlement
) -> dict[TopicPartition, LetGo]:
    """Returns the target of each chosen partition that its topic does not have any more. Raises ConfigError if there is
    none."""
    adapters.cluster.reachable()  # without a broker, every topic would look gone
    candidates = [tp for tp in chosen if not newest.partitions[tp].let_go]
    topics = adapters.cluster.topics(sorted({tp.topic for tp in candidates}))
    gone = [tp for tp in candidates if tp.topic not in topics or tp.partition not in topics[tp.topic].partitions]
    if not gone:
        raise ConfigError(
            f"{adapters.pipeline.name}: each chosen partition exists, or was let go before: there is none to let go. "
            f"For a topic that was created again, begin a new epoch with `ackline reset`",
            key="--gone",
        )
    return {tp: LetGo(_seen_end(adapters.store, newest, tp)) for tp in gone}


_MOST_TURNS = 100
"""How many turns back a plan is looked for that has seen the log of a partition."""


def _seen_end(store: LedgerStore, newest: Settlement, tp: TopicPartition) -> int:
    """Returns the end of the log of a partition as a turn has seen it last, or where the lane has read up to.

    A reset before it may have left out a partition that was gone: then its floor is below what the old epoch has read.
    """
    turn, end = newest.turn, newest.partitions[tp].state.complete_to
    for _ in range(_MOST_TURNS):
        if turn.n == 0:
            if turn.epoch == 0:
                break
            turn = store.reset_into(turn.epoch)
            before = store.settlement(turn).partitions.get(tp)
            end = max(end, before.state.complete_to) if before is not None else end
        plan = store.plan(turn)
        planned = plan.partitions.get(tp) if plan.kind.replays else None
        if planned is not None:
            same = planned.topic_id == newest.partitions[tp].topic_id
            return max(end, planned.log.end) if same else end
        turn = turn._replace(n=turn.n - 1)
    return end


def _destinations(
    adapters: Adapters, to: Destination | None, floors: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if isinstance(to, int):
        return dict.fromkeys(floors, to)
    if to == "committed":
        return _committed(adapters, floors)
    if to is None or to == "floor":
        return dict(floors)
    bounds = adapters.cluster.bounds(floors)
    if isinstance(to, datetime):
        first = adapters.cluster.offsets_at(floors, to)
        ends = {tp: bounds[tp].end for tp in floors}
        # The readable end of the log, if no record is that late or it is not readable yet.
        return {tp: ends[tp] if (offset := first[tp]) is None else min(offset, ends[tp]) for tp in floors}
    return {tp: bounds[tp].start if to == "earliest" else bounds[tp].end for tp in floors}


def _committed(adapters: Adapters, floors: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    committed = adapters.group.committed(floors)
    without = [str(tp) for tp in floors if tp not in committed]
    if without:
        raise ConfigError(
            f"the group {adapters.pipeline.kafka.group_id} has no committed offset for {', '.join(without)}: give "
            f"another --to for these",
            key="--to",
        )
    return {tp: committed[tp].offset for tp in floors}


def _forward(
    targets: Mapping[TopicPartition, int], floors: Mapping[TopicPartition, int], request: ActionRequest, name: str
) -> dict[TopicPartition, int]:
    """Returns the targets of a skip, which goes forward only.

    A word or a time may be behind the floor of some partitions, which then stay where they are; an offset is refused.
    """
    back = [tp for tp, target in targets.items() if target < floors[tp]]
    if back and (isinstance(request.to, int) or len(back) == len(targets)):
        tp = back[0]
        raise ConfigError(
            f"{tp}: offset {targets[tp]} is below the floor {floors[tp]}, and a skip goes forward only. To handle "
            f"records again, begin a new epoch with `ackline reset {name}`",
            key="--to",
        )
    return {tp: target for tp, target in targets.items() if tp not in back}


def _pending_targets(request: ActionRequest, newest: Settlement, name: str) -> dict[TopicPartition, PendingRuns]:
    """Returns the pending runs that a request selects, of the partitions that have any. A retry selects retries."""
    targets, held_back = {}, list[tuple[TopicPartition, int]]()
    for tp in request.partitions.chosen(newest.partitions, name):
        runs = newest.partitions[tp].state.pending
        if request.offsets is not None:
            bounds = (np.array([request.offsets.start]), np.array([request.offsets.end]))
            runs = runs.within(bounds) if request.offsets else runs.where(lambda state: False)
        if request.error_class is not None:
            runs = runs.where(lambda state: is_of_class(state.error_class, request.error_class))
            if not request.error_class:  # what is in flight or held back has no class, because it has not failed
                runs = runs.where(lambda state: state.kind not in (PendingKind.IN_FLIGHT, PendingKind.HELD_BACK))
        if request.kind is TurnKind.RETRY:
            held_back += [(tp, run.start) for run in runs.of_kind(PendingKind.HELD_BACK)[:1]]
            runs = runs.of_kind(PendingKind.RETRY)
        if len(runs):
            targets[tp] = runs
    if not targets:
        what = "no retry" if request.kind is TurnKind.RETRY else "no record"
        if held_back:
            (topic, partition), offset = held_back[0]
            raise ConfigError(
                f"{name}: each record that was selected waits for a lower one, so there is nothing to retry. `ackline "
                f"explain {name} {topic} {partition} {offset}` names it: retry that one, or skip it"
            )
        dead = f". What is dead is handed out again by `ackline dead {name} --redrive`"
        raise ConfigError(
            f"{name}: {what} that was selected is pending, so there is nothing to {request.kind}"
            f"{dead if request.kind is TurnKind.RETRY else ''}"
        )
    return targets
