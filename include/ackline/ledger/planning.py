"""What the next turn reads of each partition: a pure function of the states, the log bounds and the limits.

Fresh offsets stop at the window: a partition has at most `max_uncommitted` records above its floor that were read. Due
retries never stop there: otherwise a full window would stop the very retries that empty it (I8; Storm's STORM-2343).
The plan step passes in what it has read, and stores the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from random import Random

import numpy as np

from ackline.errors import TopicChanged
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import PartitionState, PendingKind
from ackline.ledger.offsets import ChosenRanges, LogBounds, OffsetRange, TopicPartition, ValuedRanges, count, next_range
from ackline.ledger.order import Order, holds_back_all, readable_at
from ackline.ledger.pending import join_attempts
from ackline.ledger.turns import PlannedPartition


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a turn may read."""

    max_uncommitted: int
    """The size of the window: how many records above its floor a partition may have read, pending and settled ones.
    Whether an unread offset holds a record is not known, so each counts as one until it was read."""
    max_records_per_run: int
    """How many offsets the turn reads at most: fresh ones and retries, of all partitions."""
    fresh: bool = True
    """Whether the turn reads fresh offsets; if not, due retries alone."""
    max_in_flight: int | None = None
    """How many records of a partition may be in flight at once, fresh ones included; None means no limit."""
    order: Order = Order.NONE
    """What may not overtake: the turn leaves what would wait for a record that it does not read."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as the plan step sees it."""

    topic_id: str
    """The id of the topic that the state's offsets are of."""
    state: PartitionState
    """The state after the newest settlement."""
    log: LogBounds | None
    """The readable log; None if the partition has no leader."""
    committed: Committed | None = None
    """What Kafka holds for the group."""
    acknowledged_foreign_offset: int | None = None
    """The foreign committed offset that the floor may still be committed over; see `ackline.ledger.commit_rule`."""
    subscribed: bool = True
    """Whether the pipeline file still names the partition; if not, it is parked: committed again, and not read."""
    paused: bool = False
    """Whether an operator has paused the partition."""
    waits_since: datetime | None = None
    """The time of the first unread record, if it is known: the partition that waits longest is served first."""
    chosen: ChosenRanges = None
    """The ranges that are part of a backfill lane, which reads one of them in a turn; None means every offset."""

    requested: bool = True
    """Whether the run may read the partition: False if the user has asked for others alone."""

    @property
    def readable(self) -> bool:
        """Whether the turn may read anything of the partition."""
        return self.log is not None and self.subscribed and not self.paused and self.requested


NO_LEADER = "no leader"
PARKED = "no longer subscribed"
PAUSED = "paused"
LEFT_ALONE = (NO_LEADER, PARKED, PAUSED)
"""Why no record of a partition is read, that of a dead letter neither."""
NOT_REQUESTED = "not requested of this run"
ONLY_RETRIES = "only retries requested"
WINDOW_FULL = "window full"
IN_FLIGHT_FULL = "in_flight.max reached"
IN_FLIGHT = "waits for answers"
WAITING = "retries not yet due"
RUN_FULL = "max_records_per_run reached"
OPEN_TRANSACTION = "an open transaction holds back the rest"
CAUGHT_UP = "nothing new"
HELD_BACK = "held back by a lower offset"


