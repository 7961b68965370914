"""plan: decide what the next turn reads, and store that before anything is read.

`take_turn` is the one loop that takes a turn of a lane: every plan of a run or a backfill, an operator action, an
adoption and a cancellation goes through it. Each round reads the ledger anew, and meets an open turn, or stores plan
n + 1, which is refused if another process has taken the number. So two processes never plan the same offsets side by
side (S53), and an operator action never runs beside a replay. The checks that may refuse a plan are part of making it,
because they differ: a reset and a cancellation are the way out of changed settings, and only some actions ask the
group. (`ackline.lane.commit` has a loop of its own: the commit of the group takes no number.)

`plan` writes the first genesis (settlement 0), or a genesis turn for partitions that are new to the lane; then plan n.
A crash before a write costs nothing. After it, the next run finds what was written: a lane that has begun, or an open
plan, which it adopts.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ackline.errors import ConfigError, NewerCommit, did_you_mean
from ackline.kafka.config import brokers
from ackline.lane.adapters import Adapters
from ackline.lane.claim import close_if_waived, operator_loss
from ackline.lane.commit import Rounds
from ackline.lane.genesis import check_not_of_another_ledger, genesis_partitions, genesis_plan, leaderless_partitions
from ackline.lane.log_checks import KafkaView, listed, observe_kafka
from ackline.lane.plans import check_clock, check_settings_unchanged
from ackline.lane.rights import check_rights
from ackline.lane.spans import Note, span
from ackline.ledger.offsets import TopicPartition, count
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnId, TurnKind
from ackline.outputs.checks import check_outputs, check_outputs_of, store_plan
from ackline.outputs.publish import publish_settled
from ackline.steps.run_plan import next_plan
from ackline.steps.settle import settle_turn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakenTurn:
    """The turn that a step has taken, and the settlement before it; `plan` is None if nothing was to be planned.

    `adopted` is whether the turn was open: this process, or another one at any time before, has stored its plan.
    """

    plan: Plan | None
    before: Settlement
    adopted: bool = False


def take_turn(
    adapters: Adapters,
    doing: str,
    kinds: Collection[TurnKind],
    *,
    begin: Callable[[], object],
    end: Callable[[Plan, Settlement], bool],
    make: Callable[[Settlement], Plan | None],
) -> TakenTurn:
    """Returns the lane's open turn, or else a new one of one of `kinds`, whose plan this process has stored.

    A new plan of another kind is stored on the way, and the next round meets it as an open turn. `begin` begins a lane
    that has no settlement, or raises. `end` gets an open plan and the settlement before it, and returns whether it has
    ended that turn, or raises; the turn is adopted if it has not. `make` returns the plan after a settlement, None if
    there is nothing to plan, or raises what refuses the turn; it stores nothing of the turn.

    Raises LedgerError after MAX_LOST_RACES rounds, whose message begins with `doing`; NewerCommit if the group holds a
    commit of another ledger; ConfigError for a fixed clock behind the last turn; and what `begin`, `end`, `make` and
    `store_plan` raise.
    """
    rounds = Rounds(adapters, doing)
    for newest in rounds:
        open_plan = adapters.store.open_plan(newest) if newest else None
        if newest and open_plan:
            # Before a waived turn is closed: a void settlement at an earlier time would move the lane's clock back.
            check_clock(adapters, newest.settled_at)
            # The process that has waived a turn may have died before it could close it. Any process closes it.
            if close_if_waived(adapters, open_plan, newest) or end(open_plan, newest):
                continue
            # A lane has at most one open plan. It is adopted, whichever process has stored it and however long ago. A
            # second plan would handle the same offsets twice.
            check_clock(adapters, open_plan.planned_at)
            return TakenTurn(open_plan, newest, adopted=True)
        try:
            if newest is None:
                begin()
                continue
            check_clock(adapters, newest.settled_at)
            plan = make(newest)
            # The write that starts a turn. It publishes the rows of the settled turn first, so that no number is taken
            # before every output table holds the turn before it. From here on every process adopts this plan; before
            # it, nothing has happened.
            stored = plan is not None and store_plan(adapters, newest, plan, publish_settled)
        except NewerCommit as error:
            rounds.lose_to(error)
            continue
        if plan is not None and stored and plan.kind.replays:
            adapters.notify("planned", plan)
        if plan is None or (stored and plan.kind in kinds):
            return TakenTurn(plan, newest)
    raise rounds.all_lost()


@dataclass(frozen=True, slots=True)
class Planned:
    """The turn to carry out; `plan` is None if no subscribed topic exists yet, or any more.

    `missing` names subscribed topics, and partitions that the file names, which do not exist. `leaderless` are
    partitions that would join the lane if they had a leader. `actions` are the settlements that this process has stored
    on the way: of skips, resets, pauses, genesis turns, and of turns that an operator has recorded as lost.
    """

    plan: Plan | None
    adopted: bool
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    actions: tuple[Settlement, ...] = ()


def plan(adapters: Adapters) -> Planned:
    """Returns the lane's open plan, or else a new one, stored.

    Raises ConfigError if the dead-letter topic, an output topic or a subscribed one is missing, an output has other
    columns, or the fixed clock is behind the last turn; FatalError if an output can't be used; TopicChanged,
    GroupMoved, NewerCommit, TooFarBehind and RetentionPassed if the lane can't go on as it is.
    """
    run = _Planning(adapters)
    with span(adapters, "plan") as note:
        taken = take_turn(
            adapters, "taking a turn", (TurnKind.RUN,), begin=run.begin_lane, end=run.end_turn, make=run.make_plan
        )
        _note_plan(note, taken.plan, taken.adopted)
    if taken.adopted:
        return Planned(taken.plan, adopted=True, actions=tuple(run.actions))
    for tp in run.leaderless:
        log.warning("%s has no leader: it is left out until it has one; the others go on", tp)
    return Planned(taken.plan, False, run.missing, run.leaderless, tuple(run.actions))


def _note_plan(note: Note, plan: Plan | None, adopted: bool) -> None:
    if plan is None:
        return
    rows = plan.partitions.values()
    fresh, retries = sum(len(row.fresh) for row in rows), sum(count(row.retries) for row in rows)
    note(plan.turn, adopted=adopted, partitions=len(rows), fresh=fresh, retries=retries)


@dataclass(slots=True)
class _Planning:
    """The planning of one run: what it makes of the lane in each round, and what it has stored before its plan.

    `actions`, `missing` and `leaderless` are those of `Planned`.
    """

    adapters: Adapters
    actions: list[Settlement] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    skipped: bool = False
    """Whether this run has met a skip, and the lane has not gone on from there."""

    def begin_lane(self) -> None:
        """Stores the first genesis. All checks come before it, so that a first run that can't work stores nothing."""
        view = _checked_view(self.adapters, None)
        check_outputs(self.adapters)
        genesis = genesis_partitions(self.adapters, None, view, to_store=True)  # may look at the logs' timestamps
        store_first_genesis(self.adapters, genesis, "first run")

    def end_turn(self, open_plan: Plan, newest: Settlement) -> bool:
        """Settles an open turn that needs no replay. Returns False for one that does."""
        self._note(newest)
        # Actions and genesis turns need no replay, so any run that finds one open finishes it. It may be this run's
        # own, stored in the round before, or that of an operator whose process has died. A turn of a run needs none if
        # an operator's process has recorded it as lost and died before it could settle the turn. This run has handled
        # nothing of it, so it settles the turn and goes on with the next.
        if open_plan.kind.replays and not operator_loss(self.adapters, open_plan):
            return False
        self.skipped |= open_plan.kind is TurnKind.SKIP
        settled = settle_turn(self.adapters, open_plan, newest)
        if settled:  # None if another process was quicker: then that process reports it
            self.actions.append(settled)
            if open_plan.kind.moves_floor:  # the others move no offset
                moves = listed(f"{tp} to {planned.fresh.start}" for tp, planned in open_plan.partitions.items())
                log.warning("%s, a %s of %s: %s", open_plan.turn, open_plan.kind, moves, open_plan.reason)
        return True

    def make_plan(self, newest: Settlement) -> Plan | None:
        """Returns what comes after `newest`: a genesis turn, an action that moves the lane first, or the plan of a run.
        None if no subscribed topic exists yet, or any more."""
        self._note(newest)
        view = _checked_view(self.adapters, newest)
        check_settings_unchanged(self.adapters, newest)
        genesis = genesis_partitions(self.adapters, newest, view, to_store=True)
        self.missing, self.leaderless = view.missing, leaderless_partitions(self.adapters, newest.partitions, view)
        if not newest.partitions and not genesis:
            return None
        # New partitions join in a turn of their own, before anything of them is planned. Their start is decided in that
        # write, once: a plan that is voided and made again must not decide it anew (S54).
        if genesis:
            return genesis_plan(self.adapters, newest, genesis)
        return next_plan(self.adapters, newest, view, self.skipped)

    def _note(self, newest: Settlement) -> None:
        # A run skips once what is too far behind, and then reads: the log may grow by more than `max_offset_behind`
        # between any two rounds, and a run that skips in each of them never reads. It may skip again if another run has
        # read since, or a new epoch has begun: then the lane is no longer at the offset that was skipped to (S45).
        if newest.kind in (TurnKind.RUN, TurnKind.VOID) or not newest.turn.n:
            self.skipped = False


