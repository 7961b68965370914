"""Where a pipeline stands: the newest settlement beside what the broker says now."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ackline.ledger import PendingKind
from ackline.metrics import FETCH_MAX, FETCH_MEAN, FETCHES, TOTALS, due_retries, oldest_pending
from ackline.offsets import TopicPartition
from ackline.planning import NO_LEADER, PARKED, PAUSED
from ackline.steps.observe import KafkaView, observe_kafka
from ackline.steps.parts import Parts
from ackline.steps.plan import preview_lane
from ackline.turns import SettledPartition, Settlement, TurnKind

MISSING, CREATED_AGAIN, TRUNCATED = "missing", "created again", "truncated"
"""Why a run stops at a partition: it is gone; its topic is another one of that name; its log is shorter than it was."""

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; lag is `log_end - floor`, `lag_seconds` the age of the record at the floor, or of the first one
    above it that retention has left (0 where there is no lag, None where the broker has no time for it). Both are None
    where there is no log to compare with.

    The floor is that of the newest settlement or claim. `read` is the end of what was read and handled whole; `due`
    counts retries that are due now; `oldest_pending_at` is the time of the record at the lowest pending offset, None
    where retention took it; `totals` are the effective rows of the epoch by outcome, and `retries`; fetches are those
    of the last turn that read from the partition. `why` says why runs leave it alone (paused, no longer subscribed, no
    leader) or stop at it (missing, created again, truncated), or is None.
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


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """All partitions of a topic: sums, and the worst of what can't be added up. None where no partition knows it."""

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


def status(parts: Parts) -> list[PartitionStatus]:
    """Every partition of the lane, and those that it would begin with at its next run."""
    return status_and_missing(parts)[0]


def status_and_missing(parts: Parts) -> tuple[list[PartitionStatus], tuple[str, ...]]:
    """The same, and the topics and partitions that the file names and the broker does not have."""
    newest = parts.store.newest()
    look = observe_kafka(parts, newest)
    lane = preview_lane(parts, newest, look)
    floors = {tp: one.state.floor for tp, one in lane.items()} | _claimed(parts, newest)
    logs = {tp: look.bounds.get(tp) for tp, one in lane.items() if look.topic_ids.get(tp.topic) == one.topic_id}
    behind = {tp: max(floors[tp], log.start) for tp, log in logs.items() if log and floors[tp] < log.end}
    times = parts.cluster.record_times(behind) if behind else {}
    found = []
    for tp, one in sorted(lane.items()):
        log, same = look.bounds.get(tp), logs.get(tp)
        committed = look.committed.get(tp)
        oldest, metrics = oldest_pending(one.state), one.metrics or {}
        found.append(
            PartitionStatus(
                parts.store.lane,
                newest.turn.epoch if newest else 0,
                tp.topic,
                tp.partition,
                log.start if log else None,
                log.end if log else None,
                committed.offset if committed else None,
                floors[tp],
                one.state.complete_to,
                one.state.pending_by_kind(),
                one.state.next_due,
                same.end - floors[tp] if same else None,
                _lag_seconds(parts, tp, behind, times) if same and floors[tp] <= same.end else None,
                one.state.complete_to,
                due_retries(one.state, parts.now()),
                oldest,
                times.get(tp) if oldest is not None and oldest == behind.get(tp) else None,
                {word: (one.totals or {}).get(word, 0) for word in TOTALS},
                int(metrics[FETCHES]) if FETCHES in metrics else None,
                metrics.get(FETCH_MEAN),
                metrics.get(FETCH_MAX),
                _why(parts, tp, one, look),
            )
        )
    return found, look.missing


def _claimed(parts: Parts, newest: Settlement | None) -> dict[TopicPartition, int]:
    """The floors that a claim has set: at most once, the group is committed over what is under way."""
    if newest is None or parts.pipeline.guarantee != "at_most_once":
        return {}
    plan = parts.store.open_plan(newest)
    if plan is None or plan.kind is not TurnKind.RUN or not parts.store.has_claim(plan.turn):
        return {}
    return {tp: one.fresh.end for tp, one in plan.partitions.items() if one.fresh}


def _why(parts: Parts, tp: TopicPartition, one: SettledPartition, look: KafkaView) -> str | None:
    """The reason that a plan would give, or stop for, as long as it holds for every plan."""
    if not parts.wants(tp):
        return PARKED
    if tp not in look.bounds:
        return MISSING
    if look.topic_ids[tp.topic] != one.topic_id:
        return CREATED_AGAIN
    log = look.bounds[tp]
    if log is not None and log.end < one.state.complete_to:
        return TRUNCATED
    if one.paused:
        return PAUSED
    return None if log else NO_LEADER


def topics_of(partitions: Iterable[PartitionStatus]) -> list[TopicStatus]:
    """The same by topic, sorted."""
    by_topic: dict[str, list[PartitionStatus]] = {}
    for one in partitions:
        by_topic.setdefault(one.topic, []).append(one)
    return [_topic(topic, ones) for topic, ones in sorted(by_topic.items())]


def _topic(topic: str, ones: list[PartitionStatus]) -> TopicStatus:
    return TopicStatus(
        topic,
        len(ones),
        _of_known(sum, (one.log_start for one in ones)),
        _of_known(sum, (one.log_end for one in ones)),
        _of_known(sum, (one.committed for one in ones)),
        sum(one.floor for one in ones),
        sum(one.read for one in ones),
        {kind: sum(one.pending[kind] for one in ones) for kind in PendingKind},
        sum(one.due for one in ones),
        min((one.oldest_pending_at for one in ones if one.oldest_pending_at is not None), default=None),
        _of_known(sum, (one.lag for one in ones)),
        _of_known(max, (one.lag_seconds for one in ones)),
        {word: sum(one.totals[word] for one in ones) for word in TOTALS},
        _of_known(sum, (one.fetches for one in ones)),
        _of_known(max, (one.fetch_seconds_max for one in ones)),
    )


def _of_known(fold: Callable[[list[N]], N], values: Iterable[N | None]) -> N | None:
    known = [value for value in values if value is not None]
    return fold(known) if known else None


def _lag_seconds(
    parts: Parts,
    tp: TopicPartition,
    behind: Mapping[TopicPartition, int],
    times: Mapping[TopicPartition, datetime],
) -> float | None:
    if tp not in behind:
        return 0.0
    time = times.get(tp)
    return None if time is None else max(0.0, round((parts.now() - time).total_seconds(), 3))
