"""The Spark driver without Airflow, started as spark-submit does: its exit status, its secrets, and its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow.driver import SECRETS, TASK, Secrets, describe_unexpected, exit_status_of, progress_lines
from ackline.airflow.driver_hook import SPARK_CONNECTION, DriverHook, driver_environment, handed_over
from ackline.airflow.operators import airflow_errors
from ackline.errors import (
    AcklineError,
    ConfigError,
    GroupMoved,
    LedgerError,
    MissingRights,
    NoProof,
    TransientError,
    TurnVoided,
)
from ackline.lane.adapters import open_adapters
from ackline.local.processes import wait_until
from ackline.pipeline.pipeline import load
from ackline.spark.progress import Handled
from ackline.steps.plan import plan
from ackline.steps.settle import settle
from ackline.tables.lease import ProcessIdentity
from tests.airflow.project import CANARY, ROOT, Project, produce

WATCHING = """
import subprocess, sys, time
from ackline.airflow.driver import end_with_task
from ackline.tables.lease import ProcessIdentity
task = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
end_with_task(ProcessIdentity.of(task.pid))
print(task.pid, flush=True)
time.sleep(600)
"""

LEAVING = """
import atexit, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
atexit.register(print, "left the job", flush=True)
end_with_task(ProcessIdentity.of(task.pid), has_jvm=False)
"""


def run_driver(project: Project, pipeline: str, connection: str | None) -> "subprocess.CompletedProcess[str]":
    """Run spark_jobs/replay.py alone; `connection` is the Kafka connection as JSON."""
    command = [sys.executable, str(ROOT / "spark_jobs" / "replay.py"), pipeline, "--run-id=manual__1"]
    with handed_over(json.dumps({"connection": json.loads(connection or "null")})) as pipe:
        environment = {**os.environ, **project.environment, SECRETS: pipe}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.parametrize(("error", "status"), [
    (TransientError, 1), (ConfigError, 2), (MissingRights, 3), (NoProof, 4), (GroupMoved, 4), (LedgerError, 4),
    (TurnVoided, 5),
])  # fmt: skip
def test_the_exit_status_depends_on_whether_the_error_may_be_retried(error: type[AcklineError], status: int) -> None:
    """1 is retried; 2 is a configuration error; 3 needs an operator; 4 is a refusal of the ledger or the group."""
    assert exit_status_of(error("no")) == status


def test_the_log_of_the_task_gets_a_line_about_the_turn_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    show = progress_lines("orders", lambda: now)
    for second in range(100):
        now = float(second)
        show(Handled(100 * second, 12_000, 100.0))
    assert capsys.readouterr().out.splitlines() == [
        "orders: 3,000 of 12,000 records · 100/s · 1 min 30 s left",
        "orders: 6,000 of 12,000 records · 100/s · 1 min 0 s left",
        "orders: 9,000 of 12,000 records · 100/s · 30 s left",
    ]


def test_airflow_retries_only_transient_errors() -> None:
    """Errors of the steps inside the task; those of replay come as the driver's exit status."""
    with pytest.raises(TransientError), airflow_errors():
        raise TransientError("away")
    for error in (ConfigError("wrong"), NoProof("no")):
        with pytest.raises(AirflowFailException), airflow_errors():
            raise error


def test_i13_an_unexpected_error_is_reported_without_its_text() -> None:
    """Spark's errors quote records."""
    payload = json.dumps({"name": CANARY})
    try:
        raise ValueError(payload)
    except ValueError as error:
        text = describe_unexpected(error)
    assert text.endswith("ackline: unexpected builtins.ValueError")
    assert CANARY not in text


def test_a_pipeline_that_does_not_exist_is_a_configuration_error(project: Project) -> None:
    project.write("orders", "orders")
    done = run_driver(project, "other", "null")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("ackline: no pipeline named other")


def test_a_handler_that_does_not_import_is_refused_before_the_turn_is_touched(project: Project) -> None:
    """A handler may be deployed between plan and replay. At most once, a claimed turn would be lost."""
    project.write("orders", "orders", handler="tests.support.journal:gone", guarantee="at_most_once")
    done = run_driver(project, "orders", json.dumps({"bootstrap.servers": "127.0.0.1:1"}))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "handler tests.support.journal:gone does not import" in done.stderr


