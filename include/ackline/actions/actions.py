"""Operator actions: turns that handle no record and change the lane's state (skip, retry, reset, pause, resume).

An action takes number n among the plans, as a plan that holds the whole action: `start_offset` and `end_offset` of its
rows are the offset that it moves a partition to, `retries` the pending offsets that it has chosen. From then on any
process can finish it, so a crash after the plan loses nothing: the next run finds the open plan and settles it. Its
number among the plans is also the fence against a run that takes the same turn.

Everything that may refuse an action comes before its plan: an open turn, the lane, the targets, the log, and for one
that may move a floor the group. After the plan the action is a fact, whatever becomes of the group's commit: the result
states why the group was not committed, and the next run commits it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ackline.errors import AcklineError, ConfigError, FatalError, GroupBusy, GroupMoved
from ackline.lane.adapters import Adapters
from ackline.lane.commit import CommitCheck, acknowledging, commit_metadata_of, commit_newest
from ackline.lane.genesis import previous_subscription
from ackline.lane.plans import Targets, action_plan, check_clock, check_settings_unchanged
from ackline.lane.ways_out import run, void_advice
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.outputs.expected import older_copies
from ackline.outputs.publish import publish_settled
from ackline.steps.plan import take_turn
from ackline.steps.settle import settle_turn

Choose = Callable[[Settlement], Targets]
"""The targets of an action, given the lane as it is when the action takes its turn."""


@dataclass(frozen=True, slots=True)
class PreparedAction:
    """An action and the lane before it: one that nothing refuses now, whose plan is not stored, or one that is stored
    and settled.

    `older_copies` has, of a reset or an adoption, each output table that is an older copy, or that is ahead of the
    ledger, with the reason: the action goes on without the rows of what is not handled again, or beside them.
    `not_committed` is why a settled action did not commit the group; None if it did, or if the lane commits nothing.
    """

    plan: Plan
    before: Settlement
    older_copies: Mapping[str, str] = field(default_factory=dict)
    not_committed: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences about a target that is a time, in a log that is not in the order of its timestamps."""


def prepare_action(
    adapters: Adapters, kind: TurnKind, choose: Choose, reason: str, adopts_ledger: bool = False
) -> PreparedAction:
    """Returns the action as it would be carried out now. Stores nothing, and raises what `perform_action` raises."""
    _check_lane(adapters, kind)
    newest = adapters.store.newest()
    if newest is None:
        raise _not_begun(adapters, kind)
    open_plan = adapters.store.open_plan(newest)
    if open_plan is not None:
        raise open_turn_error(kind, open_plan)
    check_clock(adapters, newest.settled_at)
    plan = _plan(adapters, newest, kind, choose, reason, adopts_ledger)
    _check_group(adapters, newest, plan, adopts_ledger)
    return PreparedAction(plan, newest, _older_copies(adapters, newest, kind, adopts_ledger))


def perform_action(
    adapters: Adapters,
    kind: TurnKind,
    choose: Choose,
    reason: str,
    turn: TurnId | None = None,
    adopts_ledger: bool = False,
) -> PreparedAction:
    """Carries out an action on the lane, and commits what follows from it.

    `choose` is called again whenever another run has taken the turn, because the lane has moved then. With `turn`, the
    action is refused instead: a user has confirmed what it does in that turn. With `adopts_ledger`, commits of another
    ledger of the pipeline do not refuse it.

    Raises, and has stored nothing: FatalError while a turn is open; ConfigError for a lane that has not begun, for
    partitions that it does not have, and for targets outside the log; TopicChanged for partitions whose topic is not
    the one that was read; GroupBusy and NewerCommit for an action that may move a floor. An error of settling the
    action names the turn, which is stored then.
    """
    _check_lane(adapters, kind)

    def begin() -> None:
        raise _not_begun(adapters, kind)

    def refuse(open_plan: Plan, _: Settlement) -> bool:
        raise open_turn_error(kind, open_plan)

    def make(newest: Settlement) -> Plan:
        plan = _plan(adapters, newest, kind, choose, reason, adopts_ledger)
        if turn is not None and plan.turn != turn:
            raise FatalError(f"{turn} is taken: the lane has moved since. Nothing was stored. Look at it again first")
        _check_group(adapters, newest, plan, adopts_ledger)
        return plan

    taken = take_turn(adapters, f"taking the turn of a {kind}", (kind,), begin=begin, end=refuse, make=make)
    assert taken.plan is not None  # `make` always returns one
    try:
        # Before the settlement, because a reset takes the tables as they are.
        found = _older_copies(adapters, taken.before, kind, adopts_ledger)
        settle_turn(adapters, taken.plan, taken.before)
    except AcklineError as error:
        error.add_advice(f"{taken.plan.turn}, the {kind}, is stored: the next run settles it")
        raise
    return PreparedAction(taken.plan, taken.before, found, commit_or_reason(adapters))


