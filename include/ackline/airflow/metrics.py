"""The metrics of a pipeline: what they are called, and when they are sent. `METRICS` lists each of them.

Metrics go through Airflow's own back end, StatsD or OpenTelemetry, as `[metrics]` sets it. Every settle sets gauges.
Only the process that stored a settlement adds to the counters, so that no repeat counts twice. The names are a public
format. Plain StatsD has no tags and would mix all partitions. So each metric is sent to it a second time with the tags
in its name, as Airflow does with its own. A back end that fails breaks no task.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ackline.answers.status import PartitionStatus, TopicStatus, status, status_by_topic
from ackline.errors import REFUSALS, AcklineError, TransientError, TurnVoided
from ackline.handler import SOURCE
from ackline.lane.adapters import Adapters
from ackline.ledger.answers import Applied
from ackline.ledger.metrics import TOTALS, StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE, Settlement
from ackline.outputs.publish import lacks_rows
from ackline.pipeline.warnings import overdue_at

PARTITION, TOPIC, STEP = "ackline.partition", "ackline.topic", "ackline.step"
STOPPED, REFUSED = "ackline.pipeline.stopped", "ackline.pipeline.refused"
UNPUBLISHED, OVERDUE = "ackline.pipeline.unpublished", "ackline.pipeline.overdue"
MISSED_AT = "ackline.pipeline.missed_at"
GAUGE, COUNTER = "gauge", "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as a back end gets it, after Airflow's own prefix. Any lane but the live one has the tag `lane` too."""

    name: str
    kind: str
    unit: str
    tags: tuple[str, ...]


_POSITIONS = {
    "log_start": "offset",
    "log_end": "offset",
    "high_watermark": "offset",
    "records": "offsets",
    "committed": "offset",
    "floor": "offset",
    "read": "offset",
    "lag": "offsets",
    "lag_seconds": "seconds",
    "open_transaction": "offsets",
    "open_transaction_seconds": "seconds",
    "retention_at": "seconds since 1970",
    "due": "offsets",
    **{f"pending.{kind.value}": "offsets" for kind in PendingKind},
    "rescued": "offsets",
    "released": "offsets",
    "oldest_pending_seconds": "seconds",
    **{f"total.{word}": "offsets" for word in TOTALS},
    "fetches": "fetches",
    "fetch_seconds_max": "seconds",
}
"""The gauges of a partition that a topic has too, with their units."""
_OF_PARTITION = {"fetch_seconds_mean": "seconds", "state": "rank", "failing_share": "share"}
"""The gauges that only a partition has, with their units."""
_STEP_TIMES = ("execute_seconds_mean", "execute_seconds_max", "complete_seconds_mean", "complete_seconds_max")


def _all_metrics() -> Iterator[Metric]:
    of_pipeline, of_topic, of_step = ("pipeline",), ("pipeline", "topic"), ("pipeline", "step")
    of_partition = (*of_topic, "partition")
    for name in (STOPPED, REFUSED, UNPUBLISHED):
        yield Metric(name, GAUGE, "0 or 1", of_pipeline)
    yield Metric(OVERDUE, GAUGE, "attempts", of_pipeline)
    yield Metric(MISSED_AT, GAUGE, "seconds since 1970", of_pipeline)
    for prefix, tags, own in (
        (PARTITION, of_partition, _OF_PARTITION),
        (TOPIC, of_topic, {"partitions": "partitions"}),
    ):
        for name, unit in {**_POSITIONS, **own}.items():
            yield Metric(f"{prefix}.{name}", GAUGE, unit, tags)
        for name in TOTALS:
            yield Metric(f"{prefix}.{name}", COUNTER, "offsets", tags)
    for name in ("executed", "emitted", "acked", "failed"):
        yield Metric(f"{STEP}.{name}", COUNTER, "tuples", of_step)
    for name in _STEP_TIMES:
        yield Metric(f"{STEP}.{name}", GAUGE, "seconds", of_step)


METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _all_metrics()}
"""Every metric that a task may send, by its name."""
Tags = Mapping[str, str]
Send = Callable[[str, float, Tags], None]
"""Sends a metric, given its name, value and tags."""

