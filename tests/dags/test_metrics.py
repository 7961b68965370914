"""Metrics through Airflow to a real OpenTelemetry receiver and a real StatsD socket: stable names, no count twice."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ackline.airflow import operators
from ackline.airflow.gauges import COUNTED, publish_metrics
from ackline.errors import GroupBusy
from ackline.steps.settle import settle
from ackline.testing.memory_kafka import MemoryGroup
from tests.conftest import MakeTopic
from tests.dags.project import CANARY, AirflowCommand, Project, produce
from tests.memory_lane import FAILS, FAILS_ONCE, OK, MemoryLane

Points = dict[str, list[tuple[dict[str, str], float]]]
"""The received points, by name of the metric: tags and value of each."""

GAUGES = {
    "log_start", "log_end", "records", "committed", "floor", "read", "lag", "lag_seconds", "due", "pending.retry",
    "pending.dead_letter", "pending.in_flight", "oldest_pending_seconds", "fetches", "fetch_seconds_max",
    *(f"total.{word}" for word in COUNTED),
}  # fmt: skip
"""Sent for partitions and for topics."""
SETTINGS: dict[str, Any] = {
    "name": "orders", "dead_letter": "none", "start": "earliest", "retry": {"initial_delay": "1m", "max_retries": 1},
}  # fmt: skip


@contextmanager
def receiver() -> Iterator[tuple[int, Points]]:
    """Runs an OTLP receiver over HTTP; yields its port, and the points that it receives."""
    points: Points = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            keep(ExportMetricsServiceRequest.FromString(text), points)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, points
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def keep(request: Any, points: Points) -> None:
    """Keep the newest value of each point."""
    for metric in (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
        for point in [*metric.gauge.data_points, *metric.sum.data_points]:
            tags = {tag.key: tag.value.string_value for tag in point.attributes}
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            kept = [earlier for earlier in points.get(metric.name, []) if earlier[0] != tags]
            points[metric.name] = [*kept, (tags, value)]


def test_a_run_sends_its_metrics_through_airflow_and_logs_the_settings_in_force(
    project: Project, airflow: AirflowCommand, topic: MakeTopic, pipeline: str
) -> None:
    """Over HTTP to a real receiver. The connection's password is in no line of the log (I13)."""
    source = topic(2)
    project.write(pipeline, source)
    produce(project.bootstrap, source, {}, {"fail": 1}, {"skip": True}, {"fail": -1}, {})
    with receiver() as (port, points):
        endpoint = {"ENDPOINT": f"http://127.0.0.1:{port}", "PROTOCOL": "http/protobuf"}
        env = {f"OTEL_EXPORTER_OTLP_{key}": value for key, value in endpoint.items()}
        env |= {"AIRFLOW__METRICS__OTEL_ON": "True", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        done = airflow.test(project, pipeline, env=env)
    assert done.status == 0, done.printed
    received = {
        metric.removeprefix("airflow.ackline."): {
            tuple(tags.values())[1:]: value for tags, value in values if tags.get("pipeline") == pipeline
        }
        for metric, values in points.items()
    }
    first, second = (source, "0"), (source, "1")
    assert received["partition.lag"] == {first: 4, second: 0}
    assert received["partition.acked"] == received["partition.failed"] == {first: 2}
    assert received["partition.pending.retry"] == {first: 2, second: 0}
    assert received["topic.committed"] == {(source,): 1}
    assert received["partition.fetch_seconds_mean"][first] > 0
    assert done.printed.count("settings in force: ") == 2, "by plan and by replay"
    assert CANARY not in done.printed


# ---- StatsD ---------------------------------------------------------------------------------------------------------


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
    assert all(",pipeline=orders,topic=orders" in line for line in lines)


def test_a_dot_in_a_topics_name_adds_no_level_to_the_name(statsd: Callable[[], list[str]]) -> None:
    lane = MemoryLane(topics=("orders.eu",), **SETTINGS)
    lane.create("orders.eu")
    turn(lane)
    assert "airflow.ackline.partition.lag.orders.orders__eu.0:0|g" in statsd()


# ---- names, tags, counts --------------------------------------------------------------------------------------------


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
    parts = lane.parts()
    publish_metrics(parts, settle(parts).stored)


def turn(lane: MemoryLane) -> None:
    """Plan, replay, settle and publish, as the DAG's tasks do."""
    lane.plan_and_replay()
    settle_and_publish(lane)


def test_the_names_and_tags_of_the_metrics_are_stable(lane: MemoryLane, sent: Sent) -> None:
    turn(lane)
    by_partition, by_topic = ("pipeline", "topic", "partition"), ("pipeline", "topic")
    partition = {f"ackline.partition.{name}": {by_partition} for name in {*GAUGES, "fetch_seconds_mean"}}
    topics = {f"ackline.topic.{name}": {by_topic} for name in {*GAUGES, "partitions"}}
    assert sent.named("gauge") == partition | topics
    assert sent.named("incr") == {
        f"ackline.{of}.{word}": {tags}
        for of, tags in (("partition", by_partition), ("topic", by_topic))
        for word in ("acked", "failed")
    }


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
    parts = lane.parts()
    lane.plan_and_replay()

    def refused(*_: object) -> None:
        raise GroupBusy("live members")

    monkeypatch.setattr(MemoryGroup, "commit", refused)
    monkeypatch.setattr(operators, "opened", lambda *_: contextlib.nullcontext(parts))
    step = operators.SettleOperator(task_id="settle", pipeline=parts.pipeline)
    with pytest.raises(AirflowFailException, match="live members"):
        step.execute({})
    assert (sent.sums("incr")["ackline.partition.acked"], sent.sums("gauge")["ackline.topic.lag"]) == (2, 3)


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
