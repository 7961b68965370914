"""What holds the floor of a partition, and what retention takes next, in plain sentences. Pure.

The caller reads the evidence: from the broker (`ackline.actions.explain`), or from the tables alone.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind

_CALENDAR = timedelta(days=10_000)
"""From this distance on, a time is shown without its distance from now."""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The pending offset that holds the floor."""

    offset: int
    kind: PendingKind
    attempts: int
    due: datetime | None
    error_class: str | None


@dataclass(frozen=True, slots=True)
class Retention:
    """What retention does to a partition.

    `eta` is the earliest time at which it may take the first record that is not settled: the record's time plus
    `retention.ms`. None if nothing is unsettled, if the topic deletes no record by time, or if one of the two is not
    known. A limit by size may take the record earlier.
    """

    log_start: int | None
    eta: datetime | None


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """What is known about a partition: its floor and what holds it, its log, and when retention takes the next record.

    `next_expiry` is as `Retention.eta`.
    """

    tp: TopicPartition
    floor: int
    held_by: HeldBy | None
    log_start: int | None
    log_end: int | None
    next_expiry: datetime | None
    now: datetime
    why: str | None = None
    """Why runs leave the partition alone or stop at it, as `ackline status` shows it."""


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """What holds the floor of a partition, and what retention takes next."""

    tp: TopicPartition
    floor: int
    held_by: HeldBy | None
    retention: Retention
    sentence: str


def held_by(state: PartitionState) -> HeldBy | None:
    """Returns the pending offset that holds the floor; None if nothing is pending."""
    if not state.pending:
        return None
    run = state.pending[0]
    return HeldBy(run.start, run.value.kind, run.value.attempts, run.value.due, run.value.error_class)


def explain_partition(evidence: PartitionEvidence) -> PartitionExplanation:
    """Returns what holds the floor of a partition, and what retention takes next."""
    retention = Retention(evidence.log_start, evidence.next_expiry)
    sentences = [_floor_sentence(evidence), _why_sentence(evidence), _retention_sentence(evidence)]
    text = " ".join(filter(None, sentences))
    return PartitionExplanation(evidence.tp, evidence.floor, evidence.held_by, retention, text)


def _floor_sentence(evidence: PartitionEvidence) -> str:
    tp, floor, end = evidence.tp, evidence.floor, evidence.log_end
    if evidence.held_by is not None:
        return f"The floor of {tp} is {floor}, because {waiting_sentence(evidence.held_by, evidence.now)}"
    if end is None:
        return f"Nothing is pending in {tp}; its floor is {floor}. The end of its log is not known."
    if end <= floor:
        return f"Every record of {tp} below its log end {end} is settled; nothing holds the floor."
    return f"Nothing is pending in {tp}; its floor is {floor}, and [{floor}, {end}) is not read yet."


def waiting_sentence(holder: HeldBy, now: datetime) -> str:
    """Returns what the pending offset waits for, as a clause that ends a sentence."""
    cause = f" with {holder.error_class}" if holder.error_class else ""
    if holder.kind is PendingKind.DEAD_LETTER:
        return (
            f"offset {holder.offset} has no attempt left after {attempts_text(holder.attempts)}{cause}, and the broker "
            f"has not acknowledged its dead letter yet; each run sends it again."
        )
    if holder.kind is PendingKind.IN_FLIGHT:
        until = f" until {moment_text(holder.due, now)}" if holder.due else ""
        return f"offset {holder.offset} is in flight and waits for its answer{until}."
    if not holder.attempts:
        return f"offset {holder.offset} waits for its first attempt, which the next run makes."
    return (
        f"offset {holder.offset} failed {times_text(holder.attempts)}{cause} and waits for attempt "
        f"{holder.attempts + 1}{_due(holder.due, now)}."
    )


def _due(due: datetime | None, now: datetime) -> str:
    if due is None:
        return ""
    return (
        f", due since {moment_text(due, now)}: the next run makes it"
        if due <= now
        else f", due at {moment_text(due, now)}"
    )


def _why_sentence(evidence: PartitionEvidence) -> str:
    return f"Runs do not read the partition: {evidence.why}." if evidence.why else ""


def _retention_sentence(evidence: PartitionEvidence) -> str:
    floor, start, end = evidence.floor, evidence.log_start, evidence.log_end
    if start is None or end is None or floor >= end:
        return ""
    if start > floor:
        return f"The log starts at {start}: the next run settles what is gone below it as expired."
    if evidence.next_expiry is None:
        return f"The log starts at {start}; no time is known at which retention takes offset {floor}."
    moment = moment_text(evidence.next_expiry, evidence.now)
    if evidence.next_expiry <= evidence.now:
        return f"Retention may take offset {floor} at any moment, since {moment}."
    return f"Retention may take offset {floor} from {moment} on."


def attempts_text(number: int) -> str:
    """Returns `1 attempt`, `2 attempts` and so on."""
    return f"{number} attempt" + "s" * (number != 1)


def times_text(number: int) -> str:
    """Returns `once`, `2 times` and so on."""
    return "once" if number == 1 else f"{number} times"


def moment_text(time: datetime, now: datetime) -> str:
    """Returns a time with its distance from now: `2026-03-01 12:00:00 UTC (in 5 minutes)`."""
    away = time - now
    text = f"{time:%Y-%m-%d %H:%M:%S} UTC"
    if abs(away) >= _CALENDAR:
        return text
    return f"{text} ({'in ' if away > timedelta() else ''}{span(abs(away))}{'' if away > timedelta() else ' ago'})"


def span(duration: timedelta) -> str:
    """Returns a duration in its largest whole unit, such as `5 minutes`."""
    seconds = int(duration.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}s"
    return f"{seconds} second" + "s" * (seconds != 1)
