"""Settings that are allowed, and may still lose records or go round in circles: said by name at every run. Pure.

A warning is never an error. What can't be right at all is refused where the file is read (`ackline.pipeline`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from croniter import croniter

from ackline.backoff import RetryPolicy
from ackline.outcome import ErrorClass
from ackline.properties import ignored

if TYPE_CHECKING:
    from ackline.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """How a topic forgets: `keeps` is its retention by time (None: it has none), `compacted` whether only the last
    record of a key stays."""

    keeps: timedelta | None
    compacted: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, str | None]) -> "TopicPolicy":
        """From Kafka's own settings of the topic; what they do not say counts as unknown, which is none."""
        policies = {word.strip() for word in (settings.get("cleanup.policy") or "").split(",")}
        kept = settings.get("retention.ms") or ""
        by_time = "delete" in policies and kept.isdecimal()
        return cls(_duration(int(kept)) if by_time else None, "compact" in policies)


def of_settings(pipeline: "Pipeline") -> Iterator[str]:
    """What the file alone shows."""
    if pipeline.guarantee != "at_least_once" and pipeline.dead_letter_topic is not None:
        yield (
            f"dead_letter.topic: under `guarantee: {pipeline.guarantee}` a record that fails is `dropped`, and no "
            f"letter goes to {pipeline.dead_letter_topic}"
        )
    if pipeline.guarantee == "at_most_once" and pipeline.breaker is not None:
        yield "breaker: under `guarantee: at_most_once` it never trips: the group has moved over what was handed out"
    if pipeline.breaker is not None and pipeline.breaker.failure_ratio == 1:
        yield "breaker: with `failure_ratio: 1` it never trips: it takes more failures than that share of the records"
    for name in pipeline.retry.by_error:
        why = _never_comes(name)
        if why:
            yield f"retry.by_error: `{name}` {why}"
    longest = _whole_run(pipeline)
    if pipeline.guarantee == "at_most_once" and longest > pipeline.lost_after.total_seconds():
        yield (
            f"lost_after: {_spoken(pipeline.lost_after.total_seconds())} is shorter than a run may take at `max_rate` "
            f"({_spoken(longest)} for max_records_per_run): another process would call `lost` what is being handled"
        )


def _never_comes(error_class: str) -> str | None:
    """Why no failure is stored under a name; None where one may be."""
    own = error_class.rpartition(".")[2]
    if error_class == ErrorClass.DEAD:
        return "is never retried, whatever is said here"
    if error_class in (ErrorClass.SKIP, ErrorClass.TOMBSTONE, ErrorClass.UNMATCHED):
        return "is no failure, so there is nothing to retry"
    if own != error_class and own not in list(ErrorClass):
        return (
            f"is met by no exception: that goes by its own name, `{own}`, without its module; only an "
            f"Arrow handler may say otherwise"
        )
    return None


def of_connection(pipeline: "Pipeline", connection: Mapping[str, object]) -> Iterator[str]:
    """What the connection sets that is not followed here; a file that says the same is refused."""
    kafka = pipeline.kafka
    for name, reason in ignored(connection, kafka.group_id, kafka.isolation).items():
        yield f"connection: its `{name}` is ignored: {reason}"


def of_topics(pipeline: "Pipeline", topics: Mapping[str, TopicPolicy]) -> Iterator[str]:
    """What the topics' own settings show; `topics` are those that are read, and the dead-letter topic."""
    dead = pipeline.dead_letter_topic
    wait, error_class = longest_wait(pipeline) if pipeline.guarantee == "at_least_once" else (0.0, None)
    longest, (_, apart) = _whole_run(pipeline), _between_runs(pipeline.schedule)
    for topic, policy in sorted(topics.items()):
        if topic == dead:
            if policy.compacted:
                yield (
                    f"dead_letter.topic: {topic} is compacted (cleanup.policy): it keeps one letter a key, and refuses "
                    f"those without a key, which stay pending and hold the floor"
                )
            continue
        kept = math.inf if policy.keeps is None else policy.keeps.total_seconds()
        if wait and wait >= kept:
            of_class = f" ({error_class})" if error_class else ""
            yield (
                f"retry: a record may wait {_spoken(wait)} for its last attempt{of_class}, and the topic {topic} keeps "
                f"it for {_spoken(kept)} (retention.ms): what retention takes first is `expired`"
            )
        if apart and apart >= kept:
            yield (
                f"schedule: its runs are up to {_spoken(apart)} apart, and the topic {topic} keeps records for "
                f"{_spoken(kept)} (retention.ms): what comes in between may be `expired` before any run reads it"
            )
        if longest and longest >= kept:
            yield (
                f"max_rate: a run of max_records_per_run may take {_spoken(longest)}, and the topic {topic} keeps "
                f"records for {_spoken(kept)} (retention.ms): a run that retention overtakes is void, and begins again"
            )


def longest_wait(pipeline: "Pipeline") -> tuple[float, str | None]:
    """The longest time, in seconds, that a record may wait for retries, all its delays together, and the class of
    errors that waits so long (None: any other). Each retry waits for a run of the schedule at least. (0, None) where a
    class of the user's own decides."""
    policy = pipeline.retry.policy()
    if not isinstance(policy, RetryPolicy):
        return 0.0, None
    run, _ = _between_runs(pipeline.schedule)
    classes = [(one, name) for name, one in sorted(policy.by_error.items()) if one is not None]
    waits = [(max(_wait(one), one.max_retries * run), name) for one, name in [(policy, None), *classes]]
    return max(waits, key=lambda found: found[0])


def _wait(policy: RetryPolicy) -> float:
    """The sum of all delays of one policy, in seconds; closed, for there may be two thousand million retries."""
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


def _between_runs(schedule: str | None) -> tuple[float, float]:
    """The shortest and the longest time, in seconds, between two runs of a schedule; (0, 0) without one.

    Looked for round each hour of a week and each day of a year: patterns repeat, and there may be a run each minute.
    """
    if schedule is None:
        return 0.0, 0.0
    begin = datetime(2024, 1, 1, 0, 0, 30, tzinfo=UTC)
    looked = [*(timedelta(hours=hour) for hour in range(7 * 24)), *(timedelta(days=day) for day in range(7, 366))]
    times = [(croniter(schedule, begin + one), croniter(schedule, begin + one)) for one in looked]
    apart = [after.get_next(float) - before.get_prev(float) for before, after in times]
    return min(apart), max(apart)


def _whole_run(pipeline: "Pipeline") -> float:
    """The least time, in seconds, that a run of `max_records_per_run` takes; 0 where nothing holds it up."""
    return pipeline.max_records_per_run / pipeline.max_rate if pipeline.max_rate else 0.0


def _duration(milliseconds: int) -> timedelta | None:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _spoken(seconds: float) -> str:
    """A duration in its two largest units, such as `6 d 3 h`."""
    left, words = round(seconds), []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size:
            words.append(f"{left // size:,} {unit}")
            left %= size
    return " ".join(words[:2]) or "0 s"
