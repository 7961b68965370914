"""Fault 35 in a real Airflow: a user marks a task as successful or clears it, the scheduler is killed, or Airflow's
database is locked. The independent checker judges what each of these leaves behind, and each run after it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from tests.airflow.gated import GATES, SECONDS, Gated, task_of
from tests.airflow.project import Project, drivers, served_airflow
from tests.airflow.served import migrate

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1200)]


def gated_pipeline(project: Project, airflow: LocalAirflow, broker: Broker, name: str) -> Gated:
    """A pipeline with three records."""
    broker.create_topic(name)
    made = Gated(project, airflow, name)
    made.produce()
    return made


# ---- a task is marked or cleared by hand, in the Airflow of the session


@pytest.fixture
def gated(served_project: Project, served: LocalAirflow, broker: Broker, pipeline: str) -> Gated:
    return gated_pipeline(served_project, served, broker, pipeline)


@pytest.mark.parametrize("gate", GATES)
def test_fault_35_a_task_marked_successful_while_it_works_proves_nothing_and_the_next_run_goes_on(
    gated: Gated, gate: str
) -> None:
    """Airflow ends its process, and starts the task after it. Only replay's outcomes let settle go on (I1)."""
    run, process = gated.run_to(gate)
    gated.mark(run, task_of(gate), "success")
    assert wait_until(lambda: not process.alive(), SECONDS)
    gated.open(gate)
    assert gated.wait(run) == ("failed" if gate == "handling" else "success")
    assert gated.airflow.task_states(gated.dag, run)[task_of(gate)] == "success"
    assert gated.committed() == (3 if gate == "planned" else None)
    gated.judge()
    assert gated.run() == "success"
    gated.check_all_acked(3, {1, 2} if gate == "handling" else {1})


@pytest.mark.parametrize("gate", GATES)
def test_fault_35_a_task_cleared_while_it_works_is_done_again_and_the_run_goes_on(gated: Gated, gate: str) -> None:
    run, process = gated.run_to(gate)
    gated.airflow.clear(gated.dag, run, task_of(gate))
    assert wait_until(lambda: not process.alive(), SECONDS)
    gated.open(gate)
    assert gated.wait(run) == "success"
    gated.check_all_acked(3, {1, 2} if gate == "handling" else {1})


def test_s53_fault_35_tasks_of_a_finished_run_that_are_cleared_one_by_one_take_the_next_turn(gated: Gated) -> None:
    """Each does its own step alone, in any order, and repeats nothing that was acked."""
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


# ---- Airflow itself breaks


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
    with served_airflow(home, project, SOON) as airflow:
        yield airflow


@pytest.fixture
def alone(project: Project, airflow: LocalAirflow, broker: Broker, pipeline: str) -> Gated:
    return gated_pipeline(project, airflow, broker, pipeline)


@pytest.mark.parametrize("gate", ["planned", "handling", "acked"])
def test_fault_35_a_task_whose_scheduler_is_killed_ends_its_step_and_the_next_scheduler_goes_on(
    alone: Gated, airflow: LocalAirflow, gate: str
) -> None:
    """The scheduler alone is killed, so no record is handled twice."""
    run, process = alone.run_to(gate)
    airflow.kill_scheduler()
    alone.judge()
    alone.open(gate)
    assert wait_until(lambda: not process.alive() and not drivers(alone.name), SECONDS)
    assert alone.committed() == (3 if gate == "acked" else None)
    alone.judge()
    airflow.start_ended()
    assert alone.wait(run) == "success"
    alone.check_all_acked(3, {1})


@pytest.mark.parametrize("gate", ["planned", "handling", "acked"])
def test_fault_35_a_task_that_is_killed_with_its_scheduler_is_done_again(
    alone: Gated, airflow: LocalAirflow, gate: str
) -> None:
    """The container of the scheduler ends, with tasks and Spark. The next scheduler finds that the task has no process
    any more."""
    run, process = alone.run_to(gate)
    airflow.kill_scheduler(tasks=True)
    assert not process.alive()
    alone.judge()
    alone.open(gate)
    airflow.start_ended()
    assert alone.wait(run) == "success"
    alone.check_all_acked(3, {1, 2} if gate == "handling" else {1})


@contextmanager
def locked(airflow: LocalAirflow) -> Iterator[None]:
    """Locks Airflow's database for LOCK_SECONDS from the start of the block; at its end it is no longer locked."""
    command = [sys.executable, "-c", LOCK, str(airflow.home / "airflow.db"), str(LOCK_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        assert process.wait(LOCK_SECONDS + 60) == 0


@pytest.mark.parametrize("gate", ["planned", "handling", "acked"])
def test_fault_35_a_run_goes_on_after_the_database_was_locked_for_60_seconds(
    alone: Gated, airflow: LocalAirflow, gate: str
) -> None:
    """The task ends its step meanwhile, and can't report it. Scheduler and DAG processor end, and are started again."""
    run, _ = alone.run_to(gate)
    with locked(airflow):
        alone.open(gate)
    alone.judge()
    airflow.start_ended()
    assert alone.wait(run) == "success" or alone.run() == "success"
    alone.check_all_acked(3, {1, 2} if gate == "handling" else {1})