def _checked_view(adapters: Adapters, newest: Settlement | None, has_open_plan: bool = False) -> KafkaView:
    """Returns what Kafka shows, after the checks that come before the first write, so that a run which can't work
    leaves no trace. The broker is checked first: it fails most often, and within seconds."""
    adapters.cluster.reachable()
    check_rights(adapters, newest)  # before requests that the broker would refuse one after the other
    view = observe_kafka(adapters, newest)
    check_own_topics(adapters)
    if not has_open_plan:
        _check_topics_exist(adapters, newest, view)
        check_not_of_another_ledger(adapters, newest, view)
    return view


def preview(adapters: Adapters) -> Planned:
    """Returns what `plan` would store; stores nothing. A lane that has not begun is shown at its initial positions."""
    newest, open_plan = adapters.newest_and_open_plan()
    view = _checked_view(adapters, newest, open_plan is not None)
    if open_plan:
        return Planned(open_plan, adopted=True)
    if newest is not None:
        check_settings_unchanged(adapters, newest)
    lane = preview_lane(adapters, newest, view)
    leaderless = leaderless_partitions(adapters, lane, view)
    if not lane:
        return Planned(None, adopted=False, missing=view.missing, leaderless=leaderless)
    turn = newest.turn if newest else _first_turn(adapters)
    begun = Settlement(turn, TurnKind.GENESIS, adapters.run_id, adapters.now(), lane)
    planned = next_plan(adapters, begun, view)
    if planned is not None:
        check_outputs_of(adapters, planned, probe=False)  # a preview stores nothing, and may lack the right to write
    return Planned(planned, adopted=False, missing=view.missing, leaderless=leaderless)