def _older_copies(adapters: Adapters, newest: Settlement, kind: TurnKind, adopts_ledger: bool) -> dict[str, str]:
    return older_copies(adapters.store, newest) if kind.opens_epoch or adopts_ledger else {}


def _check_lane(adapters: Adapters, kind: TurnKind) -> None:
    if kind.opens_epoch and not adapters.commits:
        raise ConfigError(
            f"{adapters.store.lane} holds what was chosen once, so it is never reset; begin another backfill",
            key="--lane",
        )


def _not_begun(adapters: Adapters, kind: TurnKind) -> ConfigError:
    return ConfigError(f"{adapters.pipeline.name} has not run yet: there is nothing to {kind}")


def open_turn_error(action: str, open_plan: Plan) -> FatalError:
    """Returns the error that refuses an action while a turn is open."""
    what, then = "", f"then {action} again"
    if not open_plan.kind.replays:
        # It may be this very action, whose process has died or got no answer: done again, it would be done twice.
        what = f", a {open_plan.kind} of {open_plan.actor or 'Ackline'} ({open_plan.reason or 'no reason given'}),"
        then = f"and look at the lane before you {action} again: that turn may be what you have asked for"
    return FatalError(
        f"{open_plan.turn}{what} is open: let it end (`{run(open_plan.turn)}`), {then}. {void_advice(open_plan.turn)}"
    )


def _plan(
    adapters: Adapters, newest: Settlement, kind: TurnKind, choose: Choose, reason: str, adopts_ledger: bool
) -> Plan:
    if not kind.opens_epoch:
        # The plan stores the settings in force, and the next turn takes them for those that pending records were
        # planned under. A changed guarantee would not show. A reset leaves nothing pending, so it may change them.
        check_settings_unchanged(adapters, newest)
    targets = choose(newest)
    if not targets:
        raise ConfigError(f"{adapters.pipeline.name}: no partition was named to {kind}")
    plan = action_plan(adapters, newest, kind, targets, reason, inside=True)
    # An action looks for no topics, so its plan stores the subscription of the last turn that did. With the file's, a
    # topic that was added to the file before the action would count as missing at that turn. It would start at its log
    # start instead of by `start` (S30).
    looked = previous_subscription(adapters, newest) or adapters.pipeline.kafka
    subscription = looked.model_dump(mode="json", include={"topics", "pattern", "partitions", "partition_filter"})
    plan = replace(plan, settings={**plan.settings, "kafka": plan.settings["kafka"] | subscription})
    return acknowledging(plan) if adopts_ledger else plan


def _check_group(adapters: Adapters, newest: Settlement, plan: Plan, adopts_ledger: bool) -> None:
    """Raises GroupBusy or NewerCommit if the group would refuse the floors after an action that may move one.

    A partition whose group was moved by another client refuses nothing: the action may be the operator's answer to
    that, one partition after the other.
    """
    if not plan.kind.moves_floor or adapters.store.lane != LIVE:
        return
    adapters.group.check_no_members()
    if adopts_ledger:
        return
    metadata = commit_metadata_of(adapters, newest)
    if plan.kind.opens_epoch:  # its floors are committed as turn 0 of the new epoch
        metadata = CommitMetadata(metadata.ledger, metadata.pipeline, metadata.epoch + 1, 0)
    lane = {tp: settled for tp, settled in newest.partitions.items() if adapters.is_subscribed(tp)}
    committed = adapters.group.committed(adapters.unchanged_partitions({tp: row.topic_id for tp, row in lane.items()}))
    check = CommitCheck(adapters, metadata)
    for tp, commit in committed.items():
        try:
            check.check(tp, commit, lane[tp].acknowledged_foreign_offset)
        except GroupMoved:
            continue


def commit_or_reason(adapters: Adapters) -> str | None:
    """Commits the newest floor after an operator's command has stored what it does. Returns why it was not committed,
    as the end of a sentence; None if it was, or if the lane commits nothing.

    An error here would make the operator repeat the command, so it is part of the result (S37). The text gives no
    advice to repeat it: the action is done, and the next run commits the group, or stops with the same error.
    """
    if not adapters.commits:
        return None
    try:
        commit_newest(adapters, publish_settled)
    except AcklineError as error:
        if isinstance(error, GroupBusy) and error.members:
            return f"the group is committed when its members are gone: {error.members}"
        text = str(error).removesuffix("; then run this again")
        return f"the group was not committed, and the next run does it: {text}"
    return None
