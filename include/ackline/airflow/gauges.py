"""Figures through Airflow's own metrics (StatsD or OpenTelemetry, whichever `[metrics]` switches on), after a settle.

Gauges say where each partition and topic stands; whoever settles says them, again too. Counters say what a turn added,
and only the process that has stored its settlement adds it, so that no repeat counts twice. Names are stable; what they
are of is in the tags `pipeline`, `topic` and `partition`, and `lane` where it is not the live one. Plain StatsD has no
tags, and would take all partitions for one: there each is sent a second time with its tags in its name, as Airflow does
with metrics of its own. Where nothing is switched on Airflow drops them, and a back end that fails breaks no task.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ackline.errors import AcklineError
from ackline.steps.parts import Parts
from ackline.steps.status import PartitionStatus, TopicStatus, status, topics_of
from ackline.turns import LIVE, Settlement

PARTITION, TOPIC = "ackline.partition", "ackline.topic"
COUNTED = ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries")
Tags = Mapping[str, str]
Send = Callable[[str, float, Tags], None]
"""Name, value, tags."""

log = logging.getLogger(__name__)


def publish(parts: Parts, stored: Settlement | None) -> None:
    """Gauges of all partitions and topics, and what a turn added if this process `stored` its settlement."""
    try:
        incr, gauge = _to_airflow()
        if stored is not None:
            _count(incr, stored)
        _gauges(gauge, parts, status(parts))
    except AcklineError as error:  # the broker has gone away since: the next settle says where things stand
        log.warning("no metrics of %s: %s", parts.pipeline.name, error)
    except Exception as error:  # a back end may raise anything; its text may hold where it sends to
        log.warning("no metrics of %s: the back end failed (%s)", parts.pipeline.name, type(error).__name__)


def _to_airflow() -> tuple[Send, Send]:
    """How a counter is added to, and how a gauge is set."""
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats

    def is_on(name: str) -> bool:
        return bool(conf.getboolean("metrics", name, fallback=False))

    plain = is_on("statsd_on") and not is_on("statsd_influxdb_enabled") and not is_on("statsd_datadog_enabled")

    def sending(send: Callable[..., None]) -> Send:
        def to_airflow(name: str, value: float, tags: Tags) -> None:
            send(name, value, tags=dict(tags))
            if plain:  # a dot in a tag would read as a level of the name
                send(".".join([name, *(tag.replace(".", "__") for tag in tags.values())]), value)

        return to_airflow

    return sending(stats.incr), sending(stats.gauge)


def _count(incr: Send, stored: Settlement) -> None:
    topics: dict[str, dict[str, int]] = {}
    for tp, one in stored.partitions.items():
        of_topic = topics.setdefault(tp.topic, dict.fromkeys(COUNTED, 0))
        tags = _tags(stored.turn.pipeline, stored.turn.lane, tp.topic, tp.partition)
        for word, rows in {**one.counts, "retries": int((one.metrics or {}).get("retries", 0))}.items():
            if rows and word in of_topic:
                of_topic[word] += rows
                incr(f"{PARTITION}.{word}", rows, tags)
    for topic, counts in topics.items():
        for word, rows in counts.items():
            if rows:
                incr(f"{TOPIC}.{word}", rows, _tags(stored.turn.pipeline, stored.turn.lane, topic))


def _gauges(gauge: Send, parts: Parts, partitions: Iterable[PartitionStatus]) -> None:
    found = list(partitions)
    pipeline, lane, now = parts.pipeline.name, parts.store.lane, parts.now()
    for one in found:
        tags = _tags(pipeline, lane, one.topic, one.partition)
        for name, value in _numbers(one, now):
            gauge(f"{PARTITION}.{name}", value, tags)
    for topic in topics_of(found):
        tags = _tags(pipeline, lane, topic.topic)
        for name, value in [("partitions", topic.partitions), *_numbers(topic, now)]:
            gauge(f"{TOPIC}.{name}", value, tags)


def _numbers(one: PartitionStatus | TopicStatus, now: datetime) -> Iterator[tuple[str, float]]:
    """Each figure that is known, by the name of its gauge."""
    oldest = one.oldest_pending_at
    age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
    known = None if one.log_start is None or one.log_end is None else one.log_end - one.log_start
    numbers: dict[str, Any] = {
        "log_start": one.log_start,
        "log_end": one.log_end,
        "records": known,
        "committed": one.committed,
        "floor": one.floor,
        "read": one.read,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        "due": one.due,
        **{f"pending.{kind.value}": number for kind, number in one.pending.items()},
        # Gauges keep what they were told last: nothing pending has to be said, too.
        "oldest_pending_seconds": age if any(one.pending.values()) else 0.0,
        **{f"total.{word}": number for word, number in one.totals.items()},
        "fetches": one.fetches,
        "fetch_seconds_max": one.fetch_seconds_max,
    }
    if isinstance(one, PartitionStatus):
        numbers["fetch_seconds_mean"] = one.fetch_seconds_mean
    for name, value in numbers.items():
        if value is not None:
            yield name, value


def _tags(pipeline: str, lane: str, topic: str, partition: int | None = None) -> Tags:
    tags = {"pipeline": pipeline, "topic": topic}
    if partition is not None:
        tags["partition"] = str(partition)
    return tags if lane == LIVE else {**tags, "lane": lane}
