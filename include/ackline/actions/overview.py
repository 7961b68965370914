"""The status of every pipeline, a line each: how it is, and why it is not ok."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated

from pydantic import PlainSerializer

from ackline.actions.objects import JsonObject, Time
from ackline.actions.standstill import PAUSED_LANE, StandsStill
from ackline.actions.status import CREATED_AGAIN, MISSING, TRUNCATED, PartitionStatus, Unreachable
from ackline.ledger.pending import PendingKind


class Health(IntEnum):
    """How a pipeline is, the worst first."""

    UNREADABLE = 0
    """Its file, its tables or its broker can't be read."""
    STOPPED = 1
    """Runs stop at a partition: its topic is missing, was created again, or its log is shorter than what was read."""
    LOSING = 2
    """Retention has taken records that are not settled."""
    UNDELIVERED = 3
    """Dead letters are not acknowledged."""
    WAITING = 4
    """Records wait for their retry, or for an answer."""
    BEHIND = 5
    """Records are not read yet."""
    PAUSED = 6
    """Partitions are paused, parked or without a leader, and nothing else is left."""
    OK = 7


class PipelineStatus(JsonObject):
    """One pipeline. `lag` is the sum, `lag_seconds` the highest of its partitions; `problem` names why it is not ok.

    What is not known is None: without a broker the lag, without tables everything.
    """

    pipeline: str
    health: Annotated[Health, PlainSerializer(lambda health: health.name.lower())]
    partitions: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    pending: int | None = None
    dead: int | None = None
    next_due: Time | None = None
    problem: str | None = None
    stands_still: StandsStill | None = None


class OverviewObject(JsonObject):
    """The status of every pipeline, the worst first."""

    pipelines: tuple[PipelineStatus, ...]


def summary_of(
    pipeline: str,
    partitions: Sequence[PartitionStatus],
    missing: Sequence[str],
    standing: StandsStill | None = None,
    unreachable: Unreachable | None = None,
) -> PipelineStatus:
    """Returns the state of a pipeline, from that of its partitions; `missing` are topics that do not exist, `standing`
    is what the lane stands still for, `unreachable` is why its broker was not read."""
    health, problem = _health(partitions, missing)
    if standing is not None:
        problem = standing.sentence
        is_whole = not standing.partial and standing.reason != PAUSED_LANE
        health = min(health, Health.STOPPED) if is_whole else health
    if unreachable is not None:
        stood = [standing.sentence] if standing is not None else []
        health, problem = Health.UNREADABLE, "; ".join([*stood, str(unreachable.error)])
    lags = [status.lag for status in partitions if status.lag is not None]
    return PipelineStatus(
        pipeline=pipeline,
        health=health,
        partitions=len(partitions),
        lag=sum(lags) if lags else None,
        lag_seconds=max((age for status in partitions if (age := status.lag_seconds) is not None), default=None),
        pending=sum(sum(status.pending.values()) for status in partitions),
        dead=sum(status.totals["dead"] for status in partitions),
        next_due=min((status.next_due for status in partitions if status.next_due), default=None),
        problem=problem,
        stands_still=standing,
    )


def _health(partitions: Sequence[PartitionStatus], missing: Sequence[str]) -> tuple[Health, str | None]:
    by_health: dict[Health, PartitionStatus] = {}
    for status in partitions:
        by_health.setdefault(_health_of(status), status)
    if missing:
        return Health.STOPPED, f"{missing[0]} does not exist"
    if not partitions:
        return Health.BEHIND, "has not run yet"
    worst = min(by_health)
    status = by_health[worst]
    return worst, f"{status.topic}[{status.partition}]: {status.why}" if status.why else None


def _health_of(status: PartitionStatus) -> Health:
    if status.why in (MISSING, CREATED_AGAIN, TRUNCATED):
        return Health.STOPPED
    if status.log_start is not None and status.lag and status.floor < status.log_start:
        return Health.LOSING
    if status.pending[PendingKind.DEAD_LETTER]:
        return Health.UNDELIVERED
    if sum(status.pending.values()):
        return Health.WAITING
    if status.why:
        return Health.PAUSED
    return Health.BEHIND if status.lag else Health.OK
