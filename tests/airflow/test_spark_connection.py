"""The driver runs on the master of the Airflow connection `spark_default`, or on this machine if it is not defined."""

import json

import pytest

from ackline.airflow.driver_hook import SPARK_CONNECTION, DriverHook
from ackline.errors import ConfigError
from tests.airflow.project import CANARY

VARIABLE = f"AIRFLOW_CONN_{SPARK_CONNECTION.upper()}"
CLUSTER = {"conn_type": "spark", "host": "spark://cluster:7077"}


def command() -> list[str]:
    """Returns the command that the hook would start."""
    hook = DriverHook({"SECRET": CANARY}, conn_id=SPARK_CONNECTION, name="ackline-orders")
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


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"conn_type": "spark", "host": "sc://cluster", "port": 15002}))
    with pytest.raises(ConfigError, match="spark_default names sc://cluster:15002, a Spark Connect server"):
        command()


def test_the_driver_gets_the_master_to_choose_the_settings_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(CLUSTER))
    hook = DriverHook({"A": "1"}, conn_id=SPARK_CONNECTION, name="ackline-orders")
    assert hook._environment == {"A": "1", "ACKLINE_SPARK_MASTER": "spark://cluster:7077"}


def test_deploy_mode_cluster_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver on another machine could get the password only from an argument."""
    monkeypatch.setenv(VARIABLE, json.dumps({**CLUSTER, "extra": {"deploy-mode": "cluster"}}))
    with pytest.raises(ConfigError, match="set it to `client`"):
        command()
