"""The Airflow of the session: all its servers, for a project to which each test adds pipelines of its own.

The pages of tests/ui, the scheduler's tests and Airflow's own backfill share it, for it starts in half a minute and
takes two gigabytes.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from ackline.local.broker import Broker
from ackline.spark.jars import cache_folder
from tests.airflow import otlp_receiver
from tests.airflow.project import ROOT, AirflowCommand, Project, ServedAirflow
from tests.airflow.statsd_receiver import Received, receiver


def migrate(home: Path) -> None:
    """Puts Airflow's database, migrated, into a home. It is made once for each lock file, beside the JARs."""
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()[:12]
    kept = cache_folder().parent / f"airflow-{lock}.db"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            AirflowCommand(home).migrate()
            scratch = kept.with_suffix(".new")
            shutil.copy(home / "airflow.db", scratch)
            scratch.replace(kept)
    shutil.copy(kept, home / "airflow.db")
    (home / "migrated").touch()  # the mark by which `LocalAirflow` leaves the migration out


@pytest.fixture(scope="session")
def served_project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project that the session's Airflow serves."""
    project = Project(tmp_path_factory.mktemp("served"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    return project


@pytest.fixture(scope="session")
def statsd() -> Iterator[Received]:
    """What the tasks of the session's Airflow send to StatsD."""
    with receiver() as received:
        yield received


@pytest.fixture(scope="session")
def traces() -> Iterator[otlp_receiver.Received]:
    """The spans of the session's Airflow, its tasks, and the Spark drivers of these."""
    with otlp_receiver.receiver() as received:
        yield received


@pytest.fixture(scope="session")
def served(
    served_project: Project, statsd: Received, traces: otlp_receiver.Received, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedAirflow]:
    """The session's Airflow, with a triggerer. Its viewer may not read the DAG of the pipeline `payments`."""
    home = tmp_path_factory.mktemp("airflow-served")
    migrate(home)
    environment = {
        **otlp_receiver.environment(traces.port),
        "AIRFLOW__METRICS__OTEL_ON": "False",
        **statsd.environment,
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.ui.partial_auth.PartialAuthManager",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    with ServedAirflow(home, served_project, environment, triggerer=True) as airflow:
        _running.append(airflow)
        yield airflow


_running: list[ServedAirflow] = []


def end_served() -> None:
    """Ends the session's Airflow before the session does."""
    while _running:
        _running.pop().stop()