log = logging.getLogger(__name__)


def publish_metrics(adapters: Adapters, stored: Settlement | None) -> None:
    """Set the gauges of all partitions and topics, and add to the counters if this process `stored` a settlement."""
    try:
        incr, gauge = _senders()
        if stored is not None:
            add_counters(incr, stored)
            publish_steps(incr, gauge, stored)
        _set_gauges_of_pipeline(gauge, adapters)
        _set_gauges(gauge, adapters, status(adapters))
    except AcklineError as error:  # the broker has gone away since: the next settle sets the gauges
        log.warning("no metrics of %s: %s", adapters.pipeline.name, error)
    except Exception as error:  # a back end may raise anything, and its text may hold an address with a password
        log.warning("no metrics of %s: the back end failed (%s)", adapters.pipeline.name, type(error).__name__)


@contextmanager
def stop_published(pipeline: str) -> Iterator[None]:
    """Sets the gauges `stopped` and `refused` of the live lane if the block ends with an error that the next run would
    meet too, and raises it again. The next settle sets them back to 0."""
    try:
        yield
    except (TransientError, TurnVoided):
        raise
    except AcklineError as error:
        try:
            _, gauge = _senders()
            gauge(STOPPED, 1, _tags(pipeline, LIVE))
            gauge(REFUSED, int(isinstance(error, REFUSALS)), _tags(pipeline, LIVE))
        except Exception as failed:  # as in `publish_metrics`
            log.warning("no metrics of %s: the back end failed (%s)", pipeline, type(failed).__name__)
        raise


def _set_gauges_of_pipeline(gauge: Send, adapters: Adapters) -> None:
    newest, now = adapters.store.newest(), adapters.now()
    tags = _tags(adapters.pipeline.name, adapters.store.lane)
    timed_out = newest.answers.counts.get(Applied.TIMED_OUT, 0) if newest and newest.answers else 0
    lane = newest.partitions.values() if newest else ()
    waiting = sum(settled.state.pending.overdue_at(now).offsets for settled in lane)
    gauge(UNPUBLISHED, int(lacks_rows(adapters, newest)), tags)
    gauge(OVERDUE, timed_out + waiting, tags)
    schedule = adapters.pipeline.schedule if adapters.store.lane == LIVE else None
    missed_at = overdue_at(schedule, newest.settled_at) if newest else None
    if missed_at is not None:  # a time, so that it stays right if no run sets it any more
        gauge(MISSED_AT, missed_at.timestamp(), tags)
    for name in (STOPPED, REFUSED):  # if the step fails after this, `stop_published` sets them again
        gauge(name, 0, tags)


def _senders() -> tuple[Send, Send]:
    """Returns the functions that add to a counter and set a gauge."""
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats

    def is_on(name: str) -> bool:
        return bool(conf.getboolean("metrics", name, fallback=False))

    plain = is_on("statsd_on") and not is_on("statsd_influxdb_enabled") and not is_on("statsd_datadog_enabled")

    def sending(send: Callable[..., None]) -> Send:
        def to_airflow(name: str, value: float, tags: Tags) -> None:
            send(name, value, tags=dict(tags))
            if plain:  # a dot in a tag would become a level of the name
                send(".".join([name, *(tag.replace(".", "__") for tag in tags.values())]), value)

        return to_airflow

    return sending(stats.incr), sending(stats.gauge)


def add_counters(incr: Send, stored: Settlement) -> None:
    """Pass what a settlement adds to `incr`: offsets by outcome, and retries, of each partition and of each topic."""
    topics: dict[str, dict[str, int]] = {}
    for tp, settled in stored.partitions.items():
        of_topic = topics.setdefault(tp.topic, dict.fromkeys(TOTALS, 0))
        tags = _tags(stored.turn.pipeline, stored.turn.lane, tp.topic, tp.partition)
        for word, offsets in {**settled.counts, "retries": int((settled.metrics or {}).get("retries", 0))}.items():
            if offsets and word in of_topic:
                of_topic[word] += offsets
                incr(f"{PARTITION}.{word}", offsets, tags)
    for topic, counts in topics.items():
        for word, offsets in counts.items():
            if offsets:
                incr(f"{TOPIC}.{word}", offsets, _tags(stored.turn.pipeline, stored.turn.lane, topic))