def preview_lane(
    adapters: Adapters, newest: Settlement | None, view: KafkaView
) -> dict[TopicPartition, SettledPartition]:
    """Returns the lane's partitions, and those that would join it now, at their initial positions."""
    return {**(newest.partitions if newest else {}), **genesis_partitions(adapters, newest, view)}


def store_first_genesis(adapters: Adapters, genesis: dict[TopicPartition, SettledPartition], reason: str) -> bool:
    """Begins the lane, even if no topic exists yet. Stores the subscription with it. Returns False if it has begun.

    So a topic that is created later is known to have been missing, and is read from its log start (S32).
    """
    turn = _first_turn(adapters)
    first = Settlement(turn, TurnKind.GENESIS, adapters.run_id, adapters.now(), genesis, adapters.actor, reason)
    stored = adapters.store.store_settlement(first, subscription=adapters.pipeline.settings()["kafka"])
    if stored and genesis:
        adapters.notify("partitions_changed", genesis)
    return stored


def _check_topics_exist(adapters: Adapters, newest: Settlement | None, view: KafkaView) -> None:
    """Raises ConfigError under `missing_topics: fail` if the file names a topic or partition that does not exist.

    Those that are in the lane were deleted since: that is TopicChanged, which names the way on.
    """
    lane = newest.partitions if newest else {}
    known = {tp.topic for tp in lane} | {str(tp) for tp in lane}
    missing = [name for name in view.missing if name not in known]
    if missing and adapters.pipeline.missing_topics == "fail":
        near = "" if missing[0].endswith("]") else did_you_mean(missing[0], adapters.cluster.names())
        raise ConfigError(
            f"{', '.join(missing)}: no such topic or partition at {brokers(adapters.kafka)}"
            f"{f'{near} Pipeline' if near else ', and pipeline'} {adapters.pipeline.name} reads it. Nothing was "
            f"planned. Correct its name or the connection, create it, "
            f"or write `missing_topics: wait`: then it is read from its start once it exists",
            key="kafka.topics",
        )


def check_own_topics(adapters: Adapters) -> None:
    """Raises ConfigError if the pipeline's dead-letter topic or its rescue topic does not exist.

    A settle that meets no rescue topic goes on: it has outcomes to store. A plan has nothing yet, and a topic whose
    name is wrong is found now and not when retention is near.
    """
    pipeline = adapters.pipeline
    of_keys = {
        "dead-letter": (pipeline.dead_letter_topic, "dead_letter.topic", "write `dead_letter: none`"),
        "rescue": (pipeline.rescue_topic, "rescue.topic", "take `rescue` out of the file"),
    }
    for what, (topic, key, other) in of_keys.items():
        if topic is not None and topic not in adapters.cluster.topics([topic]):
            broker = brokers(adapters.kafka)
            names = [name for name in adapters.cluster.names() if not pipeline.kafka.subscribes_to_topic(name)]
            near = did_you_mean(topic, names)
            # A copy keeps the time of its record: a topic with the retention of the record's would lose both at once.
            kept = " --config cleanup.policy=delete --config retention.ms=-1" if what == "rescue" else ""
            raise ConfigError(
                f"the {what} topic {topic} of pipeline {adapters.pipeline.name} does not exist at {broker}"
                f"{near or '.'} Correct its name, create it with `kafka-topics.sh --bootstrap-server {broker} --create "
                f"--topic {topic}{kept}`, or {other}. Nothing was planned",
                key=key,
            )


def _first_turn(adapters: Adapters) -> TurnId:
    return TurnId(adapters.pipeline.name, adapters.store.lane, 0, 0)
