"""Turns as values: what a plan and a settlement hold. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from ackline.commit_rule import Committed
from ackline.ledger import PartitionState
from ackline.offsets import LogBounds, OffsetRange, Runs, TopicPartition


class TurnId(NamedTuple):
    """The identity of a turn: everything else (run ids, DAG runs, users) is an attribute."""

    pipeline: str
    lane: str
    epoch: int
    n: int

    def __str__(self) -> str:
        return f"turn {self.n} (lane {self.lane}, epoch {self.epoch}) of {self.pipeline}"


LIVE = "live"
"""The lane that commits the group's offsets."""


class TurnKind(StrEnum):
    """What a turn does; a settlement has its plan's kind, or `void`."""

    RUN = "run"
    GENESIS = "genesis"
    """Partitions join the lane."""
    SKIP = "skip"
    """Everything below a given offset is settled unhandled; what is pending there, too."""
    RESET = "reset"
    """The lane begins a new epoch at given offsets, with nothing pending."""
    PAUSE = "pause"
    RESUME = "resume"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class SettledPartition:
    """One row of `settlements`. `acknowledged_foreign_offset` is the foreign committed value that this lane has
    answered; `committed` what Kafka held when the turn was settled. `gaps` None: not known. `metrics` and `totals` (`ackline.metrics`) are None in rows
    of a version that kept none. All that is settled or pending below `complete_to` was in the log of the leader of
    `leader_epoch`; None where that is not known."""

    topic_id: str
    old_floor: int
    state: PartitionState
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: int | None = 0
    acknowledged_foreign_offset: int | None = None
    committed: Committed | None = None
    evidence: str = ""
    paused: bool = False
    metrics: Mapping[str, float] | None = None
    totals: Mapping[str, int] | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """A turn's end: the state of every partition of the lane after it."""

    turn: TurnId
    kind: TurnKind
    run_id: str
    settled_at: datetime
    partitions: Mapping[TopicPartition, SettledPartition]
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One row of `plans`: the fresh range, the due retries (value: number of the attempt to be made), and, where it
    gets nothing, why."""

    topic_id: str
    fresh: OffsetRange
    retries: Runs[int]
    floor: int
    complete_to: int
    log: LogBounds
    why: str | None = None
    committed: Committed | None = None
    acknowledged_foreign_offset: int | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is to be read here."""
        return not self.fresh and not self.retries


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn, planned: stored, it holds until it is settled, whoever carries it out."""

    turn: TurnId
    kind: TurnKind
    run_id: str
    planned_at: datetime
    partitions: Mapping[TopicPartition, PlannedPartition]
    isolation: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""
    reason: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing is to be read, so that no Spark is needed."""
        return all(p.empty for p in self.partitions.values())
