"""The metrics of a settle of a lane in memory: stable names and tags, the format of StatsD, and no count twice.

A real run sends them to a real OpenTelemetry receiver in test_dag.py, and to a real StatsD socket in test_scheduler.py.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils

from ackline.airflow import operators
from ackline.airflow.driver import CONFIGURATION, FATAL, REFUSED, TRANSIENT, VOIDED
from ackline.airflow.driver_hook import DriverHook, SparkSubmitOperator
from ackline.airflow.metrics import METRICS, publish_metrics, stop_published
from ackline.errors import AcklineError, ConfigError, GroupBusy, LedgerError, TransientError, TurnVoided
from ackline.handler import Durations, StepCounts
from ackline.ledger.metrics import TOTALS, StepFigures
from ackline.pipeline.warnings import TopicPolicy
from ackline.steps.settle import settle
from tests.support.memory_kafka import MemoryCluster, MemoryGroup
from tests.support.memory_lane import FAILS, FAILS_ONCE, NOON, OK, TP1, WAITS, AnsweredLane, MemoryLane

GAUGES = {
    "log_start", "log_end", "high_watermark", "records", "committed", "floor", "read", "lag", "lag_seconds",
    "open_transaction", "open_transaction_seconds", "due", "pending.retry", "pending.dead_letter", "pending.in_flight",
    "pending.held_back", "rescued", "released", "oldest_pending_seconds", "fetches", "fetch_seconds_max",
    *(f"total.{word}" for word in TOTALS),
}  # fmt: skip
"""Sent for partitions and for topics."""
PIPELINE_GAUGES = {"stopped", "refused", "unpublished", "overdue"}
SETTINGS: dict[str, Any] = {
    "name": "orders", "dead_letter": "none", "start": "earliest", "retry": {"initial_delay": "1m", "max_retries": 1},
}  # fmt: skip


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Switches Airflow's StatsD on, as a task's process does. Returns the lines received since the last call."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        for key, value in (("ON", "True"), ("HOST", "127.0.0.1"), ("PORT", str(server.getsockname()[1]))):
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{key}", value)

        def received() -> list[str]:
            stats.incr("end")  # arrives after all earlier lines: there is one socket on either side
            lines = iter(lambda: server.recv(65536).decode(), "airflow.end:1|c")
            return [line for line in lines if line.startswith("airflow.ackline.")]

        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        yield received
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


def test_plain_statsd_gets_the_partition_in_the_name(lane: MemoryLane, statsd: Callable[[], list[str]]) -> None:
    """StatsD has no tags: the name without the partition holds the value that was sent last."""
    turn(lane)
    lines = statsd()
    assert [line for line in lines if ".partition.lag" in line and "seconds" not in line] == [
        "airflow.ackline.partition.lag:3|g",
        "airflow.ackline.partition.lag.orders.orders.0:3|g",
        "airflow.ackline.partition.lag:0|g",
        "airflow.ackline.partition.lag.orders.orders.1:0|g",
    ]
    assert "airflow.ackline.topic.lag.orders.orders:3|g" in lines
    assert "airflow.ackline.topic.partitions.orders.orders:2|g" in lines
    assert [line for line in lines if line.endswith("|c")] == [
        f"airflow.ackline.{of}.{word}{tags}:2|c"
        for of, end in (("partition", ".orders.orders.0"), ("topic", ".orders.orders"))
        for word in ("acked", "failed")
        for tags in ("", end)
    ]
    names = {line.partition(":")[0].removeprefix("airflow.ackline.partition.") for line in lines}
    assert {f"{name}.orders.orders.0" for name in {*GAUGES, "fetch_seconds_mean"}} <= names


def test_statsd_with_the_tags_of_influxdb_gets_each_metric_once(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch, statsd: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    turn(lane)
    lines = statsd()
    assert [line for line in lines if ".partition.lag," in line] == [
        "airflow.ackline.partition.lag,pipeline=orders,topic=orders,partition=0:3|g",
        "airflow.ackline.partition.lag,pipeline=orders,topic=orders,partition=1:0|g",
    ]
    assert "airflow.ackline.topic.acked,pipeline=orders,topic=orders:2|c" in lines
    assert all(",pipeline=orders,topic=orders" in line or ".pipeline." in line for line in lines)


def test_a_dot_in_a_topics_name_adds_no_level_to_the_name(statsd: Callable[[], list[str]]) -> None:
    lane = MemoryLane(topics=("orders.eu",), **SETTINGS)
    lane.create("orders.eu")
    turn(lane)
    assert "airflow.ackline.partition.lag.orders.orders__eu.0:0|g" in statsd()


class Sent(list[tuple[str, str, float, tuple[tuple[str, str], ...]]]):
    """The metrics that were sent: kind, name, value, tags."""

    def named(self, kind: str) -> dict[str, set[tuple[str, ...]]]:
        """Returns the names of the tags of each metric."""
        tags_of: dict[str, set[tuple[str, ...]]] = {}
        for its_kind, name, _, tags in self:
            if its_kind == kind:
                tags_of.setdefault(name, set()).add(tuple(key for key, _ in tags))
        return tags_of

    def sums(self, kind: str) -> dict[str, float]:
        """Returns the sum of the values of each metric."""
        names = {name for its_kind, name, _, _ in self if its_kind == kind}
        return {name: sum(v for k, n, v, _ in self if (k, n) == (kind, name)) for name in names}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Takes the place of a back end."""
    sent = Sent()
    for kind in ("gauge", "incr"):
        keep = lambda name, value, tags, kind=kind: sent.append((kind, name, value, tuple(tags.items())))  # noqa: E731
        monkeypatch.setattr(stats, kind, keep)
    return sent


