"""plan: decide what the next turn reads, and store that before anything is read.

Its writes, in this order: the first genesis (settlement 0), or a genesis turn for partitions that are new to the lane;
then plan n. A crash before a write costs nothing. After it, the next run finds what was written: a lane that has begun,
or an open plan, which it adopts. Nothing but a stored plan decides what is read, so two runs never plan the same
offsets side by side (S53).
"""

import logging
from dataclasses import dataclass, replace

from ackline.errors import ConfigError, NewerCommit
from ackline.kafka.config import brokers
from ackline.lane.adapters import Parts
from ackline.lane.claim import operator_loss
from ackline.lane.commit import ledger_progress
from ackline.lane.genesis import check_not_of_another_ledger, genesis_partitions, genesis_plan, leaderless_partitions
from ackline.lane.log_checks import KafkaView, observe_kafka
from ackline.lane.new_plan import MAX_LOST_RACES, check_clock, check_settings_unchanged, too_many_lost_races
from ackline.lane.void import close_if_waived
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnId, TurnKind
from ackline.outputs.checks import check_outputs, check_outputs_of
from ackline.outputs.turn import store_plan
from ackline.steps.run_plan import next_plan
from ackline.steps.settle import settle_turn

log = logging.getLogger(__name__)

_NAMED = 5
"""How many partitions a warning names."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The turn to carry out; `plan` is None if no subscribed topic exists yet.

    `missing` names subscribed topics, and partitions that the file names, which do not exist. `leaderless` are
    partitions that would join the lane if they had a leader. `actions` are the settlements that this process has stored
    on the way: of skips, resets, pauses, genesis turns, and of turns that an operator has recorded as lost.
    """

    plan: Plan | None
    adopted: bool
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    actions: tuple[Settlement, ...] = ()


def plan(parts: Parts) -> Planned:
    """Returns the lane's open plan, or else a new one, stored.

    Raises ConfigError if the dead-letter topic, an output topic or a subscribed one is missing, an output has other
    columns, or the fixed clock is behind the last turn; FatalError if an output can't be used; TopicChanged,
    GroupMoved, NewerCommit, TooFarBehind and RetentionPassed if the lane can't go on as it is.
    """
    skipped, progress = False, None
    actions: list[Settlement] = []
    # Each round reads the ledger anew and moves it by one turn at most; every write is fenced by the turn's number.
    # If another run has taken the number, nothing was stored here, and the next round finds what it has stored.
    for _ in range(MAX_LOST_RACES):
        newest = parts.store.newest()
        open_plan = parts.store.open_plan(newest) if newest else None
        # A run skips once what is too far behind, and then reads: the log may grow by more than `max_offset_behind`
        # between any two rounds, and a run that skips in each of them never reads. It may skip again if another run has
        # read since, or a new epoch has begun: then the lane is no longer at the offset that was skipped to (S45).
        if newest and (newest.kind in (TurnKind.RUN, TurnKind.VOID) or not newest.turn.n):
            skipped = False
        if newest and open_plan and open_plan.kind is not TurnKind.RUN:
            # Actions and genesis turns need no replay, so any run that finds one open finishes it. It may be this run's
            # own, stored in the round before, or that of an operator whose process has died.
            skipped |= open_plan.kind is TurnKind.SKIP
            settled = settle_turn(parts, open_plan, newest)
            if settled:  # None if another process was quicker: then that process reports it
                actions.append(settled)
                _log_move(open_plan)
        elif newest and open_plan and close_if_waived(parts, open_plan, newest):
            # The process that has waived the turn has died before it could close it. This run goes on with the next.
            continue
        elif newest and open_plan and operator_loss(parts, open_plan):
            # The operator's process has died before it could settle the turn. This run has handled nothing of it, so it
            # settles the turn and goes on with the next.
            settled = settle_turn(parts, open_plan, newest)
            actions.extend([settled] if settled else [])
        elif open_plan:
            # A lane has at most one open plan. It is adopted, whichever run has stored it and however long ago. A
            # second plan would handle the same offsets twice.
            check_clock(parts, open_plan.planned_at)
            return Planned(open_plan, adopted=True, actions=tuple(actions))
        else:
            try:
                planned = _take_turn(parts, newest, skipped)
            except NewerCommit:
                # Another run may have settled and committed since this round read the ledger. Then the ledger has
                # moved, and the next round sees that. An unchanged ledger proves that the commit is another ledger's.
                previous, progress = progress, ledger_progress(parts)
                if progress == previous:
                    raise
                continue
            if planned:
                for tp in planned.leaderless:
                    log.warning("%s has no leader: it is left out until it has one; the others go on", tp)
                return replace(planned, actions=tuple(actions))
    raise too_many_lost_races(parts, "taking a turn")


def _log_move(plan: Plan) -> None:
    """Logs a warning of a skip or a reset that this run has settled; a genesis, pause or resume moves no offset."""
    if plan.kind in (TurnKind.SKIP, TurnKind.RESET):
        moves = [f"{tp} to {planned.fresh.start}" for tp, planned in plan.partitions.items()]
        more = f" and {len(moves) - _NAMED} more" if len(moves) > _NAMED else ""
        log.warning("%s, a %s of %s%s: %s", plan.turn, plan.kind, ", ".join(moves[:_NAMED]), more, plan.reason)


