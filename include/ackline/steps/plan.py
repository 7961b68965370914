"""plan: what the next turn reads, stored before anything is read.

Its writes, in order: the first genesis (settlement 0), or for partitions seen later a genesis turn; then plan n. Killed
before a write, nothing happened; killed after it, the next run finds it: a lane that has started, or an open plan,
which is adopted. Nothing else decides what is read, so no two runs can plan the same offsets side by side.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from ackline import planning
from ackline.commit_rule import CommitMetadata, Committed, check_commit_allowed, still_acknowledged
from ackline.errors import ConfigError, GroupMoved, LedgerError, NewerCommit, TooFarBehind
from ackline.metrics import due_retries
from ackline.offsets import TopicPartition
from ackline.planning import Limits, PartitionView
from ackline.steps.action_plans import action_plan, follow_plan, new_plan
from ackline.steps.commit import commit_metadata_of, ledger_progress, may_restore
from ackline.steps.expired import refuse_lost
from ackline.steps.genesis import genesis_of, genesis_plan, leaderless_of
from ackline.steps.log_checks import check_logs, check_topic
from ackline.steps.observe import KafkaView, observe_kafka, written_to
from ackline.steps.parts import Parts
from ackline.steps.setting_changes import check_unchanged
from ackline.steps.settle import settle_turn
from ackline.turns import Plan, SettledPartition, Settlement, TurnId, TurnKind

log = logging.getLogger(__name__)

_RACES = 20
"""How often a number may be lost to another run before something is wrong with the tables."""
_NAMED = 5
"""Partitions that a warning names."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The turn to carry out; `plan` is None where no subscribed topic exists yet. `missing` names those that don't, and
    partitions that the file names; `leaderless` are those that would join the lane, if they had a leader. `acts` are
    the acts that this process has settled before."""

    plan: Plan | None
    adopted: bool
    missing: tuple[str, ...] = ()
    leaderless: tuple[TopicPartition, ...] = ()
    acts: tuple[Settlement, ...] = ()


def plan(parts: Parts) -> Planned:
    """The lane's open plan, or else a new one, stored.

    Raises ConfigError where the dead-letter topic is missing or the fixed clock is behind the last turn; TopicChanged
    and GroupMoved where the lane can't go on as it is.
    """
    skipped, come = False, None
    acts: list[Settlement] = []
    for _ in range(_RACES):
        newest = parts.store.newest()
        open_plan = parts.store.open_plan(newest) if newest else None
        if newest and (newest.kind in (TurnKind.RUN, TurnKind.VOID) or not newest.turn.n):
            skipped = False  # another run has read since, or this is another epoch: for what is next nothing was
        if newest and open_plan and open_plan.kind is not TurnKind.RUN:
            skipped |= open_plan.kind is TurnKind.SKIP
            settled = settle_turn(parts, open_plan, newest)  # an act needs no replay: who finds it open finishes it
            if settled:
                acts.append(settled)
                _say_act(open_plan)
        elif open_plan:
            _check_clock(parts, open_plan.planned_at)
            return Planned(open_plan, adopted=True, acts=tuple(acts))
        else:
            try:
                done = _take_turn(parts, newest, skipped)
            except NewerCommit:
                before, come = come, ledger_progress(parts)
                if come == before:
                    raise
                continue
            if done:
                for tp in done.leaderless:
                    log.warning("%s has no leader: it is left out until it has one; the others go on", tp)
                return replace(done, acts=tuple(acts))
    raise LedgerError(f"{_RACES} times another run took the turn that this one was about to take; are runs looping?")


def _say_act(plan: Plan) -> None:
    """A run that skips or follows says so, beside what it stores."""
    if plan.kind in (TurnKind.SKIP, TurnKind.RESET):
        moves = [f"{tp} to {one.fresh.start}" for tp, one in plan.partitions.items()]
        more = f" and {len(moves) - _NAMED} more" if len(moves) > _NAMED else ""
        log.warning("%s, a %s of %s%s: %s", plan.turn, plan.kind, ", ".join(moves[:_NAMED]), more, plan.reason)


def preview(parts: Parts) -> Planned:
    """What `plan` would store, without storing anything: a new lane is shown from where it would start."""
    newest = parts.store.newest()
    open_plan = parts.store.open_plan(newest) if newest else None
    look = observe_kafka(parts, newest)
    _check_dead_letter_topic(parts)
    if open_plan:
        return Planned(open_plan, adopted=True)
    if newest is not None:
        check_unchanged(parts, newest)
    lane = preview_lane(parts, newest, look)
    leaderless = leaderless_of(parts, lane, look)
    if not lane:
        return Planned(None, adopted=False, missing=look.missing, leaderless=leaderless)
    turn = newest.turn if newest else _first_turn(parts)
    started = Settlement(turn, TurnKind.GENESIS, parts.run_id, parts.now(), lane)
    return Planned(_new_plan(parts, started, look), adopted=False, missing=look.missing, leaderless=leaderless)


def preview_lane(parts: Parts, newest: Settlement | None, look: KafkaView) -> dict[TopicPartition, SettledPartition]:
    """The lane's partitions, and those that would join it now, from where they would start."""
    return {**(newest.partitions if newest else {}), **genesis_of(parts, newest, look)}


