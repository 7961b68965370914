"""The DAG, run by Airflow (`dag.test`) on a real broker, Spark and Delta."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow.operators import PlanOperator
from ackline.pipeline.pipeline import load
from ackline.tables.schemas import TABLES
from tests.airflow import otlp_receiver
from tests.airflow.project import CANARY, AirflowCommand, Project, drivers, processes, produce

PAYLOAD = "canary-3Kd8-of-a-record"
QUOTING_HANDLER = """
from tests.support import journal

def handle(record):
    try:
        journal.handle(record)
    except ValueError as error:
        raise ValueError(f"can't digest {record.value!r}") from error
"""


@contextmanager
def watched(pipeline: str) -> Iterator[dict[int, tuple[str, str]]]:
    """Collects argv and environment of the pipeline's driver processes, and of any process with a canary in argv."""
    matching: dict[int, tuple[str, str]] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            matching.update(drivers(pipeline))
            matching.update({pid: (argv, env) for pid, argv, env in processes() if CANARY in argv or PAYLOAD in argv})

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield matching
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_a_run_handles_each_record_commits_the_floor_sends_metrics_and_shows_no_secret(
    project: Project, airflow: AirflowCommand, pipeline: str, source: str
) -> None:
    """I1, I2, I13: offsets 1 and 3 fail and hold the floor. Neither the connection's password nor the records show
    anywhere, although the handler quotes the records."""
    project.write(pipeline, source, handler="quoting_handler:handle")
    (project.include / "quoting_handler.py").write_text(QUOTING_HANDLER)
    orders: list[dict[str, object]] = [{}, {"fail": 1}, {"skip": True}, {"fail": -1}, {}]
    produce(project.bootstrap, source, *({**order, "card": f"<script>{PAYLOAD}\0"} for order in orders))
    with watched(pipeline) as watched_processes, otlp_receiver.receiver() as received:
        done = airflow.test(project, pipeline, env=otlp_receiver.environment(received.port))
    assert (done.status, done.states) == (0, dict.fromkeys(("plan", "replay", "settle"), "success")), done.printed
    assert project.outcomes(pipeline) == [
        (0, 1, "acked"), (1, 1, "failed"), (2, 1, "skipped"), (3, 1, "failed"), (4, 1, "acked"),
    ]  # fmt: skip
    assert project.committed(pipeline, source) == 1
    assert [(call.offset, call.attempt) for call in sorted(project.calls(), key=lambda call: call.offset)] == [
        (offset, 1) for offset in range(5)
    ]
    _check_summaries(done.returned("plan"), done.returned("settle"), source)
    _check_metrics(received.points, pipeline, source)
    assert done.printed.count("settings in force: ") == 2, "by plan and by replay"
    assert len(watched_processes) >= 2, "the JVM or the Python below it was not found"
    assert not [argv for argv, _ in watched_processes.values() if CANARY in argv or PAYLOAD in argv]
    assert not [env for _, env in watched_processes.values() if "AIRFLOW_CONN" in env or "AIRFLOW__" in env]
    steps = {span.name: span for span in received.spans if span.name.startswith("ackline.")}
    assert {"ackline.plan", "ackline.settle", "ackline.commit"} <= set(steps)
    assert {span.attributes["ackline.turn"] for span in steps.values()} == {1}
    assert CANARY not in str(received.spans)
    assert PAYLOAD not in str(received.spans)
    assert CANARY not in done.printed
    assert PAYLOAD not in done.printed
    _check_files_show_no_secret(airflow.home, Path(project.audit))


def _check_summaries(planned: dict[str, object], settled: dict[str, object], source: str) -> None:
    tp = {"topic": source, "partition": 0}
    assert planned["turn"] == 1
    assert planned["partitions"] == [{**tp, "start": 0, "end": 5, "retries": 0, "why": None}]
    assert (settled["turn"], settled["kind"]) == (1, "run")
    assert settled["partitions"] == [
        {
            **tp, "floor": 1, "complete_to": 5, "committed": 1, "outcomes": {"acked": 2, "failed": 2, "skipped": 1},
            "pending": {"retry": 2, "dead_letter": 0, "in_flight": 0, "held_back": 0},
        }
    ]  # fmt: skip


