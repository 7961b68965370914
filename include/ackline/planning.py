"""What the next turn reads: a pure function of the states, the log's bounds and the limits.

Fresh offsets stop at the window (`floor + max_uncommitted`), due retries never do, so that a full window can't stop the
retries that would empty it (Storm's STORM-2343).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NamedTuple

from ackline.commit_rule import Committed
from ackline.errors import TopicChanged
from ackline.ledger import PartitionState, PendingKind
from ackline.offsets import LogBounds, OffsetRange, Run, Runs, TopicPartition, count, join
from ackline.turns import PlannedPartition


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a turn may take on: offsets above the floor, and offsets in all."""

    max_uncommitted: int
    max_records_per_run: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What plan sees of a partition. `log` is None where it has no leader; `subscribed` False parks it; an operator may
    have `paused` it."""

    topic_id: str
    state: PartitionState
    log: LogBounds | None
    committed: Committed | None = None
    acknowledged_foreign_offset: int | None = None
    subscribed: bool = True
    paused: bool = False
    waits_since: datetime | None = None
    """The time of the first unread record, where it is known: who waits longest is served first."""

    @property
    def readable(self) -> bool:
        """Whether anything may be read here now."""
        return self.log is not None and self.subscribed and not self.paused


NO_LEADER = "no leader"
PARKED = "no longer subscribed"
PAUSED = "paused"
WINDOW_FULL = "window full"
WAITING = "retries not yet due"
RUN_FULL = "max_records_per_run reached"
CAUGHT_UP = "nothing new"


def plan_partitions(
    views: Mapping[TopicPartition, PartitionView], limits: Limits, now: datetime, turn: int = 0
) -> dict[TopicPartition, PlannedPartition]:
    """What each partition gets in the next turn, number `turn`.

    Of `max_records_per_run`, due retries come first, the longest due before others, and fresh offsets get at least a
    tenth. Of those one half is shared evenly, so that none starves, and the other goes to the partitions that are
    furthest behind in time; where their times are not known, all is shared evenly. What can't be divided goes by lot,
    drawn anew in each turn. Raises TopicChanged where the ledger is ahead of the log: that is no "caught up" (S42).
    """
    room = {tp: _room(tp, view, limits) for tp, view in views.items()}
    due = sorted(_due(views, now))
    demand = sum(len(r) for r in room.values())
    total = limits.max_records_per_run
    lot = Random(turn)
    tenth = max(total // 10, 1) if total > 1 else int(lot.random() < 0.1)  # of a single one, in one turn of ten
    reserved = min(demand, tenth)
    retries = _take_due(due, total - reserved)
    wanted = {tp: len(r) for tp, r in room.items()}
    since = {tp: view.waits_since for tp, view in views.items() if view.waits_since is not None}
    shares = _serve(wanted, since, total - sum(count(r) for r in retries.values()), lot)
    planned = {}
    for tp, view in views.items():
        fresh = OffsetRange(room[tp].start, room[tp].start + shares[tp])
        why = None if fresh or tp in retries else _why(view, room[tp], now)
        planned[tp] = PlannedPartition(
            view.topic_id,
            fresh,
            retries.get(tp, ()),
            view.state.floor,
            view.state.complete_to,
            _bounds(view),
            why,
            view.committed,
            view.acknowledged_foreign_offset,
        )
    return planned


def _bounds(view: PartitionView) -> LogBounds:
    """The bounds that a plan stores; of what it leaves alone nobody has compared the state with the log."""
    if view.log is None:
        return LogBounds(view.state.complete_to, view.state.complete_to)
    return view.log if view.readable else view.log._replace(leader_epoch=None)


def _room(tp: TopicPartition, view: PartitionView, limits: Limits) -> OffsetRange:
    """The fresh offsets that the window lets in; starts above `complete_to` where retention was quicker."""
    complete_to = view.state.complete_to
    if view.log is None or not view.readable:
        return OffsetRange(complete_to, complete_to)
    if view.log.end < complete_to:
        raise TopicChanged(
            f"{tp}: the log ends at {view.log.end}, below {complete_to}, up to which it was read: the "
            f"topic was truncated or recreated. Nothing was read; see what happened to it, then begin a new epoch with "
            f"`ackline reset`, `--to` {min(view.state.floor, view.log.end)} or earlier",
            topic=tp.topic,
            partition=tp.partition,
            offset=view.log.end,
        )
    start = max(complete_to, view.log.start)
    return OffsetRange(start, max(start, min(view.log.end, view.state.floor + limits.max_uncommitted)))


class _Due(NamedTuple):
    due: datetime
    tp: TopicPartition
    start: int
    end: int
    attempts: int


def _due(views: Mapping[TopicPartition, PartitionView], now: datetime) -> Iterable[_Due]:
    for tp, view in views.items():
        if not view.readable:
            continue
        for run in view.state.pending:
            state = run.value
            if state.kind is PendingKind.RETRY and state.due is not None and state.due <= now:
                yield _Due(state.due, tp, run.start, run.end, state.attempts)


def _take_due(due: Sequence[_Due], limit: int) -> dict[TopicPartition, Runs[int]]:
    taken: dict[TopicPartition, list[Run[int]]] = {}
    for one in due:
        if limit <= 0:
            break
        end = min(one.end, one.start + limit)
        limit -= end - one.start
        taken.setdefault(one.tp, []).append(Run(one.start, end, one.attempts + 1))
    return {tp: join(sorted(runs, key=lambda run: run.start)) for tp, runs in taken.items()}


def _serve(
    wanted: Mapping[TopicPartition, int], since: Mapping[TopicPartition, datetime], total: int, lot: Random
) -> dict[TopicPartition, int]:
    # Of a single offset there is no half: one turn in ten gives it by lot, for a partition whose records were stamped
    # long ago would be the furthest behind for as long as more of them come.
    evenly = total // 2 if total > 1 else total * (lot.random() < 0.1)
    shares = _share(wanted, evenly if since else total, lot)
    left = total - sum(shares.values())
    for tp in sorted(since, key=lambda tp: (since[tp], tp)):
        more = min(left, wanted[tp] - shares[tp])
        shares[tp] += more
        left -= more
    rest = _share({tp: wanted[tp] - shares[tp] for tp in wanted}, left, lot)
    return {tp: shares[tp] + rest[tp] for tp in wanted}


def _share(wanted: Mapping[TopicPartition, int], total: int, lot: Random) -> dict[TopicPartition, int]:
    """Shares of `total`: equal, but what one does not want the others get, and some get one more than others by lot."""
    left, most = total, max(wanted.values(), default=0)
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


def _why(view: PartitionView, room: OffsetRange, now: datetime) -> str:
    if not view.subscribed:
        return PARKED
    if view.paused:
        return PAUSED
    if view.log is None:
        return NO_LEADER
    retries = [run.value.due or now for run in view.state.pending if run.value.kind is PendingKind.RETRY]
    if any(due <= now for due in retries):
        return RUN_FULL
    if view.log.end <= room.start:
        return WAITING if retries else CAUGHT_UP
    return RUN_FULL if room else WINDOW_FULL
