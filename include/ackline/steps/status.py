"""Where a pipeline stands: the newest settlement beside what the broker says now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ackline.ledger import PendingKind, SettledPartition
from ackline.offsets import TopicPartition
from ackline.steps.parts import Parts
from ackline.steps.plan import look_at_kafka, preview_lane


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition; lag is `log_end - floor`, `lag_seconds` the age of the record at the floor (0 where there is no
    lag, None where the broker has no time for it)."""

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
            )
        )
    return found


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