@pytest.fixture
def lane() -> MemoryLane:
    """Two partitions; in the first, one record fails once and one always fails."""
    return MemoryLane(OK, FAILS_ONCE, FAILS, OK, partitions=2, **SETTINGS)


def settle_and_publish(lane: MemoryLane) -> None:
    adapters = lane.adapters()
    publish_metrics(adapters, settle(adapters).stored)


def turn(lane: MemoryLane) -> None:
    """Plan, replay, settle and publish, as the DAG's tasks do."""
    lane.plan_and_replay()
    settle_and_publish(lane)


def test_the_names_and_tags_of_the_metrics_are_stable(lane: MemoryLane, sent: Sent) -> None:
    turn(lane)
    by_partition, by_topic = ("pipeline", "topic", "partition"), ("pipeline", "topic")
    partition = {
        f"ackline.partition.{name}": {by_partition}
        for name in {*GAUGES, "fetch_seconds_mean", "state", "failing_share"}
    }
    topics = {f"ackline.topic.{name}": {by_topic} for name in {*GAUGES, "partitions"}}
    pipeline = {f"ackline.pipeline.{name}": {("pipeline",)} for name in PIPELINE_GAUGES}
    assert sent.named("gauge") == pipeline | partition | topics
    assert sent.named("incr") == {
        f"ackline.{of}.{word}": {tags}
        for of, tags in (("partition", by_partition), ("topic", by_topic))
        for word in ("acked", "failed")
    }


def test_every_metric_that_is_sent_is_in_the_list_with_its_kind_and_tags(lane: MemoryLane, sent: Sent) -> None:
    """The documentation, the alerts and the dashboard are compared with the list."""
    turn(lane)
    for kind, name, _, tags in sent:
        metric = METRICS[name]
        assert (metric.kind, metric.tags) == ({"incr": "counter"}.get(kind, kind), tuple(tag for tag, _ in tags))
    sent_by_gauges = {f"ackline.{of}.{name}" for of in ("partition", "topic") for name in GAUGES}
    sent_by_gauges |= {f"ackline.pipeline.{name}" for name in PIPELINE_GAUGES}
    listed = {metric.name for metric in METRICS.values() if metric.kind == "gauge" and ".step." not in metric.name}
    assert {name.rpartition(".")[2] for name in listed - sent_by_gauges} == {
        "missed_at", "retention_at", "fetch_seconds_mean", "state", "failing_share", "partitions"
    }  # fmt: skip


def test_when_retention_may_take_the_next_record_is_sent_as_a_time_and_of_a_topic_the_soonest(
    lane: MemoryLane, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryCluster, "policies", lambda *_: {"orders": TopicPolicy(timedelta(hours=1))})
    turn(lane)
    at, topic = (NOON + timedelta(hours=1)).timestamp(), (("topic", "orders"),)
    assert [(name, value, tags[1:]) for _, name, value, tags in sent if name.endswith("retention_at")] == [
        ("ackline.partition.retention_at", at, (*topic, ("partition", "0"))),
        ("ackline.topic.retention_at", at, topic),
    ], "the other partition has no lag"