def preview(parts: Parts) -> Planned:
    """Returns what `plan` would store; stores nothing. A lane that has not begun is shown at its initial positions."""
    newest = parts.store.newest()
    open_plan = parts.store.open_plan(newest) if newest else None
    view = observe_kafka(parts, newest)
    check_dead_letter_topic(parts)
    if open_plan:
        return Planned(open_plan, adopted=True)
    _check_topics_exist(parts, newest, view)
    check_not_of_another_ledger(parts, newest, view)
    if newest is not None:
        check_settings_unchanged(parts, newest)
    lane = preview_lane(parts, newest, view)
    leaderless = leaderless_partitions(parts, lane, view)
    if not lane:
        return Planned(None, adopted=False, missing=view.missing, leaderless=leaderless)
    turn = newest.turn if newest else _first_turn(parts)
    begun = Settlement(turn, TurnKind.GENESIS, parts.run_id, parts.now(), lane)
    planned = next_plan(parts, begun, view)
    check_outputs_of(parts, planned, probe=False)  # a preview stores nothing, and may lack the right to write
    return Planned(planned, adopted=False, missing=view.missing, leaderless=leaderless)


def preview_lane(parts: Parts, newest: Settlement | None, view: KafkaView) -> dict[TopicPartition, SettledPartition]:
    """Returns the lane's partitions, and those that would join it now, at their initial positions."""
    return {**(newest.partitions if newest else {}), **genesis_partitions(parts, newest, view)}


def _take_turn(parts: Parts, newest: Settlement | None, skipped: bool) -> Planned | None:
    """Makes one attempt to store what comes next: a genesis, an action, or the plan of a run.

    Returns None if another round is needed: it was a genesis or an action, which is settled before the lane goes on, or
    another run has taken the number.
    """
    # All checks come before the first write, so that a run which can't work leaves no trace. The check of Kafka comes
    # first: it fails most often, and within seconds.
    check_clock(parts, newest.settled_at if newest else None)
    view = observe_kafka(parts, newest)
    check_dead_letter_topic(parts)
    _check_topics_exist(parts, newest, view)
    check_not_of_another_ledger(parts, newest, view)
    if newest is not None:
        check_settings_unchanged(parts, newest)
    genesis = genesis_partitions(parts, newest, view)
    if newest is None:
        check_outputs(parts)  # before the genesis, so that a first run that can't write stores nothing
        store_first_genesis(parts, genesis, "first run")
        return None
    leaderless = leaderless_partitions(parts, newest.partitions, view)
    if not newest.partitions and not genesis:
        return Planned(None, adopted=False, missing=view.missing, leaderless=leaderless)
    # New partitions join in a turn of their own, before anything of them is planned. Their start is decided in that
    # write, once: a plan that is voided and made again must not decide it anew (S54).
    plan = genesis_plan(parts, newest, genesis) if genesis else next_plan(parts, newest, view, skipped)
    # The write that starts a turn. From here on every run adopts this plan; before it, nothing has happened.
    if not store_plan(parts, newest, plan) or plan.kind is not TurnKind.RUN:
        return None
    parts.notify("planned", plan)
    return Planned(plan, adopted=False, missing=view.missing, leaderless=leaderless)


def store_first_genesis(parts: Parts, genesis: dict[TopicPartition, SettledPartition], reason: str) -> bool:
    """Begins the lane, even if no topic exists yet. Stores the subscription with it. Returns False if it has begun.

    So a topic that is created later is known to have been missing, and is read from its log start (S32).
    """
    turn = _first_turn(parts)
    first = Settlement(turn, TurnKind.GENESIS, parts.run_id, parts.now(), genesis, parts.actor, reason)
    stored = parts.store.store_settlement(first, subscription=parts.pipeline.settings()["kafka"])
    if stored and genesis:
        parts.notify("partitions_changed", genesis)
    return stored


def _check_topics_exist(parts: Parts, newest: Settlement | None, view: KafkaView) -> None:
    """Raises ConfigError under `missing_topics: fail` if the file names a topic or partition that does not exist.

    Those that are in the lane were deleted since: that is TopicChanged, which names the way on.
    """
    lane = newest.partitions if newest else {}
    known = {tp.topic for tp in lane} | {str(tp) for tp in lane}
    missing = [name for name in view.missing if name not in known]
    if missing and parts.pipeline.missing_topics == "fail":
        raise ConfigError(
            f"{', '.join(missing)}: no such topic or partition at {brokers(parts.kafka)}, and pipeline "
            f"{parts.pipeline.name} reads it. Nothing was planned. Correct its name or the connection, create it, or "
            f"write `missing_topics: wait`: then it is read from its start once it exists",
            key="kafka.topics",
        )


def check_dead_letter_topic(parts: Parts) -> None:
    """Raises ConfigError if the pipeline's dead-letter topic does not exist."""
    topic = parts.pipeline.dead_letter_topic
    if topic is not None and topic not in parts.cluster.topics([topic]):
        raise ConfigError(
            f"the dead-letter topic {topic} of pipeline {parts.pipeline.name} does not exist: create it, or write "
            f"`dead_letter: none`. Nothing was planned",
            key="dead_letter.topic",
        )


def _first_turn(parts: Parts) -> TurnId:
    return TurnId(parts.pipeline.name, parts.store.lane, 0, 0)
