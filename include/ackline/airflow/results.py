"""What tasks report: summaries in log and XCom, and metrics. They hold no payload, key or secret.

A lane may have thousands of partitions. A summary holds totals and the WORST partitions, sorted by topic and number;
the tables hold all of them.

Metrics go through Airflow's own back end, StatsD or OpenTelemetry, as `[metrics]` sets it. Gauges hold the position of
each partition and topic, and every settle sets them. Counters hold what a turn added. Only the process that stored its
settlement adds to them, so that no repeat counts twice. The names are a public format. The tags are `pipeline`, `topic`
and `partition`, or `pipeline` and `step`, and `lane` if it is not the live one. Plain StatsD has no tags and would mix
all partitions. So each metric is sent to it a second time with the tags in its name, as Airflow does with its own.
Airflow drops metrics if no back end is on, and a back end that fails breaks no task.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from ackline.actions.objects import PlannedObject, SettledObject
from ackline.actions.status import PartitionStatus, TopicStatus, status, status_by_topic
from ackline.errors import AcklineError
from ackline.handler import SOURCE
from ackline.lane.adapters import Adapters
from ackline.lane.commit import CommitResult
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import count
from ackline.ledger.turns import LIVE, Settlement, worst_partitions
from ackline.steps.plan import Planned

WORST = 10
"""How many partitions a summary lists."""


def planned_summary(planned: Planned) -> dict[str, Any]:
    """Returns the turn, totals, and of the partitions with the most unread offsets the fresh range, the number of
    retries, or why the turn reads nothing."""
    plan = planned.plan
    missing, leaderless = list(planned.missing[:WORST]), [str(tp) for tp in planned.leaderless[:WORST]]
    if plan is None:
        return {"turn": None, "missing": missing, "leaderless": leaderless}
    unread = {tp: max(0, of_tp.log.end - of_tp.complete_to) for tp, of_tp in plan.partitions.items()}
    return {
        "turn": plan.turn.n,
        "epoch": plan.turn.epoch,
        "adopted": planned.adopted,
        "missing": missing,
        "leaderless": leaderless,
        "totals": {
            "partitions": len(plan.partitions),
            "fresh": sum(len(of_tp.fresh) for of_tp in plan.partitions.values()),
            "retries": sum(count(of_tp.retries) for of_tp in plan.partitions.values()),
            "unread": sum(unread.values()),
        },
        "partitions": [PlannedObject.of(tp, plan.partitions[tp]).dump() for tp in worst_partitions(unread, WORST)],
    }


def settled_summary(result: CommitResult) -> dict[str, Any]:
    """Returns the newest turn, totals, and of the partitions with the most offsets that are not settled their state and
    the committed offset as read back."""
    settlement = result.settlement
    if settlement is None:
        return {"turn": None}
    outcomes: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for settled in settlement.partitions.values():
        outcomes.update(settled.counts)
        pending.update({kind.value: number for kind, number in settled.state.pending_by_kind().items()})
    behind = {tp: settled.unsettled for tp, settled in settlement.partitions.items()}
    return {
        "turn": settlement.turn.n,
        "epoch": settlement.turn.epoch,
        "kind": settlement.kind.value,
        "totals": {
            "partitions": len(settlement.partitions),
            "pending": dict(pending),
            "outcomes": dict(outcomes),
            "committed": len(result.committed),
        },
        "partitions": [
            SettledObject.of(tp, settlement.partitions[tp], result.committed.get(tp)).dump()
            for tp in worst_partitions(behind, WORST)
        ],
    }


PARTITION, TOPIC, STEP = "ackline.partition", "ackline.topic", "ackline.step"
COUNTED = ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries")
Tags = Mapping[str, str]
Send = Callable[[str, float, Tags], None]
"""Called with a name, a value and tags."""

log = logging.getLogger(__name__)


def publish_metrics(adapters: Adapters, stored: Settlement | None) -> None:
    """Set the gauges of all partitions and topics, and add to the counters if this process `stored` a settlement."""
    try:
        incr, gauge = _senders()
        if stored is not None:
            add_counters(incr, stored)
            publish_steps(incr, gauge, stored)
        _set_gauges(gauge, adapters, status(adapters))
    except AcklineError as error:  # the broker has gone away since: the next settle sets the gauges
        log.warning("no metrics of %s: %s", adapters.pipeline.name, error)
    except Exception as error:  # a back end may raise anything, and its text may hold an address with a password
        log.warning("no metrics of %s: the back end failed (%s)", adapters.pipeline.name, type(error).__name__)


def _senders() -> tuple[Send, Send]:
    """Returns the function that adds to a counter and the function that sets a gauge."""
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
        of_topic = topics.setdefault(tp.topic, dict.fromkeys(COUNTED, 0))
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
    for partition in found:
        tags = _tags(pipeline, lane, partition.topic, partition.partition)
        for name, value in _numbers(partition, now):
            gauge(f"{PARTITION}.{name}", value, tags)
    for topic in status_by_topic(found):
        tags = _tags(pipeline, lane, topic.topic)
        for name, value in [("partitions", topic.partitions), *_numbers(topic, now)]:
            gauge(f"{TOPIC}.{name}", value, tags)


def _numbers(status: PartitionStatus | TopicStatus, now: datetime) -> Iterator[tuple[str, float]]:
    """Yields each metric that is known, by the name of its gauge."""
    oldest = status.oldest_pending_at
    age = None if oldest is None else max(0.0, (now - oldest).total_seconds())
    known = None if status.log_start is None or status.log_end is None else status.log_end - status.log_start
    numbers: dict[str, Any] = {
        "log_start": status.log_start,
        "log_end": status.log_end,
        "records": known,
        "committed": status.committed,
        "floor": status.floor,
        "read": status.read,
        "lag": status.lag,
        "lag_seconds": status.lag_seconds,
        "due": status.due,
        **{f"pending.{kind.value}": number for kind, number in status.pending.items()},
        # A gauge keeps its last value, so "nothing is pending" needs a value of its own.
        "oldest_pending_seconds": age if any(status.pending.values()) else 0.0,
        **{f"total.{word}": number for word, number in status.totals.items()},
        "fetches": status.fetches,
        "fetch_seconds_max": status.fetch_seconds_max,
    }
    if isinstance(status, PartitionStatus):
        numbers["fetch_seconds_mean"] = status.fetch_seconds_mean
    for name, value in numbers.items():
        if value is not None:
            yield name, value


def _tags(
    pipeline: str, lane: str, topic: str | None = None, partition: int | None = None, step: str | None = None
) -> Tags:
    named = {"topic": topic, "partition": None if partition is None else str(partition), "step": step}
    tags = {"pipeline": pipeline, **{name: value for name, value in named.items() if value is not None}}
    return tags if lane == LIVE else {**tags, "lane": lane}
