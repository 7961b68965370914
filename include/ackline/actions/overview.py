"""The state of a whole pipeline on one line, and what is under way in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from ackline.actions.explain import explanations_of
from ackline.actions.status import CREATED_AGAIN, MISSING, TRUNCATED, PartitionStatus
from ackline.lane.adapters import Adapters
from ackline.ledger.explain import PartitionExplanation
from ackline.ledger.fold import PendingKind
from ackline.ledger.turns import Plan
from ackline.tables.lease import Holder
from ackline.tables.lease_file import holder_of

MOST_EXPLAINED = 5
"""Of how many partitions `held_back` reads the retention and writes a sentence."""


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


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline. `lag` is the sum, `lag_seconds` the highest of its partitions; `problem` names why it is not ok."""

    pipeline: str
    health: Health
    partitions: int = 0
    lag: int | None = None
    lag_seconds: float | None = None
    pending: int = 0
    dead: int = 0
    next_due: datetime | None = None
    problem: str = ""


def summary_of(pipeline: str, partitions: Sequence[PartitionStatus], missing: Sequence[str]) -> PipelineStatus:
    """Returns the state of a pipeline, from that of its partitions; `missing` are topics that do not exist."""
    health, problem = _health(partitions, missing)
    lags = [status.lag for status in partitions if status.lag is not None]
    ages = [status.lag_seconds for status in partitions if status.lag_seconds is not None]
    return PipelineStatus(
        pipeline,
        health,
        len(partitions),
        sum(lags) if lags else None,
        max(ages, default=None),
        sum(sum(status.pending.values()) for status in partitions),
        sum(status.totals["dead"] for status in partitions),
        min((status.next_due for status in partitions if status.next_due), default=None),
        problem,
    )


def _health(partitions: Sequence[PartitionStatus], missing: Sequence[str]) -> tuple[Health, str]:
    by_health: dict[Health, PartitionStatus] = {}
    for status in partitions:
        by_health.setdefault(_health_of(status), status)
    if missing:
        return Health.STOPPED, f"{missing[0]} does not exist"
    if not partitions:
        return Health.BEHIND, "has not run yet"
    worst = min(by_health)
    status = by_health[worst]
    return worst, f"{status.topic}[{status.partition}]: {status.why}" if status.why else ""


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


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The open turn of a lane. `holder` is the process that works on it; None if no process holds its lease."""

    plan: Plan
    holder: Holder | None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What holds a lane: partitions with a pending record at their floor, and the open turn."""

    explanations: Sequence[PartitionExplanation]
    more: int
    """How many other partitions are held by a pending record."""
    open_turn: OpenTurn | None


def open_turn_of(adapters: Adapters) -> OpenTurn | None:
    """Returns the turn of the lane that is planned and not settled, with the process that works on it."""
    _, plan = adapters.newest_and_open_plan()
    if plan is None:
        return None
    return OpenTurn(plan, holder_of(adapters.lease.file, plan.turn, adapters.lease.clock()) if adapters.lease else None)


def held_back(adapters: Adapters, worst: Sequence[PartitionStatus]) -> HeldBack:
    """Returns what holds the floors of these partitions, of at most MOST_EXPLAINED of them, in their order."""
    held = [status for status in worst if status.held_by is not None]
    explanations = explanations_of(adapters, held[:MOST_EXPLAINED])
    return HeldBack(explanations, len(held) - len(explanations), open_turn_of(adapters))
