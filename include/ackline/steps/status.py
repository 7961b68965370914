"""Where a pipeline stands: the newest settlement beside what the broker says now."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from ackline.figures import FETCH_MAX, FETCH_MEAN, FETCHES, TOTALS, due_retries, oldest_pending
from ackline.ledger import PendingKind, SettledPartition
from ackline.offsets import TopicPartition
from ackline.planning import NO_LEADER, PARKED, PAUSED
from ackline.steps.parts import Parts
from ackline.steps.plan import look_at_kafka, preview_lane

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; lag is `log_end - floor`, `lag_seconds` the age of the record at the floor (0 where there is no
    lag, None where the broker has no time for it).

    `read` is the end of what was read and handled whole; `due` counts retries that are due now; `oldest_pending_at` is
    the time of the record at the lowest pending offset; `totals` are the effective rows of the epoch by outcome, and
    `retries`; fetches are those of the last turn that read from the partition. `why` says why runs leave it alone
    (paused, no longer subscribed, no leader), or is None.
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
    newest = parts.store.newest()
    look = look_at_kafka(parts, newest)
    lane = preview_lane(parts, newest, look)
    behind: dict[TopicPartition, int] = {}
    for at, one in lane.items():
        log = look.bounds.get(at)
        if log and one.state.floor < log.end:
            behind[at] = one.state.floor
    times = parts.cluster.record_times(behind) if behind else {}
    found = []
    for at, one in sorted(lane.items()):
        log = look.bounds.get(at)
        held = look.held.get(at)
        oldest, figures = oldest_pending(one.state), one.figures or {}
        found.append(
            PartitionStatus(
                parts.store.lane,
                newest.turn.epoch if newest else 0,
                at.topic,
                at.partition,
                log.start if log else None,
                log.end if log else None,
                held.offset if held else None,
                one.state.floor,
                one.state.complete_to,
                one.state.pending_by_kind(),
                one.state.next_due,
                log.end - one.state.floor if log else None,
                _lag_seconds(parts, at, one, behind, times),
                one.state.complete_to,
                due_retries(one.state, parts.now()),
                oldest,
                times.get(at) if oldest is not None else None,
                {word: (one.totals or {}).get(word, 0) for word in TOTALS},
                int(figures[FETCHES]) if FETCHES in figures else None,
                figures.get(FETCH_MEAN),
                figures.get(FETCH_MAX),
                _why(parts, at, one, log is not None),
            )
        )
    return found


def _why(parts: Parts, at: TopicPartition, one: SettledPartition, has_leader: bool) -> str | None:
    """The reason that a plan would give, as long as it holds for every plan."""
    if not parts.wants(at):
        return PARKED
    if one.paused:
        return PAUSED
    return None if has_leader else NO_LEADER


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
    at: TopicPartition,
    one: SettledPartition,
    behind: Mapping[TopicPartition, int],
    times: Mapping[TopicPartition, datetime],
) -> float | None:
    if at not in behind:
        return 0.0
    time = times.get(at)
    return None if time is None else max(0.0, round((parts.now() - time).total_seconds(), 3))
