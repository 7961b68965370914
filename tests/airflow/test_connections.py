"""The Airflow connections of Kafka, of Spark, and of the tables' object store, whose login reaches the driver alone."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackline.airflow.connections import kafka_connection, use_audit_connection
from ackline.airflow.driver import SECRETS, Secrets
from ackline.airflow.driver_hook import SPARK_CONNECTION, DriverHook, driver_environment, handed_over
from ackline.delta.object_store import options_of, use_options
from ackline.errors import ConfigError
from ackline.forms import connections
from ackline.local.connection import connection_of
from ackline.pipeline.pipeline import Pipeline
from ackline.spark.master import chosen_master
from tests.airflow.project import CANARY, ROOT

FIELDS = {"conn_type": "aws", "login": "key", "password": CANARY, "extra": {"region_name": "eu-west-1"}}
OPTIONS = {"aws_access_key_id": "key", "aws_secret_access_key": CANARY, "aws_region": "eu-west-1"}


@pytest.fixture(autouse=True)
def _own_options(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ACKLINE_AUDIT", "s3://bucket/audit")
    monkeypatch.setenv("ACKLINE_AUDIT_CONNECTION", "store")
    monkeypatch.delenv("ACKLINE_SPARK_MASTER", raising=False)
    connections._of_airflow.cache_clear()
    yield
    use_options(None)


def test_an_airflow_connection_is_used_by_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(FIELDS))
    assert use_audit_connection() == OPTIONS
    assert options_of("s3://bucket/audit/orders/plans") == OPTIONS


def test_a_connection_that_is_not_defined_is_named() -> None:
    with pytest.raises(ConfigError, match="the Airflow connection store, which ACKLINE_AUDIT_CONNECTION names"):
        use_audit_connection()


def test_tables_on_a_disk_need_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", "/mnt/audit")
    assert use_audit_connection() is None


def test_i13_the_login_reaches_the_driver_by_a_pipe_and_no_process_above_it_or_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JVM of spark-submit starts before the driver, and starts the processes of the handlers."""
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(FIELDS))
    secrets, environment = Secrets({"bootstrap.servers": "b:1"}, use_audit_connection()), driver_environment()
    script = """
import os, ackline.airflow.driver as driver
from ackline.delta.object_store import use_options, options_of
def replay(name, run_id, secrets, *_):
    use_options(secrets.store_options)
    return f"{secrets.connection} {len(options_of('s3://b/x'))} options, {'ACKLINE_SECRETS' in os.environ}"
driver.take_turns = replay
driver.end_with_task = lambda task, **_: None
driver.main(["orders", "--run-id", "r"])
"""
    with handed_over(secrets.encode()) as pipe:
        environment[SECRETS] = pipe
        assert CANARY not in " ".join(environment.values())
        run = [sys.executable, "-c", script]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
        assert not Path(pipe).exists()
    assert done.stdout.strip() == "{'bootstrap.servers': 'b:1'} 3 options, False"


def test_i13_secrets_of_a_driver_that_ends_before_it_reads_them_stay_nowhere() -> None:
    with handed_over(CANARY * 100_000) as pipe:
        folder = Path(pipe).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert "ackline-secrets" not in [thread.name for thread in threading.enumerate()]


def pipeline(connection: str) -> Pipeline:
    kafka = {"connection": connection, "group_id": "g", "topics": ["orders"]}
    return Pipeline.model_validate({"name": "orders", "handler": "a:b", "dead_letter": "none", "kafka": kafka})


@pytest.mark.parametrize("name", ["kafka_shop", "kafka_default"])
def test_a_connection_that_is_not_defined_fails_and_no_dev_broker_stands_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackline.local.connection.dev_bootstrap", lambda: "127.0.0.1:9092")
    with pytest.raises(ConfigError, match=f"connection {name}, which pipeline orders names, is not defined"):
        kafka_connection(pipeline(name))


def test_a_connection_that_is_defined_gives_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks are left out, and none is imported: they would be named as those of any connection."""
    extra = {"bootstrap.servers": "kafka:9092"}
    defined = {"conn_type": "kafka", "extra": {**extra, "error_cb": "os.abort"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps(defined))
    assert kafka_connection(pipeline("kafka_shop")) == extra


def test_a_connection_is_read_by_airflows_public_interface_alone() -> None:
    private = re.compile(r"\._(?!build_spark_submit_command)[a-z]\w*\(")
    for name in ("connections.py", "lookup.py"):
        assert not private.findall((ROOT / "include/ackline/airflow" / name).read_text())


IN_A_TASK = """
import json
from ackline.airflow.connections import kafka_connection, use_audit_connection
from ackline.airflow.driver import Secrets
from ackline.airflow.driver_hook import DriverHook
from tests.airflow.test_connections import pipeline
hook = DriverHook(Secrets(), conn_id="spark_default")
print(json.dumps([kafka_connection(pipeline("kafka_shop")), use_audit_connection(), hook._connection["master"]]))
"""


def test_the_command_and_a_task_read_the_same_connection_from_a_secrets_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Airflow's own backend of a file stands for all of them. It comes before the variable, and no log has it (I13)."""
    extra = {"bootstrap.servers": "kafka:9092", "sasl.password": CANARY}
    defined = {"kafka_shop": {"conn_type": "kafka", "extra": extra}, "store": FIELDS, "spark_default": CLUSTER}
    (tmp_path / "connections.json").write_text(json.dumps(defined))
    kwargs = json.dumps({"connections_file_path": str(tmp_path / "connections.json")})
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "airflow.secrets.local_filesystem.LocalFilesystemBackend")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", kwargs)
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"conn_type": "kafka", "extra": {"a": "b"}}))
    task = subprocess.run([sys.executable, "-c", IN_A_TASK], capture_output=True, text=True, check=True)
    assert json.loads(task.stdout.splitlines()[-1]) == [extra, OPTIONS, "spark://cluster:7077"]
    assert connection_of(pipeline("kafka_shop")) == extra
    assert chosen_master().url == "spark://cluster:7077"
    printed = capfd.readouterr()
    assert CANARY not in printed.out + printed.err + task.stderr + "".join(task.stdout.splitlines()[:-1])