def _check_metrics(points: otlp_receiver.Points, pipeline: str, source: str) -> None:
    """They have arrived at the receiver, tagged with pipeline, topic and partition."""
    received = {
        metric.removeprefix("airflow.ackline."): {
            tuple(tags.values())[1:]: value for tags, value in values if tags.get("pipeline") == pipeline
        }
        for metric, values in points.items()
    }
    partition = (source, "0")
    assert received["partition.lag"] == {partition: 4}
    assert received["partition.acked"] == received["partition.failed"] == {partition: 2}
    assert received["partition.pending.retry"] == {partition: 2}
    assert received["topic.committed"] == {(source,): 1}
    assert received["partition.fetch_seconds_mean"][partition] > 0


def _check_files_show_no_secret(*folders: Path) -> None:
    """The folders hold Airflow's database with its XComs, its logs, and the tables."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert {"airflow.db"} | set(TABLES) <= {file.name for file in files} | {file.parts[-3] for file in files} | {
        part for file in files for part in file.parts
    }
    for canary in (CANARY, PAYLOAD):
        assert not [file for file in files if canary.encode() in file.read_bytes()]


def test_a_run_with_nothing_to_read_skips_replay_starts_no_spark_and_commits_again(
    project: Project, airflow: AirflowCommand, pipeline: str, source: str
) -> None:
    """An idle partition is committed again, so that its commit does not expire."""
    project.write(pipeline, source, retry={"max_retries": 1000})
    done = airflow.test(project, pipeline)
    assert (done.status, done.states) == (0, {"plan": "success", "replay": "skipped", "settle": "success"}), (
        done.printed
    )
    assert done.returned("plan")["turn"] == done.returned("settle")["turn"] == 1
    assert "Spark-Submit cmd" not in done.printed
    assert f"and the topic {source} keeps it for 7 d" in done.printed, "the log of the task warns"
    assert project.committed(pipeline, source) == 0


@pytest.mark.deep
def test_a_run_of_the_backfill_handles_records_again_in_a_lane_of_its_own_until_it_is_settled(
    project: Project, airflow: AirflowCommand, pipeline: str, source: str
) -> None:
    """The second attempt is due at once, so the same driver makes it."""
    project.write(pipeline, source)
    produce(project.bootstrap, source, {}, {"fail": 1}, {})
    values = {"ranges": [f"{source}:0:1-3"], "id": "again", "confirm": True}
    done = airflow.test(project, pipeline, "--conf", json.dumps(values), prefix="backfill__")
    assert done.states == {"begin": "success", "replay": "success"}, done.printed
    asked = {"topic": source, "partition": 0, "start": 1, "end": 3}
    assert done.returned("replay") == {
        "id": "again", "lane": "backfill-again", "epoch": 0, "settled": True,
        "asked": {"offsets": 2, "ranges": [asked], "more_ranges": 0}, "outcomes": {"acked": 2}, "gaps": 0,
        "pending": {"retry": 0, "dead_letter": 0, "in_flight": 0, "held_back": 0, "unread": 0}, "next_due": None,
    }  # fmt: skip
    assert sorted((call.offset, call.attempt) for call in project.calls()) == [(1, 1), (1, 2), (2, 1)]
    assert project.committed(pipeline, source) is None


def test_a_connection_that_is_not_defined_fails_at_once_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow does not retry a task that raises AirflowFailException; tests/airflow/test_airflow_faults.py shows it."""
    project = Project(tmp_path, "127.0.0.1:1")
    for variable, value in project.environment.items():
        monkeypatch.setenv(variable, value)
    kafka = {"connection": "kafka_elsewhere", "group_id": "g", "topics": ["orders"]}
    plan = PlanOperator(task_id="plan", pipeline=load(project.write("orders", "orders", kafka=kafka)))
    with pytest.raises(AirflowFailException, match="the Airflow connection kafka_elsewhere, which pipeline orders"):
        plan.execute(cast(Context, {"run_id": "manual__1"}))
    assert not Path(project.audit).exists()