def test_a_broker_that_is_away_is_a_transient_error_and_its_password_is_not_shown(
    project: Project, pipeline: str, source: str
) -> None:
    """The driver reads the connection from its environment only."""
    produce(project.bootstrap, source, {})
    file = project.write(pipeline, source)
    here = {"bootstrap.servers": project.bootstrap}
    with open_adapters(load(file), here, run_id="manual__1", actor="test", audit=project.audit) as adapters:
        plan(adapters)
    done = run_driver(project, pipeline, json.dumps({"bootstrap.servers": "127.0.0.1:1", "sasl.password": CANARY}))
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert CANARY not in done.stdout + done.stderr


def test_i13_the_driver_inherits_none_of_airflows_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold secrets. Variables that a handler may need are kept."""
    for variable in ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_OTHER", "__AIRFLOW_SUPERVISOR_FD"):
        monkeypatch.setenv(variable, CANARY)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    environment = driver_environment()
    assert CANARY not in environment.values()
    assert environment["AWS_REGION"] == "eu-central-1"
    assert ProcessIdentity.decode(environment[TASK]) == ProcessIdentity.of(os.getpid())


def test_a_client_of_spark_connect_leaves_its_job_when_its_task_is_gone_and_never_ends_its_parent(
    tmp_path: Path,
) -> None:
    """It has no JVM above it. Leaving the job as after Ctrl-C has the server end it."""
    script = WATCHING.replace("end_with_task(ProcessIdentity.of(task.pid))", LEAVING)
    parent = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    command = [sys.executable, "-c", parent, script]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        os.kill(int(top.stdout.readline()), signal.SIGKILL)
        assert [line.strip() for line in top.stdout] == ["left the job", "1"]
    assert top.returncode == 0


@pytest.mark.parametrize("gone", ["task", "parent"])
def test_the_driver_ends_when_its_task_or_its_parent_is_gone(tmp_path: Path, gone: str) -> None:
    """The driver's parent is the JVM, which ends with it."""
    # A shell stands for the JVM: it starts the driver and waits for it.
    script = tmp_path / "driver.py"
    script.write_text(WATCHING)
    jvm = subprocess.Popen(
        ["bash", "-c", f"'{sys.executable}' '{script}' & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert jvm.stdout is not None
    driver, task = (ProcessIdentity.of(int(jvm.stdout.readline())) for _ in range(2))
    assert driver is not None
    assert task is not None
    try:
        os.kill(task.pid if gone == "task" else jvm.pid, signal.SIGKILL)
        assert jvm.wait(120) != 0
        assert wait_until(lambda: not driver.alive(), 120)
    finally:
        for process in (driver, task):
            if process.alive():
                os.kill(process.pid, signal.SIGKILL)


LOOKS_AROUND = """
import os, pathlib

def handle(record):
    process = os.getpid()
    while process > 1:  # of the handler, the worker of Spark, the JVM, and whatever has started it
        folder = pathlib.Path("/proc", str(process))
        assert b"sasl.password" not in (folder / "environ").read_bytes(), folder.joinpath("comm").read_text()
        process = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    assert "sasl.password" not in str(dict(os.environ))
"""


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_i13_no_process_of_a_handler_or_above_it_gets_the_login_of_the_driver(
    project: Project, pipeline: str, source: str, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """With a local master the JVM that starts the handlers' processes is the one that spark-submit has started."""
    produce(project.bootstrap, source, {})
    file = project.write(pipeline, source, handler="looks_around:handle", handler_isolation=isolation)
    (project.include / "looks_around.py").write_text(LOOKS_AROUND)
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    connection = {"bootstrap.servers": project.bootstrap, "sasl.password": CANARY}
    with open_adapters(load(file), connection, run_id="manual__1", actor="test", audit=project.audit) as adapters:
        plan(adapters)
        hook = DriverHook(
            Secrets(connection),
            conn_id=SPARK_CONNECTION,
            name="ackline-test",
            application_args=[pipeline, "--run-id=manual__1"],
        )
        hook.submit(str(ROOT / "spark_jobs" / "replay.py"))
        settle(adapters)
    assert project.outcomes(pipeline) == [(0, 1, "acked")]