def publish_steps(incr: Send, gauge: Send, stored: Settlement) -> None:
    """Pass what each step did in a turn to `incr`, and its times in seconds to `gauge`; nothing without steps.

    The complete latency is that of the step `source`, as Storm's is that of a spout.
    """
    figures = stored.steps or StepFigures()
    for name, done in figures.steps.items():
        tags = _tags(stored.turn.pipeline, stored.turn.lane, step=name)
        for word, number in done.numbers().items():
            if number:
                incr(f"{STEP}.{word}", number, tags)
        times = {"execute_seconds": done.execute}
        if name == SOURCE:
            times["complete_seconds"] = figures.latency
        for word, spans in times.items():
            if spans.count:
                gauge(f"{STEP}.{word}_mean", round(spans.total / spans.count / 1e9, 9), tags)
                gauge(f"{STEP}.{word}_max", spans.longest / 1e9, tags)


def _set_gauges(gauge: Send, adapters: Adapters, partitions: Iterable[PartitionStatus]) -> None:
    found = list(partitions)
    pipeline, lane, now = adapters.pipeline.name, adapters.store.lane, adapters.now()
    soonest: dict[str, float] = {}
    for partition in found:
        tp = TopicPartition(partition.topic, partition.partition)
        tags = _tags(pipeline, lane, *tp)
        for name, value in _numbers(partition, now):
            gauge(f"{PARTITION}.{name}", value, tags)
        if partition.retention_eta is not None:
            # A time and no duration: it stays right if no run sets the gauge any more.
            at = partition.retention_eta.timestamp()
            soonest[tp.topic] = min(at, soonest.get(tp.topic, at))
            gauge(f"{PARTITION}.retention_at", at, tags)
    for topic in status_by_topic(found):
        tags = _tags(pipeline, lane, topic.topic)
        for name, value in [("partitions", topic.partitions), *_numbers(topic, now)]:
            gauge(f"{TOPIC}.{name}", value, tags)
        if topic.topic in soonest:
            gauge(f"{TOPIC}.retention_at", soonest[topic.topic], tags)


def _numbers(status: PartitionStatus | TopicStatus, now: datetime) -> Iterator[tuple[str, float]]:
    """Yields each metric that is known, by the name of its gauge."""
    oldest, held = status.oldest_pending_at, status.open_transaction
    age, open_for = (
        None if at is None else max(0.0, (now - at).total_seconds()) for at in (oldest, held.since if held else None)
    )
    known = None if status.log_start is None or status.log_end is None else status.log_end - status.log_start
    numbers: dict[str, Any] = {
        **{name: getattr(status, name, None) for name in _POSITIONS},
        "records": known,
        "open_transaction": held.records if held else None if status.high_watermark is None else 0,
        "open_transaction_seconds": open_for if held else None if status.high_watermark is None else 0.0,
        **{f"pending.{kind.value}": number for kind, number in status.pending.items()},
        # A gauge keeps its last value, so "nothing is pending" needs a value of its own.
        "oldest_pending_seconds": age if any(status.pending.values()) else 0.0,
        **{f"total.{word}": number for word, number in status.totals.items()},
    }
    if isinstance(status, PartitionStatus):
        numbers |= {name: getattr(status, name) for name in _OF_PARTITION} | {"state": status.state.rank}
    for name, value in numbers.items():
        if value is not None:
            yield name, value


def _tags(
    pipeline: str, lane: str, topic: str | None = None, partition: int | None = None, step: str | None = None
) -> Tags:
    named = {"topic": topic, "partition": None if partition is None else str(partition), "step": step}
    tags = {"pipeline": pipeline, **{name: value for name, value in named.items() if value is not None}}
    return tags if lane == LIVE else {**tags, "lane": lane}
