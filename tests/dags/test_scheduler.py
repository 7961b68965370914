"""The DAG under the real scheduler: an Airflow with all its servers, as in the demo."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.process_identity import ProcessIdentity
from tests.dags.project import CANARY, SLOW_HANDLER, Project, drivers, produce, served_airflow

SECONDS = 120.0


@pytest.fixture(scope="module")
def scheduled(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project that the scheduler runs; one of its files is broken."""
    project = Project(tmp_path_factory.mktemp("scheduled"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    (project.pipelines / "broken.yaml").write_text("name: broken\nguarantee: exactly_once\n")
    (project.include / "slow_handler.py").write_text(SLOW_HANDLER)
    return project


@pytest.fixture(scope="module")
def airflow(scheduled: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    with served_airflow(tmp_path_factory.mktemp("airflow-stack"), scheduled) as airflow:
        yield airflow


def test_the_scheduler_runs_a_pipeline_beside_a_broken_one_and_names_that(
    scheduled: Project, airflow: LocalAirflow, pipeline: str, source: str
) -> None:
    """It plans, submits the Spark job, settles and commits; each task links to the pipeline's page.

    The broken file is an import error with file and key.
    """
    produce(scheduled.bootstrap, source, {}, {"fail": 1}, {})
    scheduled.write(pipeline, source)
    dag = f"replay__{pipeline}"
    airflow.unpause(dag)
    run = airflow.trigger(dag)
    assert airflow.wait(dag, run, SECONDS) == "success"
    assert scheduled.outcomes(pipeline) == [(0, 1, "acked"), (1, 1, "failed"), (2, 1, "acked")]
    assert scheduled.committed(pipeline, source) == 1
    log = airflow.log(dag, run, "replay")
    assert "Spark-Submit cmd" in log
    assert CANARY not in log
    for task in ("plan", "replay", "settle"):
        links = airflow.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links")
        assert links["extra_links"] == {"Audit": f"/ackline/pipelines/{pipeline}"}
    assert wait_until(lambda: len(airflow.import_errors()) == 1, SECONDS)
    ((file, reason),) = airflow.import_errors().items()
    assert file.endswith("broken_pipelines.py")
    assert "broken.yaml:2: guarantee:" in reason
    _cleared(scheduled, airflow, pipeline, source, run)


def _cleared(scheduled: Project, airflow: LocalAirflow, pipeline: str, source: str, run: str) -> None:
    """S53, fault 35: a run that is cleared by hand takes a turn of its own, and repeats nothing that was acked."""
    dag = f"replay__{pipeline}"
    airflow.clear(dag, run)
    assert airflow.wait(dag, run, SECONDS) == "success"
    wanted = [(0, 1, "acked"), (1, 1, "failed"), (1, 2, "acked"), (2, 1, "acked")]
    assert (scheduled.outcomes(pipeline), scheduled.committed(pipeline, source)) == (wanted, 3)
    calls = [(call.offset, call.attempt) for call in scheduled.calls() if call.topic == source]
    assert sorted(calls) == [(0, 1), (1, 1), (1, 2), (2, 1)]


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
    assert wait_until(lambda: not any(process.alive() for process in spark), 60)
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
