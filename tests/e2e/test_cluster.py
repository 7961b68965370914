"""Executors elsewhere: a real standalone cluster whose workers have networks, host names and mounts of their own.

The workers see neither the project's sources nor the handlers: both travel with the job. They share the tables, the
journal and the gates, as they would by NFS.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from ackline.local import events
from ackline.local.processes import wait_until
from tests.e2e.cluster_lab import (
    HANDLER,
    NEEDS_A_PACKAGE,
    QUICK_START,
    SECONDS,
    START,
    Ended,
    Lane,
    Machines,
    checked,
    ended,
)
from tests.e2e.commands import ROOT, run_in_session
from tests.support.spark_cluster import Worker

pytestmark = pytest.mark.timeout(600)
"""A test has up to three runs, each of which starts a driver and executors."""


@pytest.mark.release
def test_the_demo_s_records_are_proved_though_the_workers_have_no_copy_of_the_project(two_workers: Machines) -> None:
    """The package and the handlers travel with the job, authenticated and encrypted. Four runs share a session."""
    machines, folder = two_workers, two_workers.private / "demo"
    shutil.copytree(ROOT / "include" / "handlers", folder / "handlers")
    (folder / "pipelines").mkdir()
    text = (ROOT / "include" / "pipelines" / "orders.yaml").read_text()
    spark = yaml.safe_dump({"spark": {"executor_memory": "512m", "conf": QUICK_START}})
    (folder / "pipelines" / "orders.yaml").write_text(f"{text}\n{spark}")
    bootstrap, audit = machines.broker.bootstrap, machines.shared / "demo"
    machines.broker.create_topic("orders", 4)
    machines.broker.create_topic("orders.dead")
    counts = events.produce_orders(bootstrap, "orders", events.orders(20_000))
    times = [(START + timedelta(seconds=seconds)).isoformat() for seconds in (0, 1, 10, 30)]
    script = f"""
import sys
from ackline.cli import main
for now in {times!r}:
    sys.argv = ["ackline", "run", "orders", "--json", "--now", now]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
"""
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}
    env = {
        **os.environ, **machines.cluster.environment, "ACKLINE_PIPELINES": str(folder / "pipelines"),
        "ACKLINE_AUDIT": str(audit), "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = checked(machines, "orders", "orders-replay", "orders", audit, "--dead-letter-topic", "orders.dead",
                    "--max-retries", "3", "--settled")  # fmt: skip
    totals = {name: report["totals"][name] for name in ("records", "acked", "dead", "skipped")}
    assert (report["violations"], totals) == ([], {
        "records": counts.records, "acked": counts.acked, "dead": counts.dead, "skipped": counts.skipped,
    })  # fmt: skip


def killed_in_mid_handler(machines: Machines, killed: str, guarantee: str) -> tuple[Lane, Ended]:
    """Runs a pipeline, and kills what calls the handler for the record with the gate: a worker `machine` with all that
    runs there, or the JVM of its `executor` alone. Spark finds out in different ways. Returns how the run ended."""
    lane = Lane(machines, f"{killed}-{guarantee.replace('_', '-')}", settings={"guarantee": guarantee})
    lane.produce(200, gate=100)
    run = lane.start()
    lane.wait_for_call(0, 100)
    assert wait_until(lambda: lane.folder_at_gate() != "", SECONDS)
    folder = lane.folder_at_gate()
    if killed == "machine":
        machines.cluster.remove(next(worker for worker in machines.cluster.workers if f"/{worker.name}/" in folder))
    else:
        machines.cluster.kill_executor(folder)
    lane.gate.touch()
    return lane, ended(run)


@pytest.mark.slow
def test_fault_7_a_machine_lost_in_mid_handler_loses_nothing_at_least_once(two_workers: Machines) -> None:
    """A driver that waits for a machine that is gone can miss the heartbeats of the other executor, and replace it too.

    So the record in hand is called at least once more, not exactly once more.
    """
    lane, run = killed_in_mid_handler(two_workers, "machine", "at_least_once")
    assert run.status == 0, run.errors
    assert run.printed["outcomes"] == {"acked": 400}
    calls = lane.calls()
    assert set(calls) == {(partition, offset) for partition in range(2) for offset in range(200)}
    assert calls[0, 100] >= 2
    assert lane.violations("--settled") == []


@pytest.mark.deep
def test_i7_fault_7_an_executor_killed_in_mid_handler_repeats_nothing_at_most_once(two_workers: Machines) -> None:
    """What it was handed and never reported is lost after the grace period."""
    lane, run = killed_in_mid_handler(two_workers, "executor", "at_most_once")
    assert run.status == 1
    assert "Spark tried a task again under at_most_once" in run.errors
    assert set(lane.calls().values()) == {1}
    later = lane.run(START + timedelta(hours=2))
    assert (later.status, later.printed["outcomes"]) == (0, {"lost": 400}), later.errors
    assert set(lane.calls().values()) == {1}
    assert lane.violations("--settled") == []


NAMES_ITS_FOLDER = (
    HANDLER
    + """
    with open(os.path.dirname(os.environ["ACKLINE_JOURNAL"]) + "/folders", "a") as file:
        file.write(os.getcwd() + "\\n")