def _take_turn(parts: Parts, newest: Settlement | None, skipped: bool) -> Planned | None:
    """One try at storing what comes next; None where that was a genesis, or another run was quicker.

    Once it has `skipped`, a run reads: a log that grows meanwhile is too far behind again at each look.
    """
    _check_clock(parts, newest.settled_at if newest else None)
    look = observe_kafka(parts, newest)  # says first, and soon, that a broker is away
    _check_dead_letter_topic(parts)
    if newest is not None:
        check_unchanged(parts, newest)
    genesis = genesis_of(parts, newest, look)
    if newest is None:
        # Also where no topic is there yet: one that is created later is then known to have been missing (S32).
        turn, why = _first_turn(parts), "first run"
        first = Settlement(turn, TurnKind.GENESIS, parts.run_id, parts.now(), genesis, parts.actor, why)
        if parts.store.store_settlement(first, subscription=parts.pipeline.settings()["kafka"]) and genesis:
            parts.notify("partitions_changed", genesis)
        return None
    leaderless = leaderless_of(parts, newest.partitions, look)
    if not newest.partitions and not genesis:
        return Planned(None, adopted=False, missing=look.missing, leaderless=leaderless)
    plan = genesis_plan(parts, newest, genesis) if genesis else _new_plan(parts, newest, look, skipped)
    if not parts.store.store_plan(plan) or plan.kind is not TurnKind.RUN:
        return None  # another run was quicker; or it is an act, which is settled before the lane goes on
    parts.notify("planned", plan)
    return Planned(plan, adopted=False, missing=look.missing, leaderless=leaderless)


def _check_clock(parts: Parts, last: datetime | None) -> None:
    if parts.fixed_now and last and parts.fixed_now < last:
        raise ConfigError(
            f"--now {parts.fixed_now.isoformat()} is before the last turn, of {last.isoformat()}", key="--now"
        )


def _check_dead_letter_topic(parts: Parts) -> None:
    topic = parts.pipeline.dead_letter_topic
    if topic is not None and topic not in parts.cluster.topics([topic]):
        raise ConfigError(
            f"the dead-letter topic {topic} of pipeline {parts.pipeline.name} does not exist: create it, or write "
            f"`dead_letter: none`. Nothing was planned",
            key="dead_letter.topic",
        )


def _first_turn(parts: Parts) -> TurnId:
    return TurnId(parts.pipeline.name, parts.store.lane, 0, 0)


# ---- a new plan ---------------------------------------------------------------------------------------------------


