"""The DAG under the real scheduler: an Airflow with all its servers, as in the demo."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest

from ackline.audit.queries import AuditFilter, audit_rows
from ackline.local.airflow_api import POLL_SECONDS
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.processes import wait_until
from ackline.tables.lease import ProcessIdentity
from tests.airflow import otlp_receiver
from tests.airflow.project import CANARY, SLOW_HANDLER, Project, ServedAirflow, drivers, produce
from tests.airflow.statsd_receiver import Received
from tests.conftest import MakeTopic
from tests.e2e.wire import commit_offset, delete_records
from tests.ui.test_page import text_of, view

SECONDS = 400.0
"""The limit of a wait, which ends as soon as it can. On a loaded machine a task may be queued for minutes."""
pytestmark = pytest.mark.timeout(900)
OWN_CODE = """
import json, os, pathlib, time
from ackline.listener import Listener

EVENTS = pathlib.Path(__file__).with_name("events")

def first(topic, partition):
    return partition == 0

def handle(record):
    if json.loads(record.value).get("hang"):
        time.sleep(600)

class Never:
    def next_attempt(self, attempts, handled_at, error_class, seed):
        assert error_class == "Timeout"
        return None

class Own(Listener):
    def note(self, *event):
        with EVENTS.open("a") as events:
            print(os.getpid(), *event, file=events)

    def on_open(self, pipeline, run_id):
        self.note("open")

    def on_partitions_changed(self, partitions):
        self.note("partitions_changed", [tp.partition for tp in partitions])

    def on_planned(self, plan):
        self.note("planned", [tp.partition for tp in plan.partitions])

    def on_handled(self, turn, counts):
        [of] = counts.values()
        self.note("handled", {str(outcome): rows for outcome, rows in sorted(of.items())})

    def on_acked(self, turn, counts):
        self.note("acked", *counts.values())

    def on_dead(self, turn, offsets):
        self.note("dead", *offsets.values())

    def on_expired(self, turn, ranges):
        self.note("expired", *ranges.values())

    def on_committed(self, committed):
        self.note("committed", *(commit.offset for commit in committed.values()))

    def on_close(self):
        self.note("close")
"""
"""A project's own code. Its listener notes each event with the process that calls it."""


@pytest.fixture(scope="module")
def scheduled(served_project: Project) -> Iterator[Project]:
    """The project that the scheduler runs; one of its files is broken as long as the tests of this file run."""
    broken = served_project.pipelines / "broken.yaml"
    broken.write_text("name: broken\nguarantee: exactly_once\n")
    (served_project.include / "slow_handler.py").write_text(SLOW_HANDLER)
    yield served_project
    broken.unlink()


@pytest.fixture(scope="module")
def airflow(scheduled: Project, served: ServedAirflow) -> ServedAirflow:
    """The Airflow that serves the project."""
    return served


