"""Where a command finds a connection: which place wins, and when Airflow has to be asked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ackline.errors import ConfigError, TransientError
from ackline.forms import connections
from ackline.forms.connections import Connection, connection_from_environment, find_connection
from ackline.pipeline.properties import properties_of_connection

HAS = {"conn_type": "kafka", "extra": {"bootstrap.servers": "airflow:9092"}}
IN_AIRFLOW, IN_VARIABLE = ({"bootstrap.servers": f"{place}:9092"} for place in ("airflow", "variable"))


@pytest.fixture(autouse=True)
def no_airflow_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Airflow that is installed and was never set up. Returns its home."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    connections._of_airflow.cache_clear()
    connections._file_of.cache_clear()
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids for which a process of Airflow was asked. It has the connection `kafka_shop` alone."""
    ids: list[str] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        assert command[:4] == [sys.executable, "-P", "-m", "ackline.airflow.lookup"]
        ids.append(command[4])
        found = HAS if command[4] == "kafka_shop" else None
        return subprocess.CompletedProcess(command, 0, json.dumps({"found": found}))

    monkeypatch.setattr(subprocess, "run", run)
    return ids


def properties(name: str = "kafka_shop") -> object:
    found = find_connection(name, "kafka.connection")
    return None if found is None else found.extra


def test_an_airflow_that_was_never_set_up_is_not_asked(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """To load it takes seconds, and it would make its database."""
    assert properties() is None
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"extra": IN_VARIABLE}))
    assert properties() == IN_VARIABLE
    assert asked == []


@pytest.mark.parametrize("setting", ["environment", "command", "airflow.cfg", "workers"])
def test_a_secrets_backend_comes_before_the_variable_as_in_a_task(
    setting: str, asked: list[str], no_airflow_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"extra": IN_VARIABLE}))
    if setting == "airflow.cfg":
        (no_airflow_here / "airflow.cfg").write_text("[secrets]\nbackend = module.Backend\nbackend_kwargs = %(x\n")
    else:
        names = {"environment": "SECRETS__BACKEND", "command": "SECRETS__BACKEND_CMD",
                 "workers": "WORKERS__SECRETS_BACKEND"}  # fmt: skip
        monkeypatch.setenv(f"AIRFLOW__{names[setting]}", "module.Backend")
    assert properties() == IN_AIRFLOW
    assert properties() == IN_AIRFLOW
    assert properties("kafka_other") is None
    assert asked == ["kafka_shop", "kafka_other"]


@pytest.mark.parametrize("setting", ["a database", "a file of SQLite"])
def test_the_database_of_airflow_comes_after_the_variable(
    setting: str, asked: list[str], no_airflow_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting == "a database":
        monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow@host/airflow")
    else:
        (no_airflow_here / "airflow.db").touch()
    assert properties() == IN_AIRFLOW
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"extra": IN_VARIABLE}))
    assert properties() == IN_VARIABLE
    assert asked == ["kafka_shop"]


def test_without_airflow_the_variable_is_the_only_place(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_spec", lambda _: None)
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "module.Backend")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow@host/airflow")
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"extra": IN_VARIABLE}))
    assert properties() == IN_VARIABLE
    assert properties("kafka_other") is None
    assert asked == []


def test_an_airflow_that_does_not_answer_is_an_error_and_no_connection_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run would use another cluster, or `local[*]`, instead of the connection that it could not read."""
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "module.Backend")
    monkeypatch.setattr(connections, "LOOKUP", "ackline.no_such_module")
    with pytest.raises(TransientError, match="`airflow connections get kafka_shop` shows why"):
        find_connection("kafka_shop", "kafka.connection")


@pytest.mark.parametrize(("text", "expected"), [
    ('{"conn_type": "spark", "host": "local[*]"}', Connection("spark", host="local[*]")),
    ('{"conn_type": "spark", "host": "h", "port": 7077, "extra": "{}"}', Connection("spark", host="h", port=7077)),
    ("spark://Host:7077", Connection("spark", host="Host", port=7077)),
    ("spark://local%5B2%5D", Connection("spark", host="local[2]")),
    ("spark://k8s://host:443?deploy-mode=client",
     Connection("spark", extra={"deploy-mode": "client"}, host="k8s://host", port=443)),
    ("aws://key:a%2Fb@/?region_name=eu", Connection("aws", "key", "a/b", {"region_name": "eu"})),
])  # fmt: skip
def test_both_forms_of_a_variable_are_read(text: str, expected: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", text)
    assert connection_from_environment("c", "key") == expected


def test_a_variable_without_a_connection_is_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", '{"extra": "canary"}')
    with pytest.raises(ConfigError, match="AIRFLOW_CONN_C is not a connection") as error:
        find_connection("c", "key")
    assert "canary" not in str(error.value)


def test_callbacks_that_observe_are_left_out_and_none_is_imported() -> None:
    extra = {"bootstrap.servers": "b:1", "error_cb": "os.abort", "on_commit": "os.abort", "stats_cb": None}
    assert properties_of_connection("c", extra) == {"bootstrap.servers": "b:1"}


@pytest.mark.parametrize("extra", [
    {"bootstrap.servers": "b:1", "oauth_cb": "shop.login"},
    {"bootstrap.servers": "b-1.x.c2.kafka.us-east-1.amazonaws.com:9098", "sasl.mechanism": "OAUTHBEARER"},
    {"bootstrap.servers": "bootstrap.c.eu.managedkafka.p.cloud.goog:9092", "sasl.mechanisms": "OAUTHBEARER"},
])  # fmt: skip
def test_a_login_by_a_python_callback_is_refused(extra: dict[str, str]) -> None:
    """Airflow's Kafka provider logs in so to the two managed services. Java's client can't call it."""
    with pytest.raises(ConfigError, match="the Kafka connection c logs in by a Python callback"):
        properties_of_connection("c", extra)
    assert properties_of_connection("c", {**extra, "oauth_cb": None, "sasl.mechanism": "PLAIN"})