def _new_plan(parts: Parts, newest: Settlement, look: KafkaView, skipped: bool = False) -> Plan:
    """The plan of a run; or, where somebody has moved the group and the file says `follow`, of the action that follows."""
    pipeline = parts.pipeline
    mark = commit_metadata_of(parts, newest)
    views: dict[TopicPartition, PartitionView] = {}
    moves: dict[TopicPartition, Committed] = {}
    for tp, one in newest.partitions.items():
        committed, subscribed = look.committed.get(tp), parts.wants(tp)
        if subscribed:
            check_topic(parts, tp, one.topic_id, look.topic_ids.get(tp.topic), tp in look.bounds)
            if _is_moved(parts, tp, committed, mark, one.acknowledged_foreign_offset) and committed is not None:
                moves[tp] = committed
        acknowledged_foreign_offset = still_acknowledged(committed, one.acknowledged_foreign_offset, mark)
        views[tp] = PartitionView(
            one.topic_id, one.state, look.bounds.get(tp), committed, acknowledged_foreign_offset, subscribed, one.paused
        )
    check_logs(parts, {tp: newest.partitions[tp] for tp, view in views.items() if view.readable}, look.bounds)
    views |= _read_beyond(parts, views)
    if moves:
        return follow_plan(parts, newest, moves)
    refuse_lost(parts, views)
    behind = {} if skipped and _may_skip(parts) else _too_far_behind(parts, views)
    if behind:
        reason = f"more than max_offset_behind {pipeline.max_offset_behind and pipeline.max_offset_behind.offsets}"
        return action_plan(parts, newest, TurnKind.SKIP, behind, reason)
    retries = pipeline.guarantee == "at_least_once"  # without them nothing is pending, so there is no window
    limits = Limits(pipeline.max_uncommitted if retries else 2**62, pipeline.max_records_per_run)
    views = _with_times(parts, views, limits)
    planned = planning.plan_partitions(views, limits, parts.now(), newest.turn.n + 1)
    return new_plan(parts, newest, TurnKind.RUN, planned)


def _read_beyond(parts: Parts, views: Mapping[TopicPartition, PartitionView]) -> dict[TopicPartition, PartitionView]:
    """Views of what was read, or committed by others, under `read_uncommitted` beyond the end of what is readable now:
    a transaction is open there. No log was cut, so there is nothing new as long as it is."""
    ahead = {
        tp: view.state.complete_to
        for tp, view in views.items()
        if view.readable and view.log is not None and view.log.end < view.state.complete_to
    }
    found = {}
    for tp in written_to(parts, ahead):
        log = views[tp].log
        found[tp] = replace(views[tp], log=log and log._replace(end=ahead[tp]))
    return found


def _with_times(
    parts: Parts, views: dict[TopicPartition, PartitionView], limits: Limits
) -> dict[TopicPartition, PartitionView]:
    """The views with the time of each first unread record, where a run can't take all there is and has to choose."""
    unread = {
        tp: max(view.state.complete_to, view.log.start)
        for tp, view in views.items()
        if view.readable and view.log is not None and view.log.end > view.state.complete_to
    }
    there_is = sum(view.log.end - unread[tp] for tp, view in views.items() if tp in unread and view.log is not None)
    there_is += sum(due_retries(view.state, parts.now()) for view in views.values() if view.readable)
    if len(unread) < 2 or there_is <= limits.max_records_per_run:
        return views
    times = parts.cluster.record_times(unread)
    return {tp: replace(view, waits_since=times.get(tp)) for tp, view in views.items()}


def _may_skip(parts: Parts) -> bool:
    """Whether runs skip what is too far behind."""
    return parts.pipeline.max_offset_behind is not None and parts.pipeline.max_offset_behind.policy == "skip"


def _too_far_behind(parts: Parts, views: Mapping[TopicPartition, PartitionView]) -> dict[TopicPartition, int]:
    """Where partitions too far behind are skipped to (S45). Raises TooFarBehind where the policy is to fail.

    What retention took does not count, and is no reason for a skip; where there is one, it settles that as well.
    """
    limit = parts.pipeline.max_offset_behind
    if limit is None:
        return {}
    found = {}
    for tp, view in views.items():
        if not view.readable or view.log is None:
            continue
        behind = view.log.end - max(view.state.floor, view.log.start)
        if behind <= limit.offsets:
            continue
        if limit.policy == "fail":
            raise TooFarBehind(
                f"{tp}: the floor {view.state.floor} is {behind} offsets behind the log's end, more than "
                f"max_offset_behind ({limit.offsets}); raise it, skip, or let the policy be `skip`",
                topic=tp.topic,
                partition=tp.partition,
                offset=view.state.floor,
            )
        found[tp] = view.log.end - limit.offsets
    return found


def _is_moved(
    parts: Parts,
    tp: TopicPartition,
    committed: Committed | None,
    mark: CommitMetadata,
    acknowledged_foreign_offset: int | None,
) -> bool:
    """Whether the group was moved and is to be followed; False where our floor may be committed over what it holds."""
    if may_restore(parts, committed, mark):
        return False
    try:
        check_commit_allowed(tp, committed, mark, acknowledged_foreign_offset)
    except GroupMoved:
        if parts.pipeline.on_external_reset == "follow":
            return True
        raise
    return False
