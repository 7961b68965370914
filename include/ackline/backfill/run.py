"""Backfill lanes: begins one, plans and runs what is due of it, cancels it, and accounts for every offset that was
chosen.

A lane has a ledger of its own and the same three steps as the live lane. It never touches the group, so it runs beside
live runs and other backfills. It runs by the pipeline file, with the handler and dead letters of the lane, and reads
what its genesis has stored, whatever becomes of the file. Of two processes that resume the same lane, one stores plan
n, and the other adopts it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from ackline.actions.void import void_open_turn
from ackline.answers.standstill import what_stands_still
from ackline.backfill.choose import Choice
from ackline.dead_letters.rescue import needs_rescue
from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.forms.arguments import BackfillArguments
from ackline.in_flight.ack_topic import unread_answers
from ackline.lane.adapters import Adapters, Progress
from ackline.lane.log_checks import (
    check_not_truncated,
    check_topic_not_recreated,
    other_log_error,
    stop_if_copies_lost,
)
from ackline.lane.plans import LaneRanges, check_settings_unchanged, chosen_in, lane_ranges, new_plan
from ackline.lane.rights import check_rights_to_read
from ackline.lane.ways_out import StandsStill, Way
from ackline.ledger import planning
from ackline.ledger.account import Account, Chosen, account_of, chosen_of
from ackline.ledger.backoff import FOREVER
from ackline.ledger.copies import NO_COPIES, Copies
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange, clipped, count
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingRuns
from ackline.ledger.planning import PartitionView
from ackline.ledger.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind, is_backfill
from ackline.outputs.publish import publish_settled
from ackline.outputs.staged import remove_staged
from ackline.steps.plan import Planned, check_own_topics, preview, take_turn
from ackline.steps.run import OnPlan, RunResult, settle_and_commit, take_turns
from ackline.steps.run_plan import limits_of, new_run_plan
from ackline.steps.settle import settle_turn
from ackline.tables.store import LedgerStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)


def plan_backfill(
    adapters: Adapters, max_records: int | None = None, resend: bool = False, reason: str = ""
) -> Planned:
    """Returns the lane's open plan, or else a new one, stored; without a plan if nothing can be read now.

    The turn reads `max_records` offsets at most. With `resend`, it is also taken for dead letters alone that were not
    acknowledged, and for pending records alone that retention is about to take. A new plan stores `reason`; an open one
    keeps its own. Raises ConfigError if the lane has not begun, the dead-letter topic is missing or an output has other
    columns, TopicChanged if a log is not the one in which the offsets were chosen.
    """

    def begin() -> None:
        raise ConfigError(f"{adapters.pipeline.name} has no lane {adapters.store.lane}")

    def end(open_plan: Plan, newest: Settlement) -> bool:
        if open_plan.kind.replays:
            return False
        settle_turn(adapters, open_plan, newest)  # a cancellation whose process has died; any process finishes it
        return True

    def make(newest: Settlement) -> Plan | None:
        # A lane that is settled takes no further number, and commits no group: no later step publishes its last turn.
        publish_settled(adapters, newest)
        return _next_plan(adapters, newest, max_records, resend, reason)

    taken = take_turn(adapters, "taking a turn", (TurnKind.RUN,), begin=begin, end=end, make=make)
    return Planned(taken.plan, taken.adopted)


def can_take_turn(adapters: Adapters) -> bool:
    """Returns whether a turn of the lane would read or settle anything now. Stores nothing."""
    newest = adapters.store.newest()
    return newest is not None and _next_plan(adapters, newest, None, True, "") is not None


def standstill_of(adapters: Adapters, reads_broker: bool = True) -> StandsStill | None:
    """Returns what a lane stands still for, as `what_stands_still` does: the live one, or that of a backfill."""
    check = preview if adapters.commits else _check_next_plan
    return what_stands_still(adapters, check, reads_broker)


def _check_next_plan(adapters: Adapters) -> None:
    newest, open_plan = adapters.newest_and_open_plan()
    if newest is not None and open_plan is None:
        _next_plan(adapters, newest, None, True, "")
    elif newest is not None:  # its settings are those of its plan, and its log is checked as it is read
        chosen = lane_ranges(adapters, newest.turn.epoch)
        check_own_topics(adapters)
        readable_logs(adapters, _unfinished(newest, chosen), chosen)


def _next_plan(
    adapters: Adapters, newest: Settlement, max_records: int | None, resend: bool, reason: str
) -> Plan | None:
    """Returns the plan after `newest`; None if it would do nothing."""
    chosen = lane_ranges(adapters, newest.turn.epoch)
    unfinished = _unfinished(newest, chosen)
    if not unfinished:
        return None
    check_rights_to_read(adapters, {tp.topic for tp in unfinished})
    check_own_topics(adapters)
    check_settings_unchanged(adapters, newest)
    logs = readable_logs(adapters, unfinished, chosen)
    views = {
        tp: PartitionView(
            settled.topic_id,
            settled.state,
            logs.get(tp),
            subscribed=adapters.is_subscribed(tp),
            paused=settled.paused,
            chosen=chosen_in(chosen, tp),
        )
        for tp, settled in unfinished.items()
    }
    stop_if_copies_lost(adapters, views)
    planned = planning.plan_partitions(views, limits_of(adapters, max_records), adapters.now(), newest.turn.n + 1)
    for tp, row in planned.items():
        if row.why == planning.NO_LEADER:
            log.warning("%s has no leader: it is left out until it has one; the others go on", tp)
    reads = any(
        not row.empty or clipped(chosen_in(chosen, tp), row.complete_to, row.fresh.start) for tp, row in planned.items()
    )
    # Dead letters that wait for their acknowledgement.
    letters = resend and any(
        unfinished[tp].state.pending_by_kind()[PendingKind.DEAD_LETTER]
        for tp, row in planned.items()
        if row.why not in planning.LEFT_ALONE
    )
    answers = not reads and _has_answers(adapters, newest)
    # As for dead letters, by the first turn of a run: each turn that reads copies as well.
    rescues = resend and not reads and needs_rescue(adapters, unfinished)
    return new_run_plan(adapters, newest, planned, reason) if reads or letters or answers or rescues else None


def _has_answers(adapters: Adapters, newest: Settlement) -> bool:
    """Returns whether a turn would end an attempt in flight: a deadline has passed, or answers are not read yet."""
    states = [settled.state for settled in newest.partitions.values()]
    if not any(state.pending_by_kind()[PendingKind.IN_FLIGHT] for state in states):
        return False
    unread = unread_answers(adapters, newest)
    if unread is not None and any(unread.ranges.values()):
        return True
    # While answers are hidden nothing times out, so turns for what is overdue would follow each other without an end.
    hidden = unread is not None and unread.hides_answers
    return not hidden and any(state.pending.overdue_at(adapters.now()) for state in states)


def _unfinished(newest: Settlement, chosen: LaneRanges) -> dict[TopicPartition, SettledPartition]:
    """Returns the partitions of which something that was chosen is not settled."""

    def is_unfinished(tp: TopicPartition, settled: SettledPartition) -> bool:
        ranges = chosen_in(chosen, tp)
        return bool(settled.state.pending) or bool(ranges and ranges[-1].end > settled.state.complete_to)

    return {tp: settled for tp, settled in newest.partitions.items() if is_unfinished(tp, settled)}


def readable_logs(
    adapters: Adapters, lane: Mapping[TopicPartition, SettledPartition], chosen: LaneRanges
) -> dict[TopicPartition, LogBounds]:
    """Returns the readable logs of partitions with a leader. Raises TopicChanged if a log is not the one in which the
    offsets were chosen: in another log the same offsets mean other records (S42).

    Unlike the live lane, the whole of what was chosen is compared and not only what was read: of a log that was cut
    below it, and has grown again, the rest would be other records than those that were asked for.
    """
    adapters.cluster.reachable()
    topics = adapters.cluster.topics(sorted({tp.topic for tp in lane}))
    for tp, settled in lane.items():
        topic = topics.get(tp.topic)
        exists = topic is not None and tp.partition in topic.partitions
        check_topic_not_recreated(adapters, tp, settled.topic_id, topic.topic_id if topic else None, exists)
    bounds = adapters.cluster.bounds([tp for tp in lane if topics[tp.topic].partitions[tp.partition]])
    ends = {
        tp: max([settled.state.complete_to, *(part.end for part in chosen_in(chosen, tp) or ())])
        for tp, settled in lane.items()
    }
    check_not_truncated(adapters, lane, bounds, ends)
    for tp, log_bounds in bounds.items():
        if log_bounds.end < lane[tp].state.complete_to:
            raise other_log_error(adapters, tp, f"ends at {log_bounds.end}, below {lane[tp].state.complete_to}")
    return bounds


def begin(
    adapters: Adapters, arguments: BackfillArguments, choice: Choice, reason: str = "", epoch: int = 0
) -> Settlement:
    """Stores the genesis of a new lane, or of a new epoch of a settled one: what was chosen, and the arguments as they
    were written.

    Returns the stored genesis. Of two processes that begin the same id and epoch, one stores it; the caller compares
    the arguments. The choice is stored before anything is read, so that a resume never chooses anew. Raises FatalError
    if the epoch before is not settled.
    """
    check_epoch_before_is_settled(adapters.store, epoch)
    publish_settled(adapters, adapters.store.newest())  # of the epoch before: no step looks at it again
    partitions = {tp: _genesis_row(adapters, choice, tp, chosen) for tp, chosen in choice.partitions.items()}
    turn = TurnId(adapters.store.pipeline, adapters.store.lane, epoch, 0)
    genesis = Settlement(
        turn, TurnKind.GENESIS, adapters.run_id, adapters.now(), partitions, adapters.actor, reason, arguments.encode()
    )
    if adapters.store.store_settlement(genesis):
        adapters.notify("partitions_changed", partitions)
    return adapters.store.settlement(turn)


def check_epoch_before_is_settled(store: LedgerStore, epoch: int) -> None:
    """Raises FatalError unless the epoch before is settled, so that each of its offsets has a terminal outcome.

    The genesis is the only write that opens an epoch, so no crash leaves a lane between two of them. No fence compares
    it with the epoch before, and none is needed: an epoch that is settled stays settled. No turn of it reads again, and
    an operator action on it changes no state that the new epoch begins with.
    """
    if epoch == 0:
        return
    newest = store.newest()
    if newest is None or newest.turn.epoch < epoch - 1:
        raise FatalError(f"{store.lane} of {store.pipeline} has no epoch {epoch - 1}, so epoch {epoch} can't begin")
    is_settled = store.open_plan(newest) is None and account(store, newest).settled
    if newest.turn.epoch == epoch - 1 and not is_settled:
        raise FatalError(
            f"epoch {epoch - 1} of {store.lane} of {store.pipeline} is not settled, so epoch {epoch} can't begin. Go "
            f"on with it, or end it with `{Way.CANCEL.of(store)}`"
        )


def _first_state(chosen: Chosen, now: datetime | None, copies: Copies = NO_COPIES) -> PartitionState:
    """Returns the state in which a partition begins. Its chosen offsets are due since then, and without an attempt:
    replay reads them exactly, as attempt 1, and those that are gone from their `copies`."""
    if not chosen.offsets:
        return PartitionState(chosen.ranges[0].start)
    unread = Pending(PendingKind.RETRY, 0, now, None)
    pending = PendingRuns.of([ValuedRange(run.start, run.end, unread) for run in chosen.offsets])
    return PartitionState(chosen.offsets[-1].end, pending, copies=copies)


def _genesis_row(adapters: Adapters, choice: Choice, tp: TopicPartition, chosen: Chosen) -> SettledPartition:
    state = _first_state(chosen, adapters.now(), choice.copies.get(tp, NO_COPIES))
    return SettledPartition(
        choice.topic_ids[tp.topic],
        state.floor,
        state,
        evidence="chosen one by one" if chosen.offsets else "chosen by range",
        leader_epoch=choice.logs[tp].leader_epoch,
        ranges=chosen.ranges,
    )


def genesis_of(store: LedgerStore, epoch: int) -> Settlement:
    """Returns the genesis of an epoch of a lane."""
    return store.settlement(TurnId(store.pipeline, store.lane, epoch, 0))


def account(store: LedgerStore, newest: Settlement) -> Account:
    """Returns what has become of each offset that a lane was asked to read, up to its newest settlement."""
    genesis = genesis_of(store, newest.turn.epoch)
    chosen = {tp: chosen_of(settled.ranges or (), settled.state) for tp, settled in genesis.partitions.items()}
    states = {tp: settled.state for tp, settled in newest.partitions.items()}
    return account_of(chosen, states, *store.tallies(newest.turn))


def account_of_choice(choice: Choice) -> Account:
    """Returns the account that a lane would begin with."""
    states = {tp: _first_state(chosen, None) for tp, chosen in choice.partitions.items()}
    return account_of(choice.partitions, states, {}, 0)


def run_backfill(
    adapters: Adapters,
    spark: "Callable[[], SparkSession]",
    max_records: int | None = None,
    on_plan: OnPlan | None = None,
    on_progress: Progress | None = None,
    reason: str = "",
) -> RunResult:
    """Takes turns until nothing of the lane can be read now. Reads at most `max_records` offsets, by new plans.

    The new plans and their settlements store `reason`, so that the reason of a resume is in the tables as well. Raises
    as `take_turns` does.
    """

    def next_turn(done: RunResult) -> Planned:
        read = [planned for plan in done.plans for planned in plan.partitions.values()]
        left = None if max_records is None else max_records - sum(len(row.fresh) + count(row.retries) for row in read)
        if left is not None and left <= 0:
            newest = adapters.store.newest()
            if newest is None or adapters.store.open_plan(newest) is None:
                return Planned(None, adopted=False)
        # Dead letters that were not acknowledged are sent again once in a run, by its first turn.
        return plan_backfill(adapters, left, not done.plans, reason)

    def goes_on(plan: Plan, settlement: Settlement) -> bool:
        return not _is_fruitless(adapters, plan, settlement) and not _is_without_effect(plan, settlement)

    end_turn = partial(settle_and_commit, adapters)
    return take_turns(adapters, spark, next_turn, end_turn, goes_on, on_plan, on_progress)


def _is_fruitless(adapters: Adapters, plan: Plan, settlement: Settlement) -> bool:
    """Returns whether a turn made further attempts alone, and settled nothing, under a policy without a limit.

    With a delay of zero such retries are always due, and the run would never end.
    """
    retry = adapters.pipeline.retry
    unlimited = retry.class_ is not None or retry.max_retries == FOREVER
    if not unlimited or settlement.kind is TurnKind.VOID:
        return False
    new = plan.singles or any(planned.fresh for planned in plan.partitions.values())
    ended = any(
        Outcome(word).terminal and number
        for settled in settlement.partitions.values()
        for word, number in settled.counts.items()
    )
    return not new and not ended


def _is_without_effect(plan: Plan, settlement: Settlement) -> bool:
    """Returns whether a turn read nothing and settled nothing: it was taken for answers, and none ended an attempt.

    Answers for other lanes arrive in the same ack topic at any rate. Without this limit, they alone would keep a run of
    the backfill going.
    """
    if settlement.kind is TurnKind.VOID or not plan.empty:
        return False
    counts = [settled.counts for settled in settlement.partitions.values()]
    return not any(number for by_word in counts for word, number in by_word.items() if word != Outcome.IN_FLIGHT)


def cancel(adapters: Adapters, reason: str) -> Settlement:
    """Settles everything of the lane that is not settled yet as `skipped`. Returns the newest settlement.

    An open turn is settled if its outcomes are stored, and else closed as void, or at most once recorded as lost. A
    process that works on it finds its turn closed, and its report does not count. Raises FatalError for a lane that has
    not begun.
    """

    def begin() -> None:
        raise FatalError(f"{adapters.pipeline.name} has no lane {adapters.store.lane}")

    def end(open_plan: Plan, newest: Settlement) -> bool:
        if not open_plan.kind.replays or adapters.store.has_outcomes(open_plan.turn):
            settle_turn(adapters, open_plan, newest)
        else:
            try:
                void_open_turn(adapters, open_plan.turn, f"cancelled: {reason}" if reason else "cancelled")
            except (ConfigError, FatalError):
                # Refused if a run has reported or settled the turn meanwhile: then the next round looks at that.
                # Otherwise the error stands.
                if not adapters.store.has_outcomes(open_plan.turn) and not adapters.store.is_settled(open_plan.turn):
                    raise
        return True

    def make(newest: Settlement) -> Plan | None:
        publish_settled(adapters, newest)
        targets = _ends(adapters, newest)
        return new_plan(adapters, newest, TurnKind.SKIP, targets, reason or "cancelled") if targets else None

    # No turn is the aim: the cancellation ends each turn that it meets, its own skip too, until nothing is left.
    newest = take_turn(adapters, "cancelling", (), begin=begin, end=end, make=make).before
    if adapters.pipeline.outputs:  # a void turn may have staged rows, and no later turn of this lane removes them
        remove_staged(adapters, newest)
    return newest


def _ends(adapters: Adapters, newest: Settlement) -> dict[TopicPartition, PlannedPartition]:
    """Returns the rows of a plan that skips each unfinished partition to the end of what was chosen."""
    genesis = genesis_of(adapters.store, newest.turn.epoch)
    rows = {}
    for tp, settled in newest.partitions.items():
        state, ranges = settled.state, genesis.partitions[tp].ranges
        end = max(state.complete_to, ranges[-1].end if ranges else 0)
        if state.pending or state.complete_to < end:
            target = OffsetRange(end, end)
            log = LogBounds(end, end)  # no log is needed: the plan skips what was chosen, in whichever log
            rows[tp] = PlannedPartition(settled.topic_id, target, (), state.floor, state.complete_to, log)
    return rows


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill lane as its tables have it."""

    genesis: Settlement
    newest: Settlement
    arguments: BackfillArguments
    account: Account


def find_backfill(store: LedgerStore) -> Backfill | None:
    """Returns the backfill of a lane; None if it has not begun. Raises LedgerError if its account does not balance."""
    newest = store.newest()
    if newest is None:
        return None
    genesis, found = genesis_of(store, newest.turn.epoch), account(store, newest)
    if not found.balanced:
        raise LedgerError(
            f"{store.lane} of {store.pipeline}: {found.offsets} offsets were chosen, and its tables account for "
            f"{dict(found.outcomes)}, {found.gaps} gaps, pending {dict(found.pending)}. Check the tables with "
            f"`python -m ackline.verify --lane {store.lane}`"
        )
    with store.settlements.errors():
        return Backfill(genesis, newest, BackfillArguments.decode(genesis.arguments), found)


def backfills(store: LedgerStore) -> list[Backfill]:
    """Returns all backfills of a pipeline, those that began last first."""
    lanes = [lane for lane in store.lanes() if is_backfill(lane)]
    found = [backfill for lane in lanes if (backfill := find_backfill(store.other_lane(lane))) is not None]
    return sorted(found, key=lambda backfill: (backfill.genesis.settled_at, backfill.genesis.turn.lane), reverse=True)
