"""Warnings about settings that are valid, but may lose records or have no effect. Pure.

Every run logs these warnings and goes on. `ackline.pipeline.pipeline` refuses settings that can't be right at all.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from croniter import croniter

from ackline.ledger.backoff import FOREVER, RetryPolicy
from ackline.ledger.outcomes import ErrorClass
from ackline.ledger.states import MISSED_SCHEDULES
from ackline.pipeline.properties import ignored_properties

if TYPE_CHECKING:
    from ackline.pipeline.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """How a topic deletes records."""

    retention: timedelta | None
    """How long it keeps a record; None if it deletes none by time, or the setting is not known."""
    compacted: bool = False
    """Whether it keeps only the last record of each key."""

    @classmethod
    def of(cls, settings: Mapping[str, str | None]) -> "TopicPolicy":
        """The policy that the topic's settings in Kafka describe. A missing setting counts as no deletion."""
        policies = {word.strip() for word in (settings.get("cleanup.policy") or "").split(",")}
        milliseconds = settings.get("retention.ms") or ""
        by_time = "delete" in policies and milliseconds.isdecimal()
        return cls(_duration(int(milliseconds)) if by_time else None, "compact" in policies)


def warnings_of_settings(pipeline: "Pipeline") -> Iterator[str]:
    """Warnings about the pipeline file that need nothing else to be known."""
    if not pipeline.guarantee.retries and pipeline.dead_letter_topic is not None:
        yield (
            f"dead_letter.topic: under `guarantee: {pipeline.guarantee}` a record that fails is `dropped`, and no "
            f"dead letter is sent to {pipeline.dead_letter_topic}"
        )
    if pipeline.guarantee.claims and pipeline.breaker is not None:
        yield "breaker: under `guarantee: at_most_once` it never trips: the group has already passed the records"
    if pipeline.breaker is not None and pipeline.breaker.failure_ratio == 1:
        yield "breaker: with `failure_ratio: 1` it never trips, because it needs a higher share of failures than that"
    for error_class in pipeline.retry.by_error:
        why = _without_effect(error_class)
        if why:
            yield f"retry.by_error: `{error_class}` {why}"
    if pipeline.rescue is not None:
        _, apart = _seconds_between_runs(pipeline.schedule)
        before = pipeline.rescue.before.total_seconds()
        if apart >= before:
            yield (
                f"rescue.before: runs are up to {_text(apart)} apart, and a run copies what retention takes within "
                f"{_text(before)}: retention may take a record between two runs. Write more than {_text(apart)}"
            )
    longest = _seconds_at_max_rate(pipeline)
    if pipeline.guarantee.claims and longest > pipeline.lost_after.total_seconds():
        yield (
            f"lost_after: {_text(pipeline.lost_after.total_seconds())} is shorter than a run may take at `max_rate` "
            f"({_text(longest)} for max_records_per_run): another process would record as `lost` what is still being "
            f"handled"
        )


def _without_effect(error_class: str) -> str | None:
    """Why `retry.by_error` has no effect for an error class; None if it may have one."""
    bare = error_class.rpartition(".")[2]
    if error_class == ErrorClass.DEAD:
        return "is never retried, whatever its policy"
    if error_class in (ErrorClass.SKIP, ErrorClass.TOMBSTONE, ErrorClass.UNMATCHED):
        return "is no failure, so there is nothing to retry"
    if bare != error_class and bare not in list(ErrorClass):
        return (
            f"matches no exception: an exception is recorded under its bare name, `{bare}`, without its module; only "
            f"an Arrow handler can return a name with a dot"
        )
    return None


def warnings_of_connection(pipeline: "Pipeline", connection: Mapping[str, object]) -> Iterator[str]:
    """Warnings about properties of the Kafka connection that Ackline ignores. The same property in a pipeline file is
    refused, because a file is of one pipeline, while others share the connection."""
    kafka = pipeline.kafka
    for name, reason in ignored_properties(connection, kafka.group_id, kafka.isolation).items():
        yield f"connection: its `{name}` is ignored: {reason}"


def warnings_of_topics(pipeline: "Pipeline", topics: Mapping[str, TopicPolicy]) -> Iterator[str]:
    """Warnings about the topics' own settings. `topics` are the topics that are read and the dead-letter topic."""
    # With `rescue`, what waits for its retry is copied before retention takes it.
    keeps = pipeline.guarantee.retries and pipeline.rescue is None
    waits = longest_wait(pipeline) if keeps else (0.0, None)
    _, apart = _seconds_between_runs(pipeline.schedule)
    run = _seconds_at_max_rate(pipeline)
    for topic, policy in sorted(topics.items()):
        if topic != pipeline.dead_letter_topic:
            yield from _warnings_of_retention(topic, policy, waits, apart, run)
        elif policy.compacted:
            yield (
                f"dead_letter.topic: {topic} is compacted (cleanup.policy): it keeps one dead letter a key, and "
                f"refuses those without a key, which stay pending and hold the floor"
            )


