"""What holds the floor of a partition and what became of an offset, with the log as the broker has it now."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BeforeValidator

from ackline.actions.objects import JsonObject, PartitionObject, Time
from ackline.answers.status import (
    OpenTurn,
    OpenTurnObject,
    PartitionStatus,
    UnreachableObject,
    open_turn_of,
    status_and_missing,
)
from ackline.audit.history import evidence_of_offset
from ackline.errors import ConfigError, TransientError
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import StandsStill, Way
from ackline.ledger.explain import (
    AFTER_REFUSAL,
    NEXT_RUN,
    OffsetExplanation,
    OpenTransaction,
    PartitionEvidence,
    PartitionExplanation,
    explain_offset,
    explain_partition,
    story_json,
)
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.planning import NO_LEADER, PARKED, PAUSED
from ackline.ledger.turns import Settlement

_logger = logging.getLogger(__name__)

MOST_EXPLAINED = 5
"""Of how many partitions `held_back` reads the retention and writes a sentence."""


class PendingObject(JsonObject):
    """What a pending offset waits for."""

    kind: str
    attempts: int
    due: Time | None
    error_class: str | None


class HeldByObject(JsonObject):
    """The pending offset that holds a floor. `rescued_to` is where its copy in the rescue topic is."""

    left_out = frozenset({"rescued_to"})
    offset: int
    kind: str
    attempts: int
    due: Time | None
    error_class: str | None
    rescued_to: str | None = None


class RetentionObject(JsonObject):
    """The log start, and when retention may take the first record that is not settled."""

    log_start: int | None
    eta: Time | None


class PartitionExplanationObject(PartitionObject):
    """What holds the floor of a partition."""

    floor: int
    held_by: HeldByObject | None
    retention: RetentionObject
    sentence: str
    left_out = frozenset({"unreachable", "open_turn"})
    stands_still: StandsStill | None = None
    unreachable: UnreachableObject | None = None
    open_turn: OpenTurnObject | None = None

    @classmethod
    def of(cls, found: PartitionExplanation, **of_lane: object) -> "PartitionExplanationObject":
        """Returns an explanation as an object. `of_lane` has the keys `stands_still`, `unreachable` and `open_turn`."""
        own = {name: getattr(found, name) for name in ("floor", "held_by", "retention", "sentence")}
        return cls.model_validate({**found.tp._asdict(), **own, **of_lane})


class ExplanationsObject(JsonObject):
    """What holds the floors of a pipeline."""

    left_out = frozenset({"unreachable", "open_turn"})
    pipeline: str
    stands_still: StandsStill | None
    unreachable: UnreachableObject | None = None
    open_turn: OpenTurnObject | None = None
    partitions: tuple[PartitionExplanationObject, ...]


class EventObject(JsonObject):
    """An attempt at a record, or a decision about it, which has attempt 0."""

    epoch: int
    turn: int
    attempt: int
    outcome: str
    error_class: str | None
    at: Time | None
    run_id: str
    error_place: str | None
    tree: Annotated[dict[str, dict[str, int]] | None, BeforeValidator(story_json)]


class OffsetExplanationObject(JsonObject):
    """What became of an offset."""

    left_out = frozenset({"unreachable"})
    offset: int
    state: str
    attempts: int
    pending: PendingObject | None
    events: tuple[EventObject, ...]
    sentence: str
    stands_still: StandsStill | None = None
    unreachable: UnreachableObject | None = None


def explain_partitions(
    adapters: Adapters,
    only: TopicPartition | None = None,
    standing: StandsStill | None = None,
    reads_broker: bool = True,
) -> list[PartitionExplanation]:
    """Returns for each partition of the lane what holds its floor, those with the largest lag first. `standing` is what
    the lane stands still for: then nothing is said of the next run. Without `reads_broker` it reads the tables alone.

    Raises ConfigError if the lane does not have the partition `only`.
    """
    statuses, _ = status_and_missing(adapters, reads_broker)
    wanted = [status for status in statuses if only in (None, TopicPartition(status.topic, status.partition))]
    if only is not None and not wanted:
        name = adapters.pipeline.name
        raise ConfigError(f"{only}: not a partition of {name}; `ackline status {name}` lists its partitions")
    return explanations_of(adapters, sorted(wanted, key=lambda status: -(status.lag or 0)), standing)


def _next_run(adapters: Adapters, standing: StandsStill | None, why: str | None) -> str:
    """Returns the words for the run that does what is due; `why` is why runs leave the partition alone, or None."""
    if standing is not None and standing.stops_runs:
        return AFTER_REFUSAL
    if why == PAUSED:
        return f"the first run after `{Way.RESUME.of(adapters.store)}`"
    if why == PARKED:
        return "the first run that reads the partition again"
    return "the first run that finds a leader" if why == NO_LEADER else NEXT_RUN


def explanations_of(
    adapters: Adapters, statuses: Iterable[PartitionStatus], standing: StandsStill | None = None
) -> list[PartitionExplanation]:
    """Returns what holds the floor of these partitions, in their order."""
    now, explanations = adapters.now(), []
    for status in statuses:
        tp = TopicPartition(status.topic, status.partition)
        log_start, log_end = status.log_start, status.log_end
        evidence = PartitionEvidence(
            tp, status.floor, status.held_by, log_start, log_end, status.retention_eta, now, status.why,
            _next_run(adapters, standing, status.why), status.epoch,
            OpenTransaction(held.since, held.records) if (held := status.open_transaction) is not None else None,
            status.first_at_risk, status.apart,
        )  # fmt: skip
        explanations.append(explain_partition(evidence))
    return explanations


def explain_record(
    adapters: Adapters,
    tp: TopicPartition,
    offset: int,
    standing: StandsStill | None = None,
    reads_broker: bool = True,
) -> OffsetExplanation:
    """Returns what became of an offset. Without an answer of the broker, or `reads_broker`, the end of the log is left
    open.

    Raises ConfigError if the lane has not begun.
    """
    newest = adapters.store.newest()
    if newest is None:
        raise ConfigError(f"{adapters.pipeline.name} has not run yet: the lane {adapters.store.lane} has no record")
    log = _log_of(adapters, newest, tp) if reads_broker else None
    evidence = evidence_of_offset(adapters.store, newest, tp, offset, log)
    settled, why = newest.partitions.get(tp), None
    if settled is not None and not settled.let_go:
        why = PARKED if not adapters.is_subscribed(tp) else PAUSED if settled.paused else None
    return explain_offset(replace(evidence, next_run=_next_run(adapters, standing, why)), adapters.now())


def _log_of(adapters: Adapters, newest: Settlement, tp: TopicPartition) -> LogBounds | None:
    """Returns the readable log of the topic that the lane has read; None if it is another topic, or not known now."""
    settled = newest.partitions.get(tp)
    if settled is None:
        return None
    try:
        adapters.cluster.reachable()
        topic = adapters.cluster.topics([tp.topic]).get(tp.topic)
        if topic is None or topic.topic_id != settled.topic_id or not topic.partitions.get(tp.partition):
            return None
        return adapters.cluster.bounds([tp])[tp]
    except TransientError as error:
        _logger.warning("the log of %s is not known: %s", tp, error)
        return None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What holds a lane: partitions with a pending record or an open transaction, and the open turn."""

    explanations: Sequence[PartitionExplanation]
    more: int
    """How many other partitions are held by one of the two."""
    open_turn: OpenTurn | None


def held_back(adapters: Adapters, worst: Sequence[PartitionStatus], standing: StandsStill | None = None) -> HeldBack:
    """Returns what holds the floors of these partitions, of at most MOST_EXPLAINED of them, in their order."""
    held = [status for status in worst if status.held_by or status.apart or status.open_transaction]
    explanations = explanations_of(adapters, held[:MOST_EXPLAINED], standing)
    return HeldBack(explanations, len(held) - len(explanations), open_turn_of(adapters))