@pytest.mark.parametrize(("schedule", "hours"), [("0 * * * *", [3]), ("@daily", [60]), (None, [])])
def test_when_the_schedule_has_passed_over_three_runs_is_sent_as_a_time_if_there_is_a_schedule(
    sent: Sent, schedule: str | None, hours: list[int]
) -> None:
    turn(MemoryLane(OK, **SETTINGS, schedule=schedule))
    times = [value for _, name, value, _ in sent if name == "ackline.pipeline.missed_at"]
    assert times == [(NOON + timedelta(hours=after)).timestamp() for after in hours]


def test_attempts_that_time_out_are_overdue_answers_of_the_turn(sent: Sent) -> None:
    lane = AnsweredLane(WAITS, WAITS, name="orders", timeout="10s")
    for seconds, overdue in ((0, 0), (11, 2)):
        turn(lane.at(seconds))
        assert [value for _, name, value, _ in sent if name == "ackline.pipeline.overdue"][-1] == overdue


def of_the_run(sent: Sent) -> list[tuple[str, float]]:
    """The gauges of what a run stops with, as a back end has them in the end."""
    values = {name: value for _, name, value, _ in sent}
    return [(name, values[f"ackline.pipeline.{name}"]) for name in ("stopped", "refused")]


@pytest.mark.parametrize(("error", "expected"), [
    (GroupBusy("live members"), [1, 1]),
    (LedgerError("contradiction"), [1, 1]),
    (ConfigError("a setting"), [1, 0]),
    (TransientError("a broker is away"), [0, 0]),
    (TurnVoided("by an operator"), [0, 0]),
])  # fmt: skip
def test_what_stops_each_run_is_a_gauge_until_the_next_settle(
    error: AcklineError, expected: list[int], lane: MemoryLane, sent: Sent
) -> None:
    turn(lane)
    with pytest.raises(type(error)), stop_published("orders"):
        raise error
    assert [value for _, value in of_the_run(sent)] == expected
    turn(lane)
    assert [value for _, value in of_the_run(sent)] == [0, 0]