@pytest.mark.slow
def test_the_cron_of_a_pipeline_fires_beside_a_broken_one_that_is_named(
    scheduled: Project,
    airflow: ServedAirflow,
    statsd: Received,
    traces: otlp_receiver.Received,
    pipeline: str,
    source: str,
) -> None:
    """Nothing triggers the run. It plans, submits the Spark job, settles and commits; each task links to the pipeline's
    page, settle sends the metrics, and the run is one trace. The broken file is an import error with file and key."""
    produce(scheduled.bootstrap, source, {}, {"fail": 1}, {})
    scheduled.write(pipeline, source, schedule="0 0 1 * *")
    dag = f"replay__{pipeline}"
    airflow.unpause(dag)
    assert wait_until(lambda: bool(airflow.runs(dag)), SECONDS, POLL_SECONDS)
    [run] = airflow.runs(dag)
    assert airflow.wait(dag, run, SECONDS) == "success"
    _check_it_was_scheduled_for_the_last_month(airflow.call("GET", f"/dags/{dag}/dagRuns/{run}"))
    assert scheduled.outcomes(pipeline) == [(0, 1, "acked"), (1, 1, "failed"), (2, 1, "acked")]
    assert scheduled.committed(pipeline, source) == 1
    log = airflow.log(dag, run, "replay")
    assert "Spark-Submit cmd" in log
    assert CANARY not in log
    assert "***" not in log  # Airflow masks a secret that a task has printed
    _check_the_page_that_tasks_link_to(airflow, pipeline, run, turns={1})
    airflow.parse("broken_pipelines")
    assert wait_until(lambda: len(airflow.import_errors()) == 1, SECONDS, POLL_SECONDS)
    ((file, reason),) = airflow.import_errors().items()
    assert file.endswith("broken_pipelines.py")
    assert "broken.yaml:2: guarantee:" in reason
    _check_metrics(statsd, scheduled, pipeline, source)
    _check_spans(traces, pipeline)
    _cleared(scheduled, airflow, pipeline, source, run)
    assert wait_until(lambda: statsd.sums(pipeline, source, 0).get("retries") == 1, SECONDS)
    assert statsd.sums(pipeline, source, 0) == {"acked": 3, "failed": 1, "retries": 1}
    assert list(airflow.runs(dag)) == [run]


def _check_it_was_scheduled_for_the_last_month(run: dict[str, Any]) -> None:
    """The cron names the first of each month: the interval is the last month that is over, and not of zero length."""
    start, end = (datetime.fromisoformat(run[f"data_interval_{name}"]) for name in ("start", "end"))
    assert (run["run_type"], run["triggered_by"]) == ("scheduled", "timetable")
    assert (start.day, end.day) == (1, 1)
    assert timedelta(days=28) <= end - start <= timedelta(days=31)
    assert timedelta(0) <= datetime.now(UTC) - end <= timedelta(days=32)


def _check_the_page_that_tasks_link_to(airflow: LocalAirflow, pipeline: str, run: str, turns: set[int]) -> None:
    """The page shows the turns of the run."""
    address = f"/pipelines/{pipeline}/run?{urlencode({'run_id': run})}"
    for task in ("plan", "replay", "settle"):
        links = airflow.call("GET", f"/dags/replay__{pipeline}/dagRuns/{run}/taskInstances/{task}/links")
        assert links["extra_links"] == {"Audit": f"/ackline{address}"}
    page = view(airflow, address)
    assert {int(n) for n in re.findall(r"/turns/0/(\d+)", page)} - {0} == turns, text_of(page)


def _check_spans(traces: otlp_receiver.Received, pipeline: str) -> None:
    """The run is one trace: the spans of the steps, those of the driver too, are below those of Airflow's tasks."""

    def own() -> dict[str, otlp_receiver.Span]:
        found = [span for span in traces.spans if span.attributes.get("ackline.pipeline") == pipeline]
        return {span.name.removeprefix("ackline."): span for span in found}

    assert wait_until(lambda: {"plan", "replay", "commit"} <= set(own()), SECONDS, POLL_SECONDS), own()
    spans = own()
    trace_id = spans["plan"].trace_id
    tasks = {span.name: span for span in traces.spans if span.trace_id == trace_id and span.name.startswith("worker.")}
    for name, parent in {"plan": "plan", "replay": "replay", "settle": "settle", "commit": "settle"}.items():
        assert (spans[name].trace_id, spans[name].attributes["ackline.turn"]) == (trace_id, 1)
        assert spans[name].parent_id == tasks[f"worker.{parent}"].span_id, name
    job = spans["replay.job"]
    assert (job.parent_id, job.attributes["ackline.handler_calls"]) == (spans["replay"].span_id, 3)
    assert CANARY not in str(traces.spans)


