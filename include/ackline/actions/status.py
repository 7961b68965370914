"""The status of a pipeline: the newest settlement, compared with the present logs and commits of the broker."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ackline.lane.adapters import Adapters
from ackline.lane.commit import claimed_floors
from ackline.lane.log_checks import KafkaView, observe_kafka
from ackline.ledger.explain import HeldBy, held_by
from ackline.ledger.fold import PendingKind
from ackline.ledger.metrics import FETCH_MAX, FETCH_MEAN, FETCHES, TOTALS, due_retries, lag_seconds, oldest_pending
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.planning import NO_LEADER, PARKED, PAUSED
from ackline.ledger.turns import SettledPartition
from ackline.steps.plan import preview_lane

MISSING, CREATED_AGAIN, TRUNCATED = "missing", "created again", "truncated"
"""Why a run stops at a partition: it is gone; its topic was created again; its log ends below what was read."""

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    `floor` is that of the newest settlement or claim; every offset below `read` was read and handled. `lag` is
    `log_end - floor`, in offsets. `lag_seconds` is the age of the record at the floor, or of the first one above it
    that retention has left: 0 without lag, None if the broker has no time for it. Both are None if there is no log to
    compare with. `due` counts retries that are due now. `oldest_pending_at` is the time of the record at the
    lowest pending offset; None if retention took it. `totals` are the offsets of the epoch by outcome, and
    `retries`. The fetch values are those of the last turn that read from the partition. `why` is the reason for which
    runs leave the partition alone (paused, no longer subscribed, no leader) or stop at it (missing, created again,
    truncated); None if there is none.
    """

    lane: str
    epoch: int
    topic: str
    partition: int
    log_start: int | None
    log_end: int | None
    committed: int | None
    floor: int
    complete_to: int
    pending: Mapping[PendingKind, int]
    next_due: datetime | None
    lag: int | None
    lag_seconds: float | None
    read: int
    due: int
    oldest_pending_offset: int | None
    oldest_pending_at: datetime | None
    totals: Mapping[str, int]
    fetches: int | None
    fetch_seconds_mean: float | None
    fetch_seconds_max: float | None
    why: str | None = None
    unsettled_since: datetime | None = None
    """The time of the record at the floor, or of the first one above it that retention has left."""
    held_by: HeldBy | None = None
    """The pending offset that holds the floor; None if nothing is pending, and under the claim of an open turn."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """All partitions of a topic: sums, and the maximum or minimum of values that can't be added.

    A value is None if it is unknown for every partition.
    """

    topic: str
    partitions: int
    log_start: int | None
    log_end: int | None
    committed: int | None
    floor: int
    read: int
    pending: Mapping[PendingKind, int]
    due: int
    oldest_pending_at: datetime | None
    lag: int | None
    lag_seconds: float | None
    totals: Mapping[str, int]
    fetches: int | None
    fetch_seconds_max: float | None


def status(adapters: Adapters) -> list[PartitionStatus]:
    """Returns the status of every partition of the lane, and of those that would join it now; stores nothing."""
    return status_and_missing(adapters)[0]


def status_and_missing(adapters: Adapters) -> tuple[list[PartitionStatus], tuple[str, ...]]:
    """Returns the status of every partition, and what the file names and the broker does not have."""
    newest = adapters.store.newest()
    view = observe_kafka(adapters, newest)
    lane = preview_lane(adapters, newest, view)
    # The group is committed to what a claim has set while its turn is under way.
    plan = adapters.store.open_plan(newest) if newest and adapters.pipeline.guarantee == "at_most_once" else None
    floors = {tp: settled.state.floor for tp, settled in lane.items()} | (
        claimed_floors(adapters, plan) if plan else {}
    )
    # In a topic that was created again, the lane's offsets mean nothing: there is no lag.
    logs = {tp: view.bounds.get(tp) for tp, row in lane.items() if view.topic_ids.get(tp.topic) == row.topic_id}
    behind = {tp: max(floors[tp], log.start) for tp, log in logs.items() if log and floors[tp] < log.end}
    times = adapters.cluster.record_times(behind) if behind else {}
    now, partitions = adapters.now(), []
    for tp, settled in sorted(lane.items()):
        log, same_log = view.bounds.get(tp), logs.get(tp)
        committed = view.committed.get(tp)
        oldest, metrics = oldest_pending(settled.state), settled.metrics or {}
        partitions.append(
            PartitionStatus(
                adapters.store.lane,
                newest.turn.epoch if newest else 0,
                tp.topic,
                tp.partition,
                log.start if log else None,
                log.end if log else None,
                committed.offset if committed else None,
                floors[tp],
                settled.state.complete_to,
                settled.state.pending_by_kind(),
                settled.state.next_due,
                same_log.end - floors[tp] if same_log else None,
                lag_seconds(tp in behind, times.get(tp), now) if same_log and floors[tp] <= same_log.end else None,
                settled.state.complete_to,
                due_retries(settled.state, now),
                oldest,
                times.get(tp) if oldest is not None and oldest == behind.get(tp) else None,
                {word: (settled.totals or {}).get(word, 0) for word in TOTALS},
                int(metrics[FETCHES]) if FETCHES in metrics else None,
                metrics.get(FETCH_MEAN),
                metrics.get(FETCH_MAX),
                _why(adapters, tp, settled, view),
                times.get(tp),
                held_by(settled.state) if floors[tp] == settled.state.floor else None,
            )
        )
    return partitions, view.missing


def _why(adapters: Adapters, tp: TopicPartition, settled: SettledPartition, view: KafkaView) -> str | None:
    """Returns why every plan would leave the partition alone, or stop at it; None if there is no such reason."""
    if not adapters.is_subscribed(tp):
        return PARKED
    if tp not in view.bounds:
        return MISSING
    if view.topic_ids[tp.topic] != settled.topic_id:
        return CREATED_AGAIN
    log = view.bounds[tp]
    if log is not None and log.end < settled.state.complete_to:
        return TRUNCATED
    if settled.paused:
        return PAUSED
    return None if log else NO_LEADER


def status_by_topic(partitions: Iterable[PartitionStatus]) -> list[TopicStatus]:
    """Returns a status for each topic of the given partitions, sorted by name."""
    by_topic: dict[str, list[PartitionStatus]] = {}
    for status in partitions:
        by_topic.setdefault(status.topic, []).append(status)
    return [_topic_status(topic, of_topic) for topic, of_topic in sorted(by_topic.items())]


def _topic_status(topic: str, partitions: list[PartitionStatus]) -> TopicStatus:
    return TopicStatus(
        topic,
        len(partitions),
        _of_known(sum, (p.log_start for p in partitions)),
        _of_known(sum, (p.log_end for p in partitions)),
        _of_known(sum, (p.committed for p in partitions)),
        sum(p.floor for p in partitions),
        sum(p.read for p in partitions),
        {kind: sum(p.pending[kind] for p in partitions) for kind in PendingKind},
        sum(p.due for p in partitions),
        min((p.oldest_pending_at for p in partitions if p.oldest_pending_at is not None), default=None),
        _of_known(sum, (p.lag for p in partitions)),
        _of_known(max, (p.lag_seconds for p in partitions)),
        {word: sum(p.totals[word] for p in partitions) for word in TOTALS},
        _of_known(sum, (p.fetches for p in partitions)),
        _of_known(max, (p.fetch_seconds_max for p in partitions)),
    )


def _of_known(combine: Callable[[list[N]], N], values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None