def _warnings_of_retention(
    topic: str, policy: TopicPolicy, waits: tuple[float, str | None], apart: float, run: float
) -> Iterator[str]:
    """Warnings if retention may take a record before its last attempt, between two runs, or while a run reads."""
    kept = math.inf if policy.retention is None else policy.retention.total_seconds()
    wait, error_class = waits
    if wait and wait >= kept < math.inf:
        of_class = f" ({error_class})" if error_class else ""
        if math.isinf(wait):
            yield (
                f"retry: with `max_retries: forever`{of_class} a record that always fails is retried until the topic "
                f"{topic} deletes it, after {_text(kept)} (retention.ms): it is then `expired`, without a dead letter"
            )
        else:
            yield (
                f"retry: a record may wait {_text(wait)} for its last attempt{of_class}, and the topic {topic} keeps "
                f"it for {_text(kept)} (retention.ms): what retention takes first is `expired`"
            )
    if apart and apart >= kept:
        yield (
            f"schedule: its runs are up to {_text(apart)} apart, and the topic {topic} keeps records for "
            f"{_text(kept)} (retention.ms): a record that comes in between may be `expired` before any run reads it"
        )
    if run and run >= kept:
        yield (
            f"max_rate: a run of max_records_per_run may take {_text(run)}, and the topic {topic} keeps records for "
            f"{_text(kept)} (retention.ms): a run that retention overtakes is void and begins again"
        )


def longest_wait(pipeline: "Pipeline") -> tuple[float, str | None]:
    """The longest time, in seconds, that a record may wait for all its retries together, and the error class that waits
    so long (None: any class without a policy of its own).

    Each retry waits at least until the next run of the schedule. The time is infinite with `max_retries: forever`. (0,
    None) if a class of the user decides on retries, because its delays can't be known.
    """
    policy = pipeline.retry.policy()
    if not isinstance(policy, RetryPolicy):
        return 0.0, None
    between_runs, _ = _seconds_between_runs(pipeline.schedule)
    policies: list[tuple[RetryPolicy, str | None]] = [(policy, None)]
    policies += [(own, error_class) for error_class, own in sorted(policy.by_error.items()) if own is not None]
    waits = [
        (math.inf if own.max_retries == FOREVER else max(_sum_of_delays(own), own.max_retries * between_runs), name)
        for own, name in policies
    ]
    return max(waits, key=lambda wait: wait[0])


def _sum_of_delays(policy: RetryPolicy) -> float:
    """The sum of all delays of one policy, in seconds: a closed formula, as there may be two thousand million."""
    if not policy.max_retries:
        return 0.0
    later, period, cap = policy.max_retries - 1, policy.period.total_seconds(), policy.max_delay.total_seconds()
    multiplier, total = float(policy.multiplier), policy.delay(1).total_seconds()
    if multiplier == 1 or period * multiplier >= cap or not period:
        total += later * min(period * multiplier, cap)
    else:
        growing = min(later, int(math.log(cap / period) / math.log(multiplier)))
        total += period * multiplier * (multiplier**growing - 1) / (multiplier - 1) + (later - growing) * cap
    return total * (1 + policy.jitter)


def _seconds_between_runs(schedule: str | None) -> tuple[float, float]:
    """The shortest and the longest time between two runs of a schedule; (0, 0) without one.

    Looks around each hour of a week and each day of a year, because patterns repeat; a walk over every run would be too
    long, as there may be one each minute.
    """
    if schedule is None:
        return 0.0, 0.0
    begin = datetime(2024, 1, 1, 0, 0, 30, tzinfo=UTC)
    after = [*(timedelta(hours=hour) for hour in range(7 * 24)), *(timedelta(days=day) for day in range(7, 366))]
    times = [(croniter(schedule, begin + delta), croniter(schedule, begin + delta)) for delta in after]
    apart = [following.get_next(float) - before.get_prev(float) for before, following in times]
    return min(apart), max(apart)


def overdue_at(schedule: str | None, last: datetime) -> datetime | None:
    """Returns when the schedule has passed over MISSED_SCHEDULES runs since `last`; None without a schedule."""
    if schedule is None:
        return None
    runs = croniter(schedule, last)
    return max(datetime.fromtimestamp(runs.get_next(float), UTC) for _ in range(MISSED_SCHEDULES))


def _seconds_at_max_rate(pipeline: "Pipeline") -> float:
    """How long a run of `max_records_per_run` takes at least; 0 without `max_rate`."""
    return pipeline.max_records_per_run / pipeline.max_rate if pipeline.max_rate else 0.0


def _duration(milliseconds: int) -> timedelta | None:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _text(seconds: float) -> str:
    """A duration in its two largest units, such as `6 d 3 h`."""
    left, words = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size:
            words.append(f"{left // size:,} {unit}")
            left %= size
    return " ".join(words[:2]) or "0 s"