def _check_metrics(statsd: Received, scheduled: Project, pipeline: str, source: str) -> None:
    """They have arrived at the socket, as the broker and the tables have them."""
    assert wait_until(lambda: "total.retries" in statsd.last(pipeline, source, 0), SECONDS)
    gauges = statsd.last(pipeline, source, 0)
    outcomes = Counter(outcome for _, _, outcome in scheduled.outcomes(pipeline))
    assert gauges | {
        "log_start": 0, "log_end": 3, "records": 3, "read": 3, "floor": 1, "lag": 2, "pending.retry": 1,
        "committed": scheduled.committed(pipeline, source),
        "total.acked": outcomes["acked"], "total.failed": outcomes["failed"], "total.retries": 0,
    } == gauges  # fmt: skip
    assert statsd.sums(pipeline, source, 0) == outcomes == {"acked": 2, "failed": 1}


def _cleared(scheduled: Project, airflow: LocalAirflow, pipeline: str, source: str, run: str) -> None:
    """S53, fault 35: a run that is cleared by hand takes a turn of its own, and repeats nothing that was acked."""
    dag = f"replay__{pipeline}"
    airflow.clear(dag, run)
    assert airflow.wait(dag, run, SECONDS) == "success"
    wanted = [(0, 1, "acked"), (1, 1, "failed"), (1, 2, "acked"), (2, 1, "acked")]
    assert (scheduled.outcomes(pipeline), scheduled.committed(pipeline, source)) == (wanted, 3)
    calls = [(call.offset, call.attempt) for call in scheduled.calls() if call.topic == source]
    assert sorted(calls) == [(0, 1), (1, 1), (1, 2), (2, 1)]
    _check_the_page_that_tasks_link_to(airflow, pipeline, run, turns={1, 2})


def test_each_task_imports_the_projects_code_in_a_process_of_its_own_and_calls_it(
    scheduled: Project, airflow: LocalAirflow, statsd: Received, pipeline: str, topic: MakeTopic
) -> None:
    """A partition filter, a listener, a retry class and a handler that hangs. Records 0 and 1 expire before they are
    read; `record_timeout` ends the call for 3, and the retry class gives it up. Partition 1 is not read."""
    source = topic(partitions=2)
    produce(scheduled.bootstrap, source, {}, {}, {}, {"hang": True}, {})
    delete_records(scheduled.bootstrap, (source, 0), 2)
    commit_offset(scheduled.bootstrap, f"{pipeline}-group", (source, 0), 0, "")
    file = _own_code(scheduled, pipeline, source)
    dag = f"replay__{pipeline}"
    airflow.unpause(dag)
    run = airflow.trigger(dag)
    assert airflow.wait(dag, run, SECONDS) == "success", airflow.log(dag, run, "replay")
    assert scheduled.outcomes(pipeline) == [
        (0, 0, "expired"), (2, 1, "acked"), (3, 0, "dead"), (3, 1, "failed"), (4, 1, "acked"),
    ]  # fmt: skip
    assert [scheduled.committed(pipeline, source, partition) for partition in (0, 1)] == [5, None]
    events: dict[str, list[str]] = {}
    for line in (scheduled.include / "events").read_text().splitlines():
        process, _, event = line.partition(" ")
        events.setdefault(process, []).append(event)
    assert list(events.values()) == [
        ["open", "partitions_changed [0]", "planned [0]", "close"],  # plan
        ["open", "close"],  # replay's task, which starts the driver
        ["open", "handled {'acked': 2, 'failed': 1}", "close"],  # the driver
        ["open", "acked 2", "dead [3]", "expired [(0, 2)]", "committed 5", "close"],  # settle
    ]
    rows = list(audit_rows(scheduled.audit, pipeline, AuditFilter()))
    assert [row["error_class"] for row in rows if row["outcome"] in ("failed", "dead")] == ["Timeout", "Timeout"]
    assert statsd.sums(pipeline, source, 0) == {"acked": 2, "failed": 1, "dead": 1, "expired": 2}
    gauges = statsd.last(pipeline, source, 0)
    assert (gauges["log_start"], gauges["log_end"], gauges["records"]) == (2, 5, 3)
    _expired_fail(scheduled, airflow, pipeline, source, file)