"""
)
AIRFLOW_TASKS = """
import json, sys
from pathlib import Path
from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator
from ackline.pipeline.folder import load_pipeline

folder, name = sys.argv[1:]
pipeline = load_pipeline(Path(folder), name)
returned = {}

class Task:
    def xcom_pull(self, task_ids):
        return returned.get(task_ids)

for task, operator in (("plan", PlanOperator), ("replay", ReplayOperator), ("settle", SettleOperator)):
    context = {"run_id": "scheduled__1", "ti": Task()}
    returned[task] = operator(task_id=task, pipeline=pipeline).execute(context)
print(json.dumps(returned["settle"]))
"""


@pytest.mark.release
def test_the_tasks_of_a_dag_run_on_the_cluster_that_the_connection_names(two_workers: Machines) -> None:
    """Airflow's hook starts spark-submit with the arguments that it builds. Nothing else names the master."""
    lane = Lane(two_workers, "by-airflow", NAMES_ITS_FOLDER)
    lane.produce(100)
    connection = {"conn_type": "spark", "host": two_workers.cluster.url}
    env = {
        **os.environ, **two_workers.cluster.environment, "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
        "ACKLINE_PIPELINES": str(lane.private / "pipelines"), "ACKLINE_AUDIT": str(lane.audit),
        "AIRFLOW_HOME": str(lane.private),
    }  # fmt: skip
    del env["ACKLINE_SPARK_MASTER"]
    command = [sys.executable, "-c", AIRFLOW_TASKS, str(lane.private / "pipelines"), lane.name]
    done = run_in_session(command, env, ROOT, SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["turn"] == 1
    assert f"--master {two_workers.cluster.url}" in done.stdout + done.stderr
    assert set(lane.calls().values()) == {1}
    assert len(lane.calls()) == 200
    workers = {worker.name for worker in two_workers.cluster.workers}
    folders = set((lane.shared / "folders").read_text().splitlines())
    assert all(workers & set(Path(folder).parts) for folder in folders), folders
    assert lane.violations("--settled") == []


BIG = {"spark": {"executor_memory": "1200m"}}
"""Settings of a pipeline whose executors fit on a large worker only."""


@contextmanager
def large_worker(machines: Machines, *hidden: Path) -> Iterator[Worker]:
    """A worker on which alone the executors of a `BIG` pipeline fit. It does not see the folders `hidden` either."""
    worker = machines.cluster.add_worker(memory="1500m", hidden=[ROOT / "include", machines.private, *hidden])
    try:
        machines.cluster.wait_for_workers()
        yield worker
    finally:
        machines.cluster.remove(worker)


@pytest.mark.slow
def test_a_worker_that_does_not_share_the_tables_is_refused_and_nothing_is_stored(machines: Machines) -> None:
    lane = Lane(machines, "private-tables", settings=BIG)
    lane.produce(10)
    hidden = lane.hide_tables()
    with large_worker(machines, *filter(None, [hidden])) as worker:
        run = lane.run()
    assert (run.status, lane.calls()) == (2, {}), run.errors
    folder = lane.environment.get("ACKLINE_AUDIT", str(lane.audit))
    assert f"the executor on {worker.host}: it does not see {folder}/" in run.errors
    assert "executors and driver do not share ACKLINE_AUDIT" in run.errors
    assert [row["kind"] for row in lane.table("settlements")] == ["genesis"] * 2
    assert lane.table("outcomes") == []
    assert not list((lane.audit / lane.name).glob(".probe*"))


@pytest.mark.release
def test_s50_a_worker_without_a_package_of_the_handler_costs_nothing_at_most_once(two_workers: Machines) -> None:
    """The probe finds it before the turn is claimed."""
    machines = two_workers
    lane = Lane(machines, "no-package", NEEDS_A_PACKAGE, {**BIG, "guarantee": "at_most_once"})
    lane.produce(10)
    packages = lane.private / "packages"
    packages.mkdir()
    (packages / "a_package_of_the_driver.py").write_text("")
    lane.environment["PYTHONPATH"] = str(packages)
    with large_worker(machines) as worker:
        run = lane.run()
    assert (run.status, lane.calls(), lane.committed()) == (2, {}, None), run.errors
    assert "No module named 'a_package_of_the_driver'" in run.errors
    assert f"the executor on {worker.host}: " in run.errors
    lane.configure(HANDLER, spark={})
    later = lane.run(START + timedelta(hours=3))
    assert (later.status, later.printed.get("outcomes")) == (0, {"acked": 20}), later.errors
    assert (len(lane.calls()), lane.violations("--settled")) == (20, [])


@pytest.mark.release
def test_two_pipelines_at_once_both_end(two_workers: Machines) -> None:
    lanes = [Lane(two_workers, f"at-once-{n}") for n in range(2)]
    for lane in lanes:
        lane.produce(50)
    for lane, run in [(lane, lane.start()) for lane in lanes]:
        done = ended(run)
        assert (done.status, done.printed.get("outcomes")) == (0, {"acked": 100}), done.errors
        assert lane.violations("--settled") == []
