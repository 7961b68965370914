"""Fault 35 in a real Airflow: a user marks a task as successful or clears it, the scheduler is killed, or Airflow's
database is locked. The independent checker judges what each of these leaves behind, and each run after it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from tests.airflow.gated import GATES, Waiting, gated_pipeline, runs_at
from tests.airflow.project import Project, ServedAirflow
from tests.airflow.served import migrate

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def at_each_gate(served_project: Project, served: LocalAirflow, broker: Broker) -> list[Waiting]:
    """A run in each task, all at once."""
    return runs_at(GATES, served_project, served, broker)


@pytest.mark.slow
def test_s8_fault_35_a_task_marked_successful_while_it_works_proves_nothing_and_the_next_run_goes_on(
    at_each_gate: list[Waiting],
) -> None:
    """Airflow ends its process, and starts the task after it. Only replay's outcomes let settle go on (I1); without
    them it fails, and the turn stays open for the next run."""
    for at in at_each_gate:
        at.lane.mark(at.run, GATES[at.gate], "success")
    for at in at_each_gate:
        at.wait_for_end_of_process()
        at.lane.open(at.gate)
    for at in at_each_gate:
        assert at.lane.wait(at.run) == ("failed" if at.gate == "handling" else "success"), at.gate
        assert at.lane.airflow.task_states(at.lane.dag, at.run)[GATES[at.gate]] == "success"
        assert at.lane.committed() == (3 if at.gate == "planned" else None), at.gate
        assert at.lane.attempts(at.run, "settle") == 1, "that there are no outcomes is a fatal error, not tried again"
        at.lane.judge()
        assert at.lane.run() == "success"
        at.lane.check_all_acked(3, at.calls)


@pytest.mark.deep
def test_fault_35_a_task_cleared_while_it_works_is_done_again_and_the_run_goes_on(at_each_gate: list[Waiting]) -> None:
    for at in at_each_gate:
        at.lane.airflow.clear(at.lane.dag, at.run, GATES[at.gate])
    for at in at_each_gate:
        at.wait_for_end_of_process()
        at.lane.open(at.gate)
    for at in at_each_gate:
        assert at.lane.wait(at.run) == "success", at.gate
        at.lane.check_all_acked(3, at.calls)


@pytest.mark.release
def test_s53_fault_35_tasks_of_a_finished_run_that_are_cleared_one_by_one_take_the_next_turn(
    served_project: Project, served: LocalAirflow, broker: Broker
) -> None:
    """Each does its own step alone, in any order, and repeats nothing that was acked."""
    gated = gated_pipeline(served_project, served, broker)
    run = gated.airflow.trigger(gated.dag)
    assert gated.wait(run) == "success"
    gated.produce(2)
    tasks = ("settle", 3, 3), ("replay", 3, 3), ("plan", 3, 3), ("replay", 3, 5), ("settle", 5, 5)
    for task, committed, calls in tasks:
        gated.airflow.clear(gated.dag, run, task, downstream=False)
        assert gated.wait(run) == "success"
        assert (gated.committed(), gated.calls().total()) == (committed, calls), task
        gated.judge()
    gated.check_all_acked(5, {1})


LOCK_SECONDS = 60
LOCK = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
"""
"""Run in a process of its own: a connection that is closed in this one would break its other locks of the file."""
SOON = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
}
"""Airflow finds a task without a scheduler, or without a process, within a minute; by default it takes five."""


@pytest.fixture(scope="module")
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("broken"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    return project


@pytest.fixture(scope="module")
def airflow(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    """An Airflow of these tests alone, which they break."""
    home = tmp_path_factory.mktemp("airflow-broken")
    migrate(home)
    with ServedAirflow(home, project, SOON) as airflow:
        yield airflow


@pytest.fixture
def waiting(project: Project, airflow: LocalAirflow, broker: Broker) -> list[Waiting]:
    return runs_at(GATES, project, airflow, broker)


@pytest.mark.slow
def test_fault_35_tasks_whose_scheduler_is_killed_end_their_step_and_the_next_scheduler_goes_on(
    waiting: list[Waiting], airflow: LocalAirflow
) -> None:
    """The scheduler alone is killed, so no record is handled twice. test_deployments.py kills it with its tasks."""
    airflow.kill_scheduler()
    for at in waiting:
        at.lane.judge()
        at.lane.open(at.gate)
    for at in waiting:
        at.wait_for_end_of_process()
        at.wait_for_end_of_driver()
        assert at.lane.committed() == (3 if at.gate == "acked" else None)
        at.lane.judge()
    airflow.start_ended()
    for at in waiting:
        assert at.lane.wait(at.run) == "success", at.gate
        at.lane.check_all_acked(3, {1})


@contextmanager
def locked(airflow: LocalAirflow) -> Iterator[None]:
    """Locks Airflow's database for LOCK_SECONDS from the start of the block; at its end it is no longer locked."""
    command = [sys.executable, "-c", LOCK, str(airflow.home / "airflow.db"), str(LOCK_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        assert process.wait(LOCK_SECONDS + 60) == 0


@pytest.mark.release
def test_fault_35_runs_go_on_after_the_database_was_locked_for_60_seconds(
    waiting: list[Waiting], airflow: LocalAirflow
) -> None:
    """The tasks end their steps meanwhile, and can't report it. Scheduler and DAG processor end, and are started
    again."""
    with locked(airflow):
        for at in waiting:
            at.lane.open(at.gate)
    for at in waiting:
        at.lane.judge()
    airflow.start_ended()
    for at in waiting:
        assert at.lane.wait(at.run) == "success" or at.lane.run() == "success", at.gate
        at.lane.check_all_acked(3, at.calls)
