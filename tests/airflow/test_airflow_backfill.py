"""Airflow's own backfill of `replay__NAME`, in a real Airflow: each data interval is replayed in a lane of its own."""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ackline.airflow.interval import Interval
from ackline.backfill.run import Backfill, find_backfill
from ackline.local.airflow_api import ENDED, POLL_SECONDS
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.processes import wait_until
from ackline.tables.store import LedgerStore
from ackline.verify.check import Sources, check
from tests.airflow.project import Project
from tests.e2e import wire
from tests.e2e.documents import blocks, section

SECONDS = 400.0
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
DAYS = [TODAY - timedelta(days=days) for days in (5, 4, 3)]
"""The starts of the three intervals of the backfill, younger than the broker's retention. The second has no record."""


@pytest.fixture
def project(served_project: Project) -> Project:
    """The project that Airflow runs."""
    return served_project


@pytest.fixture
def airflow(served: LocalAirflow) -> LocalAirflow:
    """The Airflow that serves the project, with a triggerer."""
    return served


class Intervals:
    """A pipeline with a daily schedule, its lanes, and the runs that Airflow's own backfill makes of it."""

    def __init__(self, project: Project, airflow: LocalAirflow, name: str, topic: str) -> None:
        self.project, self.airflow, self.name, self.topic = project, airflow, name, topic
        self.dag, self.backfill_dag = f"replay__{name}", f"backfill__{name}"

    def begin(self, handler: str = "tests.support.journal:handle") -> None:
        """Makes the DAGs, waits for the one scheduled run, which finds no record, and produces those of the days."""
        self.project.write(self.name, self.topic, handler, schedule="@daily")
        self.airflow.wait_for_dag(self.backfill_dag)
        self.airflow.unpause(self.dag)
        assert wait_until(
            lambda: set(self.airflow.runs(self.dag).values()) in ({"success"}, {"failed"}), SECONDS, POLL_SECONDS
        )
        for day, orders in ((DAYS[0], [{}, {}]), (DAYS[2], [{"fail": 1}])):
            for hour, order in enumerate(orders):
                time = int((day + timedelta(hours=hour)).timestamp() * 1000)
                write = wire.Write(json.dumps(order).encode(), timestamp=time)
                wire.produce(self.project.bootstrap, self.topic, [write], 0)

    def create(self, behavior: str) -> None:
        """Runs `airflow backfill create` over the days, and waits until its runs have ended."""
        assert wait_until(lambda: self._is_created(behavior), SECONDS, POLL_SECONDS)
        assert wait_until(lambda: all(run["state"] in ENDED for run in self.runs()), SECONDS, POLL_SECONDS), self.runs()
        assert wait_until(self._is_complete, SECONDS, POLL_SECONDS)

    def _is_created(self, behavior: str) -> bool:
        """Runs the command. Returns False if SQLite has refused it, because a task's request wrote at the same time."""
        days = ["--from-date", DAYS[0].isoformat(), "--to-date", DAYS[-1].isoformat()]
        options = ["--dag-id", self.dag, *days, "--reprocess-behavior", behavior, "--max-active-runs", "3"]
        with self.airflow.halted():
            done = self.airflow_command("backfill", "create", *options)
        if done.returncode == 0:
            return True
        assert "database is locked" in done.stderr, done.stderr[-2000:]
        # The command has stored its backfill, and none of its runs. A backfill that is active refuses another one.
        for backfill in self._backfills():
            if backfill["completed_at"] is None:
                self.airflow.call("PUT", f"/backfills/{backfill['id']}/cancel")
        return False

    def airflow_command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs the command `airflow`."""
        return subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.airflow.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _backfills(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.airflow.call("GET", f"/backfills?dag_id={self.dag}")["backfills"]
        return found

    def _is_complete(self) -> bool:
        return all(backfill["completed_at"] is not None for backfill in self._backfills())

    def runs(self) -> list[dict[str, Any]]:
        """The backfill runs of the pipeline, in the order of their intervals."""
        runs = self.airflow.call("GET", f"/dags/{self.dag}/dagRuns?limit=100&order_by=logical_date")["dag_runs"]
        return [run for run in runs if run["run_type"] == "backfill"]

    def states(self) -> list[dict[str, str | None]]:
        """The states of the tasks of each backfill run."""
        return [self.airflow.task_states(self.dag, run["dag_run_id"]) for run in self.runs()]

    def lane(self, day: datetime) -> Backfill | None:
        """The lane of a day's interval."""
        interval = Interval(day, day + timedelta(days=1))
        return find_backfill(LedgerStore(self.project.audit, self.name, interval.lane))

    def epochs(self) -> list[int | None]:
        """The newest epoch of each day's lane; None if it has not begun."""
        return [None if found is None else found.newest.turn.epoch for found in map(self.lane, DAYS)]

    def handled(self) -> list[int]:
        """The offsets of all handler calls, in order."""
        return [call.offset for call in self.project.calls() if call.topic == self.topic]

    def judge(self, day: datetime) -> None:
        """Fails if the checker finds a violation in the lane of a day, or if it is not settled."""
        lane = Interval(day, day + timedelta(days=1)).lane
        group, topics = f"{self.name}-group", [self.topic]
        sources = Sources(self.project.bootstrap, self.project.audit, self.name, group, topics, lane=lane)
        report = check(sources, max_retries=2, settled=True)
        assert not report.violations, "\n".join(report.violations)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_interval_is_replayed_in_its_lane_again_when_it_is_reprocessed_and_not_when_a_task_is_cleared(
    project: Project, airflow: LocalAirflow, pipeline: str, source: str
) -> None:
    """Airflow reprocesses an interval by clearing all tasks of its run, so this is what makes a new epoch."""
    days = Intervals(project, airflow, pipeline, source)
    days.begin()
    days.create("none")
    skipped = {"plan": "success", "replay": "skipped", "settle": "skipped"}
    assert days.states() == [skipped] * 3
    assert days.epochs() == [0, None, 0]
    assert sorted(days.handled()) == [0, 1, 2, 2]
    _the_command_of_the_runbook_is_valid(days)
    assert "DEFERRED" in airflow.log(days.dag, days.runs()[0]["dag_run_id"], "plan")
    days.create("none")
    assert (days.epochs(), len(airflow.runs(days.backfill_dag))) == ([0, None, 0], 2)
    airflow.clear(days.dag, days.runs()[0]["dag_run_id"], "plan", downstream=False)
    assert airflow.wait(days.dag, days.runs()[0]["dag_run_id"], SECONDS) == "success"
    assert (days.states()[0], days.epochs(), len(days.handled())) == (skipped, [0, None, 0], 4)
    days.create("completed")
    assert (days.states(), days.epochs()) == ([skipped] * 3, [1, None, 1])
    assert sorted(days.handled()) == [0, 0, 1, 1, 2, 2, 2, 2]
    for day in (DAYS[0], DAYS[2]):
        days.judge(day)
    assert project.committed(pipeline, source) == 0, "the group is where the scheduled run has left it"


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_failed_run_of_a_lane_fails_its_interval_with_the_reason(
    project: Project, airflow: LocalAirflow, pipeline: str, source: str
) -> None:
    """The handler is missing, so the task `begin` fails before the lane has begun."""
    days = Intervals(project, airflow, pipeline, source)
    days.begin(handler="nowhere:handle")
    days.create("none")
    assert [run["state"] for run in days.runs()] == ["failed", "success", "failed"]
    run = days.runs()[0]["dag_run_id"]
    path = f"/dags/{days.dag}/dagRuns/{run}/taskInstances/plan/logs/1?full_content=true"
    text = json.dumps(airflow.call("GET", path))
    assert "was not replayed" in text
    assert "nowhere" in text
    assert airflow.call("GET", f"/dags/{days.dag}/dagRuns/{run}/taskInstances/plan")["try_number"] == 1
    assert days.epochs() == [None, None, None]


def _the_command_of_the_runbook_is_valid(days: Intervals) -> None:
    """Runs it as it is printed, for the pipeline of the test, and without effect."""
    [block] = [block for block in blocks(section("docs/runbook.md", "## Replay yesterday")) if block.language == "text"]
    program, *arguments = shlex.split(block.text.replace("\\\n", "").replace("replay__orders", days.dag))
    assert program == "airflow"
    done = days.airflow_command(*arguments, "--dry-run")
    assert (done.returncode, "2026-01-31" in done.stdout) == (0, True), done.stderr
