"""Figures through Airflow's own metrics: a real OpenTelemetry receiver, a real StatsD socket, stable names and tags, no
count twice."""

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
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps.plan import plan
from ackline.steps.replay import replay
from ackline.steps.settle import settle
from ackline.testing.memory import World
from ackline.testing.memory_kafka import MemoryGroup
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from tests.conftest import MakeTopic
from tests.dags.project import CANARY, AirflowCommand, Project, produce
from tests.unit.strategies import NOON

Points = dict[str, list[tuple[dict[str, str], float]]]
"""What was received: by name, each point's tags and value."""

GAUGES = {
    "log_start", "log_end", "records", "committed", "floor", "read", "lag", "lag_seconds", "due", "pending.retry",
    "pending.dead_letter", "pending.in_flight", "oldest_pending_seconds", "fetches", "fetch_seconds_max",
    *(f"total.{word}" for word in COUNTED),
}  # fmt: skip
"""Of partitions and of topics alike."""


@contextmanager
def receiver() -> Iterator[tuple[int, Points]]:
    """An OTLP receiver over HTTP: its port, and what it has received."""
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
    """The newest value of each point."""
    for metric in (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
        for point in [*metric.gauge.data_points, *metric.sum.data_points]:
            tags = {one.key: one.value.string_value for one in point.attributes}
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            kept = [one for one in points.get(metric.name, []) if one[0] != tags]
            points[metric.name] = [*kept, (tags, value)]


def test_a_run_sends_its_figures_through_airflow_and_logs_the_settings_in_force(
    project: Project, airflow: AirflowCommand, topic: MakeTopic, name: Callable[[], str]
) -> None:
    """Over HTTP to a real receiver. The connection's password is in no line of the log (I13)."""
    pipeline, source = name(), topic(2)
    project.write(pipeline, source)
    produce(project.bootstrap, source, {}, {"fail": 1}, {"skip": True}, {"fail": -1}, {})
    with receiver() as (port, points):
        env = {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        done = airflow.test(project, f"replay__{pipeline}", env=env)

    assert done.status == 0, done.printed
    said = {
        metric: {tuple(tags.values()): value for tags, value in found if tags.get("pipeline") == pipeline}
        for metric, found in points.items()
    }
    one, two, whole = (pipeline, source, "0"), (pipeline, source, "1"), (pipeline, source)
    assert said["airflow.ackline.partition.lag"] == {one: 4, two: 0}
    assert said["airflow.ackline.partition.acked"] == {one: 2}
    assert said["airflow.ackline.partition.failed"] == {one: 2}
    assert said["airflow.ackline.partition.pending.retry"] == {one: 2, two: 0}
    assert said["airflow.ackline.topic.committed"] == {whole: 1}
    assert said["airflow.ackline.partition.fetch_seconds_mean"][one] > 0
    assert done.printed.count("settings in force: ") == 2, "by plan and by replay"
    assert CANARY not in done.printed


# ---- StatsD ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Airflow's StatsD is on, as a task's process switches it on; what has come over UDP since this was last asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))

        def received() -> list[str]:
            stats.incr("end")  # what was sent before has come before it: there is one socket on either side
            found = [server.recv(65536).decode()]
            while found[-1] != "airflow.end:1|c":
                found.append(server.recv(65536).decode())
            return [line for line in found[:-1] if line.startswith("airflow.ackline.")]

        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        yield received
    monkeypatch.undo()
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


def test_plain_statsd_is_told_the_partition_in_the_name(world: World, statsd: Callable[[], list[str]]) -> None:
    """It has no tags: the bare name alone would be whichever partition was sent last."""
    turn(world)
    told = statsd()
    assert [line for line in told if ".partition.lag" in line and "seconds" not in line] == [
        "airflow.ackline.partition.lag:3|g",
        "airflow.ackline.partition.lag.orders.orders.0:3|g",
        "airflow.ackline.partition.lag:0|g",
        "airflow.ackline.partition.lag.orders.orders.1:0|g",
    ]
    assert {"airflow.ackline.topic.lag.orders.orders:3|g", "airflow.ackline.topic.partitions.orders.orders:2|g"} < {
        *told
    }
    assert [line for line in told if line.endswith("|c")] == [
        f"airflow.ackline.{of}.{word}{tags}:2|c"
        for of, end in (("partition", ".orders.orders.0"), ("topic", ".orders.orders"))
        for word in ("acked", "failed")
        for tags in ("", end)
    ]
    names = {line.partition(":")[0].removeprefix("airflow.ackline.partition.") for line in told}
    assert {f"{name}.orders.orders.0" for name in {*GAUGES, "fetch_seconds_mean"}} <= names


def test_statsd_with_the_tags_of_influxdb_is_told_each_once(
    world: World, monkeypatch: pytest.MonkeyPatch, statsd: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    turn(world)
    told = statsd()
    assert [line for line in told if ".partition.lag," in line] == [
        "airflow.ackline.partition.lag,pipeline=orders,topic=orders,partition=0:3|g",
        "airflow.ackline.partition.lag,pipeline=orders,topic=orders,partition=1:0|g",
    ]
    assert "airflow.ackline.topic.acked,pipeline=orders,topic=orders:2|c" in told
    assert all(",pipeline=orders,topic=orders" in line for line in told)


def test_a_dot_in_a_topics_name_is_no_level_of_the_name(statsd: Callable[[], list[str]]) -> None:
    world = World(NOON)
    world.create_topic("orders.eu")
    turn(world, "orders.eu")
    assert "airflow.ackline.partition.lag.orders.orders__eu.0:0|g" in statsd()


# ---- names, tags, counts --------------------------------------------------------------------------------------------


class Sent(list[tuple[str, str, float, tuple[tuple[str, str], ...]]]):
    """What was sent: kind, name, value, tags."""

    def named(self, kind: str) -> dict[str, set[tuple[str, ...]]]:
        """The tags' names of each name."""
        found: dict[str, set[tuple[str, ...]]] = {}
        for one, name, _, tags in self:
            if one == kind:
                found.setdefault(name, set()).add(tuple(key for key, _ in tags))
        return found

    def sums(self, kind: str) -> dict[str, float]:
        """Of each name, all values together."""
        names = {name for one, name, _, _ in self if one == kind}
        return {name: sum(v for k, n, v, _ in self if (k, n) == (kind, name)) for name in names}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """In place of a back end."""
    found = Sent()

    def keeping(kind: str) -> Callable[..., None]:
        return lambda name, value, tags: found.append((kind, name, value, tuple(tags.items())))

    for kind in ("gauge", "incr"):
        monkeypatch.setattr(stats, kind, keeping(kind))
    return found


@pytest.fixture
def world() -> World:
    """Two partitions; of the first's records one fails once and one fails for good."""
    world = World(NOON)
    world.create_topic("orders", 2)
    log = world.log(TopicPartition("orders", 0))
    assert log is not None
    for value in (b"{}", b'{"fail": 1}', b'{"fail": -1}', b"{}"):
        log.append(value, NOON)
    return world


def parts_of(world: World, topic: str = "orders") -> MemoryParts:
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": [topic]}
    settings = {"name": "orders", "kafka": kafka, "handler": "a:b", "dead_letter": "none", "start": "earliest"}
    retry = {"initial_delay": "1m", "max_retries": 1}
    return memory_parts(world, Pipeline.model_validate({**settings, "retry": retry}), "run")


def turn(world: World, topic: str = "orders") -> None:
    """plan, replay, settle and publish, as the DAG's tasks do."""
    plan(parts_of(world, topic))
    replay(parts_of(world, topic), no_session)
    parts = parts_of(world, topic)
    publish_metrics(parts, settle(parts).stored)


def test_names_and_tags_are_these(world: World, sent: Sent) -> None:
    turn(world)
    by_partition, by_topic = ("pipeline", "topic", "partition"), ("pipeline", "topic")
    partition = {f"ackline.partition.{name}": {by_partition} for name in {*GAUGES, "fetch_seconds_mean"}}
    topics = {f"ackline.topic.{name}": {by_topic} for name in {*GAUGES, "partitions"}}
    assert sent.named("gauge") == partition | topics
    assert sent.named("incr") == {
        f"ackline.{of}.{word}": {tags}
        for of, tags in (("partition", by_partition), ("topic", by_topic))
        for word in ("acked", "failed")
    }


def test_counts_are_added_once_however_often_and_by_whomever_a_turn_is_settled(world: World, sent: Sent) -> None:
    plan(parts_of(world))
    replay(parts_of(world), no_session)
    for _ in range(3):
        parts = parts_of(world)
        publish_metrics(parts, settle(parts).stored)
    assert sent.sums("incr")["ackline.partition.acked"] == sent.sums("incr")["ackline.topic.acked"] == 2
    assert len([name for _, name, _, _ in sent if name == "ackline.topic.floor"]) == 3, "gauges always"
    world.now += timedelta(minutes=1)
    turn(world)
    assert sent.sums("incr") == {
        f"ackline.{of}.{word}": value
        for of in ("partition", "topic")
        for word, value in (("acked", 3), ("failed", 3), ("dead", 1), ("retries", 2))
    }
    assert [value for _, name, value, _ in sent if name == "ackline.topic.total.acked"] == [2, 2, 2, 3]


def test_a_commit_that_is_refused_hides_neither_what_was_settled_nor_the_lag(
    world: World, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement is stored by then, and who settles later has nothing left to count."""
    parts = parts_of(world)
    plan(parts_of(world))
    replay(parts_of(world), no_session)
    monkeypatch.setattr(MemoryGroup, "commit", refused)
    monkeypatch.setattr(operators, "opened", lambda *_: contextlib.nullcontext(parts))
    step = operators.SettleOperator(task_id="settle", pipeline=parts.pipeline)
    with pytest.raises(AirflowFailException, match="live members"):
        step.execute({})
    assert sent.sums("incr")["ackline.partition.acked"] == 2
    assert sent.sums("gauge")["ackline.topic.lag"] == 3


def refused(*_: object) -> None:
    raise GroupBusy("live members")


def test_a_back_end_that_fails_breaks_nothing_and_its_text_is_not_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise OSError("http://user:canary@collector")

    for kind in ("gauge", "incr"):
        monkeypatch.setattr(stats, kind, failing)
    turn(world)
    assert "no metrics of orders" in caplog.text
    assert "canary" not in caplog.text