@pytest.mark.parametrize(("exit_status", "raised", "expected"), [
    (CONFIGURATION, AirflowFailException, [1, 0]),
    (FATAL, AirflowFailException, [1, 0]),
    (REFUSED, AirflowFailException, [1, 1]),
    (VOIDED, AirflowFailException, [0, 0]),
    (TRANSIENT, AirflowException, [0, 0]),
])  # fmt: skip
def test_a_driver_that_would_end_so_again_is_a_gauge_too(
    exit_status: int, raised: type[Exception], expected: list[int], lane: MemoryLane, sent: Sent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Settle does not run after it, and would not send what has stopped the run."""
    turn(lane)

    class EndedHook(DriverHook):
        def __init__(self, *_: object, **__: object) -> None: ...

        @property
        def exit_status(self) -> int:
            return exit_status

    def end(*_: object) -> None:
        raise AirflowException("spark-submit ended\nackline: JARs are missing\n")

    monkeypatch.setattr(operators, "DriverHook", EndedHook)
    monkeypatch.setattr(SparkSubmitOperator, "execute", end)
    monkeypatch.setattr(operators.ReplayOperator, "_done_without_spark", lambda *_: False)
    replay = operators.ReplayOperator(task_id="replay", pipeline=lane.adapters().pipeline)
    with pytest.raises(raised, match="ackline: JARs are missing"):
        replay.execute({"run_id": "manual__1"})
    assert [value for _, value in of_the_run(sent)] == expected


def test_a_settled_turn_adds_to_the_counters_of_its_steps_and_sets_their_times(lane: MemoryLane, sent: Sent) -> None:
    lane.plan_and_replay()
    adapters = lane.adapters()
    stored = settle(adapters).stored
    assert stored is not None
    steps = {"source": StepCounts(4, 8, 2, 2, Durations(4, 2 * 10**9, 10**9)), "price": StepCounts(8, 0, 6, 2)}
    publish_metrics(adapters, replace(stored, steps=StepFigures(steps, Durations(2, 6 * 10**9, 5 * 10**9))))
    publish_metrics(adapters, None)  # a settle that has stored nothing adds nothing
    of_steps = [(kind, name.removeprefix("ackline.step."), value, dict(tags)["step"])
                for kind, name, value, tags in sent if name.startswith("ackline.step.")]  # fmt: skip
    assert of_steps == [
        ("incr", "executed", 4, "source"),
        ("incr", "emitted", 8, "source"),
        ("incr", "acked", 2, "source"),
        ("incr", "failed", 2, "source"),
        ("gauge", "execute_seconds_mean", 0.5, "source"),
        ("gauge", "execute_seconds_max", 1.0, "source"),
        ("gauge", "complete_seconds_mean", 3.0, "source"),
        ("gauge", "complete_seconds_max", 5.0, "source"),
        ("incr", "executed", 8, "price"),
        ("incr", "acked", 6, "price"),
        ("incr", "failed", 2, "price"),
    ]
    assert {tags for _, name, _, tags in sent if name.startswith("ackline.step.")} == {
        (("pipeline", "orders"), ("step", "source")),
        (("pipeline", "orders"), ("step", "price")),
    }


def test_the_records_of_a_partition_are_what_its_log_still_has(lane: MemoryLane, sent: Sent) -> None:
    """Storm's `recordsInPartition`: log end − log start, also where the log starts above 0."""
    lane.log().expire(3)
    turn(lane)
    lane.log(TP1).append(OK, lane.world.now)
    lane.log().expire(4)
    turn(lane)
    assert [(value, tags[1:]) for _, name, value, tags in sent if name == "ackline.partition.records"] == [
        (1, (("topic", "orders"), ("partition", "0"))),
        (0, (("topic", "orders"), ("partition", "1"))),
        (0, (("topic", "orders"), ("partition", "0"))),
        (1, (("topic", "orders"), ("partition", "1"))),
    ]
    assert [value for _, name, value, _ in sent if name == "ackline.topic.records"] == [1, 1]


def test_counts_are_added_once_however_often_a_turn_is_settled(lane: MemoryLane, sent: Sent) -> None:
    lane.plan_and_replay()
    for _ in range(3):
        settle_and_publish(lane)
    assert sent.sums("incr")["ackline.partition.acked"] == sent.sums("incr")["ackline.topic.acked"] == 2
    assert len([name for _, name, _, _ in sent if name == "ackline.topic.floor"]) == 3, "gauges are sent each time"
    lane.world.now += timedelta(minutes=1)
    turn(lane)
    assert sent.sums("incr") == {
        f"ackline.{of}.{word}": value
        for of in ("partition", "topic")
        for word, value in (("acked", 3), ("failed", 3), ("dead", 1), ("retries", 2))
    }
    assert [value for _, name, value, _ in sent if name == "ackline.topic.total.acked"] == [2, 2, 2, 3]


def test_counts_and_lag_are_sent_although_the_commit_is_refused(
    lane: MemoryLane, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement is stored by then, and a later settle has nothing left to count."""
    adapters = lane.adapters()
    lane.plan_and_replay()

    def refused(*_: object) -> None:
        raise GroupBusy("live members")

    monkeypatch.setattr(MemoryGroup, "commit", refused)
    monkeypatch.setattr(operators, "opened", lambda *_: contextlib.nullcontext(adapters))
    step = operators.SettleOperator(task_id="settle", pipeline=adapters.pipeline)
    with pytest.raises(AirflowFailException, match="live members"):
        step.execute({"run_id": "run", "ti": SimpleNamespace(xcom_pull=lambda **_: None)})  # type: ignore[typeddict-item]
    assert (sent.sums("incr")["ackline.partition.acked"], sent.sums("gauge")["ackline.topic.lag"]) == (2, 3)
    assert of_the_run(sent) == [("stopped", 1), ("refused", 1)]


def test_a_back_end_that_fails_breaks_nothing_and_its_text_is_not_logged(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError("http://user:canary@collector")

    for kind in ("gauge", "incr"):
        monkeypatch.setattr(stats, kind, failing)
    turn(lane)
    assert "no metrics of orders" in caplog.text
    assert "canary" not in caplog.text
