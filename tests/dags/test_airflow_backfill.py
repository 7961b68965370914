"""Airflow's own backfill of `replay__NAME`, in a real Airflow: each data interval is replayed in a lane of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ackline.audit.store import LedgerStore
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.steps.backfill import Backfill, find_backfill
from tests.dags.project import Project, served_airflow
from tests.e2e import wire

SECONDS = 200.0
DAYS = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
"""The starts of the three intervals of the backfill; the schedule is daily."""


@pytest.fixture(scope="module")
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("intervals"), broker.bootstrap)


@pytest.fixture(scope="module")
def airflow(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    project.pipelines.mkdir(parents=True)
    with served_airflow(tmp_path_factory.mktemp("airflow-backfill"), project, triggerer=True) as airflow:
        yield airflow


class Intervals:
    """A pipeline with a daily schedule, its lanes, and the runs that Airflow's own backfill makes of it."""

    def __init__(self, project: Project, airflow: LocalAirflow, name: str) -> None:
        self.project, self.airflow, self.name = project, airflow, name
        self.dag, self.backfill_dag = f"replay__{name}", f"backfill__{name}"

    def create(self, *options: str) -> str:
        """Runs `airflow backfill create` over the three days; returns what it printed."""
        days = ["--from-date", DAYS[0].isoformat(), "--to-date", DAYS[-1].isoformat()]
        command = [sys.executable, "-m", "airflow", "backfill", "create", "--dag-id", self.dag, *days, *options]
        done = subprocess.run(
            command, env=self.airflow.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def runs(self) -> list[dict[str, Any]]:
        """The backfill runs of the pipeline, by their intervals."""
        runs = self.airflow.call("GET", f"/dags/{self.dag}/dagRuns?limit=100&order_by=logical_date")["dag_runs"]
        return [run for run in runs if run["run_type"] == "backfill"]

    def end(self) -> list[str]:
        """Waits until all of them have ended; returns their states."""
        assert wait_until(lambda: all(run["state"] in ("success", "failed") for run in self.runs()), SECONDS)
        return [run["state"] for run in self.runs()]

    def lane(self, day: datetime) -> Backfill | None:
        end = day + timedelta(days=1)
        lane = f"backfill-{day:%Y%m%dt%H%M%Sz}-{end:%Y%m%dt%H%M%Sz}"
        return find_backfill(LedgerStore(self.project.audit, self.name, lane))

    def epochs(self) -> list[int | None]:
        """The newest epoch of each day's lane; None if it has not begun."""
        found = [self.lane(day) for day in DAYS]
        return [None if backfill is None else backfill.newest.turn.epoch for backfill in found]


def test_probe(project: Project, airflow: LocalAirflow, pipeline: str, source: str) -> None:
    for day, values in zip(DAYS, ([{}, {}], [{"fail": 1}], []), strict=True):
        for n, value in enumerate(values):
            time = int((day + timedelta(hours=n)).timestamp() * 1000)
            wire.produce(project.bootstrap, source, [wire.Write(json.dumps(value).encode(), timestamp=time)], 0)
    project.write(pipeline, source, schedule="@daily")
    of = Intervals(project, airflow, pipeline)
    airflow.wait_for_dag(of.dag)
    airflow.wait_for_dag(of.backfill_dag)
    airflow.unpause(of.dag)
    assert wait_until(lambda: any(s in ("success", "failed") for s in airflow.runs(of.dag).values()), SECONDS)
    print(airflow.runs(of.dag))
    import time as clock

    t = clock.time()
    print(of.create("--max-active-runs", "2"))
    try:
        print(of.end())
    finally:
        print("took", clock.time() - t)
        for run in of.runs():
            print(run)
            print(airflow.task_states(of.dag, run["dag_run_id"]))
            print(airflow.log(of.dag, run["dag_run_id"], "plan"))
        for run in airflow.runs(of.backfill_dag):
            print(run, airflow.task_states(of.backfill_dag, run))
            print(airflow.log(of.backfill_dag, run, "begin"))
    print(of.epochs(), [of.lane(d) and of.lane(d).account for d in DAYS])
    assert 0