def _own_code(scheduled: Project, pipeline: str, source: str) -> Path:
    """Write the project's code and the pipeline file that names it. Returns the file."""
    (scheduled.include / "own_code.py").write_text(OWN_CODE)
    kafka = {
        "connection": "kafka_default", "group_id": f"{pipeline}-group", "topics": [source],
        "partition_filter": "own_code:first",
    }  # fmt: skip
    return scheduled.write(
        pipeline, source, "own_code:handle", kafka=kafka, listener="own_code:Own", retry={"class": "own_code:Never"},
        record_timeout="1s",
    )  # fmt: skip


def _expired_fail(scheduled: Project, airflow: LocalAirflow, pipeline: str, source: str, file: Path) -> None:
    """S41: with `on_expired: fail` the task plan fails at once, names what is gone, and stores nothing."""
    file.write_text(f"{file.read_text()}on_expired: fail\n")
    produce(scheduled.bootstrap, source, {}, {})
    delete_records(scheduled.bootstrap, (source, 0), 6)
    outcomes = scheduled.outcomes(pipeline)
    dag = f"replay__{pipeline}"
    run = airflow.trigger(dag)
    assert airflow.wait(dag, run, SECONDS) == "failed"
    assert airflow.task_states(dag, run) == {"plan": "failed", "replay": "upstream_failed", "settle": "upstream_failed"}
    assert airflow.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/plan")["try_number"] == 1
    assert f"retention took records that were not settled: {source}[0] [5, 6)" in _error_of(airflow, dag, run)
    assert (scheduled.outcomes(pipeline), scheduled.committed(pipeline, source)) == (outcomes, 5)


def _error_of(airflow: LocalAirflow, dag: str, run: str) -> str:
    """Returns the log of the task plan, errors included."""
    path = f"/dags/{dag}/dagRuns/{run}/taskInstances/plan/logs/1?full_content=true"
    return json.dumps(airflow.call("GET", path))


@pytest.mark.parametrize("how", ["its process is killed", "a user marks it as failed"])
def test_a_replay_task_that_is_killed_leaves_no_spark_behind(
    scheduled: Project, airflow: LocalAirflow, pipeline: str, source: str, how: str
) -> None:
    """The JVM, the Python driver below it and its workers end; nothing is stored or committed."""
    produce(scheduled.bootstrap, source, {})
    handling = scheduled.include / "handling"
    handling.unlink(missing_ok=True)
    scheduled.write(pipeline, source, handler="slow_handler:handle")
    dag = f"replay__{pipeline}"
    airflow.unpause(dag)
    run = airflow.trigger(dag)
    assert wait_until(handling.exists, SECONDS), airflow.log(dag, run, "replay")
    spark = _spark(pipeline)
    assert len(spark) >= 3
    if how == "its process is killed":
        os.kill(_task_of(pipeline), signal.SIGKILL)
    else:
        airflow.call("PATCH", f"/dags/{dag}/dagRuns/{run}/taskInstances/replay", {"new_state": "failed"})
    assert wait_until(lambda: not any(process.alive() for process in spark), SECONDS)
    assert (scheduled.outcomes(pipeline), scheduled.committed(pipeline, source)) == ([], None)


def _spark(pipeline: str) -> list[ProcessIdentity]:
    """Returns the JVM, the driver and every process below them."""
    driver_processes = [psutil.Process(pid) for pid in drivers(pipeline)]
    pids = {process.pid for driver in driver_processes for process in (driver, *driver.children(recursive=True))}
    return [process for pid in pids if (process := ProcessIdentity.of(pid))]


def _task_of(pipeline: str) -> int:
    """Returns the Airflow task's process, which is the parent of the JVM."""
    jvm = min(drivers(pipeline), key=lambda pid: psutil.Process(pid).create_time())
    parent = psutil.Process(jvm).ppid()
    assert Path(f"/proc/{parent}/exe").resolve().name.startswith("python")
    return parent