EXECUTORS = {
    "LocalExecutor": None,
    "airflow.executors.local_executor.LocalExecutor:here": None,
    "CeleryExecutor": "CeleryExecutor",
    "LocalExecutor, CeleryExecutor": "CeleryExecutor",
    "LocalExecutor;shop=airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor:k8s":
        "airflow.providers.cncf.kubernetes.executors.kubernetes_executor.KubernetesExecutor",
}  # fmt: skip


@pytest.mark.parametrize(("executor", "elsewhere"), EXECUTORS.items())
def test_the_default_folder_of_the_tables_is_refused_where_tasks_run_on_several_hosts(
    executor: str, elsewhere: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """settle would look on one host for what replay has stored on another."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setenv("ACKLINE_AUDIT", "/mnt/audit")
    assert use_audit_connection() is None
    monkeypatch.delenv("ACKLINE_AUDIT")
    if elsewhere is None:
        assert use_audit_connection() is None
        return
    with pytest.raises(ConfigError, match=f"runs its tasks by {re.escape(elsewhere)} .*: set it to a folder that all"):
        use_audit_connection()


VARIABLE = f"AIRFLOW_CONN_{SPARK_CONNECTION.upper()}"
CLUSTER = {"conn_type": "spark", "host": "spark://cluster:7077"}


def command() -> list[str]:
    """Returns the command that the hook would start."""
    hook = DriverHook(Secrets({"sasl.password": CANARY}), conn_id=SPARK_CONNECTION, name="ackline-orders")
    return list(hook._build_spark_submit_command("replay.py"))


def master() -> str:
    return command()[command().index("--master") + 1]


def test_without_the_connection_the_driver_runs_on_this_machine() -> None:
    """The provider alone would look for a YARN cluster."""
    assert master() == "local[*]"


@pytest.mark.parametrize("host", ["local[2]", "spark://cluster:7077", "yarn"])
def test_the_connection_decides_on_the_cluster(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """The environment, with Kafka's password, is never among the arguments (I13)."""
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "spark", "host": host}))
    assert master() == host
    assert CANARY not in " ".join(command())


def test_only_this_machines_driver_is_bound_to_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of a cluster must reach the driver."""
    assert "spark.driver.host=127.0.0.1" in command()
    monkeypatch.setenv(VARIABLE, json.dumps(CLUSTER))
    assert "spark.driver.host=127.0.0.1" not in command()


def test_on_a_standalone_cluster_the_driver_announces_its_address_in_the_network_of_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine with several networks, Spark may choose an address that no executor reaches."""
    monkeypatch.setenv(VARIABLE, json.dumps({**CLUSTER, "host": "spark://127.0.0.1", "port": 7077}))
    assert "spark.driver.host=127.0.0.1" in command()
    monkeypatch.setenv(VARIABLE, json.dumps({**CLUSTER, "host": "yarn"}))
    assert not [argument for argument in command() if argument.startswith("spark.driver.host")]


@pytest.mark.parametrize("jars", ["packages", "cluster"])
def test_the_submit_command_names_no_jar_where_spark_or_the_cluster_has_them(
    jars: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(argument.endswith(".jar") for argument in command())
    monkeypatch.setenv("ACKLINE_JARS", jars)
    assert not any(argument.endswith(".jar") for argument in command())
    packages = [argument for argument in command() if argument.startswith("spark.jars.packages=")]
    assert len(packages) == (jars == "packages")


def test_with_a_spark_connect_server_no_jvm_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "spark", "host": "sc://cluster", "port": 15002}))
    assert command() == [sys.executable, "replay.py"]


def test_the_driver_gets_the_master_to_choose_the_settings_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(CLUSTER))
    hook = DriverHook(Secrets(), conn_id=SPARK_CONNECTION, name="ackline-orders")
    assert hook._environment["ACKLINE_SPARK_MASTER"] == "spark://cluster:7077"


def test_deploy_mode_cluster_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver on another machine could get the password only from an argument."""
    monkeypatch.setenv(VARIABLE, json.dumps({**CLUSTER, "extra": {"deploy-mode": "cluster"}}))
    with pytest.raises(ConfigError, match="set it to `client`"):
        command()