def plan_partitions(
    views: Mapping[TopicPartition, PartitionView], limits: Limits, now: datetime, turn: int = 0
) -> dict[TopicPartition, PlannedPartition]:
    """What turn number `turn` reads of each partition, and where it reads nothing, why.

    Due retries take their share of `max_records_per_run` first and leave at least a tenth to fresh offsets. The longest
    due come first; of those with the same due time, the ones with the fewest attempts. One half of the fresh offsets is
    shared evenly, so that no partition starves. The other half goes to the partitions that are furthest behind in time;
    if no times are known, all is shared evenly. A lot, seeded by the turn, divides what is left over. Raises
    TopicChanged if a state is ahead of its log: such a partition is not caught up (S42).
    """
    room = {tp: _room(tp, view, limits, now) for tp, view in views.items()}
    demand = sum(len(fresh) for fresh in room.values())
    total = limits.max_records_per_run
    lot = Random(turn)
    # A tenth of one offset is one turn in ten, by lot: else fresh offsets never come while a retry is always due.
    tenth = max(total // 10, 1) if total > 1 else int(lot.random() < 0.1)
    reserved = min(demand, tenth)
    retries = _first_due(views, now, total - reserved, limits.order)
    wanted = {tp: len(fresh) for tp, fresh in room.items()}
    since = {tp: view.waits_since for tp, view in views.items() if view.waits_since is not None}
    shares = _shares_by_wait(wanted, since, total - sum(count(ranges) for ranges in retries.values()), lot)
    return {
        tp: _planned_partition(view, room[tp], shares[tp], retries.get(tp, ()), now, limits)
        for tp, view in views.items()
    }


def _planned_partition(
    view: PartitionView, room: OffsetRange, share: int, retries: ValuedRanges[int], now: datetime, limits: Limits
) -> PlannedPartition:
    fresh = OffsetRange(room.start, room.start + share)
    # The plan step compares a state with its log only if it reads the partition, so otherwise no leader epoch is
    # stored: it would vouch for a state that was not compared.
    log = view.log or LogBounds(view.state.complete_to, view.state.complete_to)
    return PlannedPartition(
        view.topic_id,
        fresh,
        retries,
        view.state.floor,
        view.state.complete_to,
        log if view.readable else log._replace(leader_epoch=None),
        None if fresh or retries else _why_nothing(view, room, now, limits),
        view.committed,
        view.acknowledged_foreign_offset,
    )


def _room(tp: TopicPartition, view: PartitionView, limits: Limits, now: datetime) -> OffsetRange:
    """The fresh offsets within the window. They start above `complete_to` if retention has taken the offsets between;
    settle records these as `expired` (S41). In a backfill lane they also start above offsets that were not chosen."""
    complete_to = view.state.complete_to
    if view.log is None or not view.readable:
        return OffsetRange(complete_to, complete_to)
    if view.log.end < complete_to:
        raise TopicChanged(
            f"{tp}: the log ends at {view.log.end}, below {complete_to}, up to which it was read: the "
            f"topic was truncated or recreated. Nothing was read",
            tp=tp,
            offset=view.log.end,
        )
    if not limits.fresh:  # retention is settled by a turn that reads on, and moves no floor in this one
        return OffsetRange(complete_to, complete_to)
    first = view.log.start
    if view.chosen is not None:
        # Retention may have passed the end of what was chosen: the lane ends there, not at the log start.
        first = min(first, view.chosen[-1].end if view.chosen else complete_to)
    unread = next_range(view.chosen, max(complete_to, first), view.log.end)
    allowed = max(0, limits.max_uncommitted - view.state.uncommitted)
    if holds_back_all(view.state.pending, now, limits.order):
        allowed = 0
    if limits.max_in_flight is not None:  # each fresh record may become one in flight
        allowed = min(allowed, max(0, limits.max_in_flight - _in_flight(view)))
    return OffsetRange(unread.start, min(unread.end, unread.start + allowed))


def _in_flight(view: PartitionView) -> int:
    return view.state.pending.of_kind(PendingKind.IN_FLIGHT).offsets


def _first_due(
    views: Mapping[TopicPartition, PartitionView], now: datetime, limit: int, order: Order
) -> dict[TopicPartition, ValuedRanges[int]]:
    """The first `limit` due retries, by partition and offset; the value is the number of the attempt to be made. What
    was held back, and is so no more, is due since it was.

    The longest due are first; of those with the same due time, the fewest attempts, and then the lowest topic-partition
    and offset. Records that failed in the same turn are due at the same time. Without the attempts the lowest
    partitions would come first each time, and the highest ones would get fewer attempts for as long as a run can't read
    all that is due.
    """
    due = {
        tp: runs
        for tp in sorted(tp for tp, view in views.items() if view.readable)
        if (runs := readable_at(views[tp].state.pending, now, order))
    }
    if not due or limit <= 0:
        return {}
    starts, ends, dues = (
        np.concatenate([getattr(runs, n) for runs in due.values()]) for n in ("starts", "ends", "dues")
    )
    rank = np.repeat(np.arange(len(due)), [len(runs) for runs in due.values()])
    attempts = np.concatenate([runs.attempts for runs in due.values()])
    by_due = np.lexsort((starts, rank, attempts, dues))
    lengths = (ends - starts)[by_due]
    before = np.cumsum(lengths) - lengths
    ends[by_due] = starts[by_due] + np.clip(limit - before, 0, lengths)
    bounds = np.cumsum([0, *(len(runs) for runs in due.values())])
    taken = {
        tp: join_attempts(starts[first:end], ends[first:end], attempts[first:end] + 1)
        for tp, (first, end) in zip(due, pairwise(bounds.tolist()), strict=True)
    }
    return {tp: retries for tp, retries in taken.items() if retries}


def _shares_by_wait(
    wanted: Mapping[TopicPartition, int], since: Mapping[TopicPartition, datetime], total: int, lot: Random
) -> dict[TopicPartition, int]:
    """How many fresh offsets each partition gets: one half evenly, the rest to the partitions that wait longest."""
    # One offset has no half. One turn in ten gives it by lot, because a partition whose records were stamped long ago
    # stays the furthest behind for as long as more of them come, and would starve the others.
    evenly = total // 2 if total > 1 else total * (lot.random() < 0.1)
    shares = _even_shares(wanted, evenly if since else total, lot)
    left = total - sum(shares.values())
    for tp in sorted(since, key=lambda tp: (since[tp], tp)):
        more = min(left, wanted[tp] - shares[tp])
        shares[tp] += more
        left -= more
    rest = _even_shares({tp: wanted[tp] - shares[tp] for tp in wanted}, left, lot)
    return {tp: shares[tp] + rest[tp] for tp in wanted}


def _even_shares(wanted: Mapping[TopicPartition, int], total: int, lot: Random) -> dict[TopicPartition, int]:
    """Equal shares of `total`, none above what is wanted: what a partition leaves over goes to the others. By lot, some
    get one offset more than others."""
    left, most = total, max(wanted.values(), default=0)
    # By rising demand: the first demand that is above an equal share of what is left fixes `most`, the largest share.
    for waiting, tp in zip(range(len(wanted), 0, -1), sorted(wanted, key=lambda tp: wanted[tp]), strict=True):
        if wanted[tp] > left // waiting:
            most = left // waiting
            break
        left -= wanted[tp]
    shares = {tp: min(number, most) for tp, number in wanted.items()}
    short = sorted(tp for tp, number in wanted.items() if number > most)
    for tp in lot.sample(short, min(total - sum(shares.values()), len(short))):
        shares[tp] += 1
    return shares


def _why_nothing(view: PartitionView, room: OffsetRange, now: datetime, limits: Limits) -> str:
    if not view.requested:
        return NOT_REQUESTED
    if not view.subscribed:
        return PARKED
    if view.paused:
        return PAUSED
    if view.log is None:
        return NO_LEADER
    retries = view.state.pending.of_kind(PendingKind.RETRY)
    if readable_at(view.state.pending, now, limits.order):
        return RUN_FULL
    if not next_range(view.chosen, room.start, view.log.end):
        if retries or _in_flight(view):
            return WAITING if retries else IN_FLIGHT
        return OPEN_TRANSACTION if view.chosen is None and view.log.open_transaction else CAUGHT_UP
    if not limits.fresh:
        return ONLY_RETRIES
    if room:
        return RUN_FULL
    if holds_back_all(view.state.pending, now, limits.order):
        return HELD_BACK
    full = limits.max_in_flight is not None and _in_flight(view) >= limits.max_in_flight
    return IN_FLIGHT_FULL if full else WINDOW_FULL
