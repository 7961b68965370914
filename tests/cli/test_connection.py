"""Which broker a connection of a pipeline file means, without Airflow."""

import json

import pytest

from ackline.errors import ConfigError
from ackline.local.connection import connection_of, uses_dev_broker
from ackline.pipeline.pipeline import Pipeline


def pipeline(**kafka: str) -> Pipeline:
    block = {"group_id": "g", "topics": ["orders"], **kafka}
    return Pipeline.model_validate({"name": "orders", "handler": "a:b", "dead_letter": "none", "kafka": block})


@pytest.fixture(autouse=True)
def dev_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of `ackline dev` that runs."""
    monkeypatch.setattr("ackline.local.connection.dev_bootstrap", lambda: "127.0.0.1:9092")


def test_an_undefined_connection_fails_although_a_dev_broker_runs() -> None:
    """Its name is of a real cluster; a mistyped one must not lead to another broker."""
    with pytest.raises(ConfigError, match="the Kafka connection kafka_shop is not defined here: set AIRFLOW") as error:
        connection_of(pipeline(connection="kafka_shop"))
    assert "ackline dev" not in str(error.value)
    assert not uses_dev_broker(pipeline(connection="kafka_shop"))


def test_kafka_default_alone_may_be_the_dev_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    default = pipeline(connection="kafka_default")
    assert connection_of(default) == {"bootstrap.servers": "127.0.0.1:9092"}
    assert uses_dev_broker(default)
    monkeypatch.setattr("ackline.local.connection.dev_bootstrap", lambda: None)
    with pytest.raises(ConfigError, match="kafka_default is not defined here") as error:
        connection_of(default)
    assert "start a broker with `ackline dev up`" in str(error.value)
    extra = {"bootstrap.servers": "kafka:9092"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    assert connection_of(default) == extra
    assert not uses_dev_broker(default)


def test_a_file_that_names_its_brokers_needs_no_connection() -> None:
    assert connection_of(pipeline(bootstrap_servers="127.0.0.1:1")) is None
    assert not uses_dev_broker(pipeline(bootstrap_servers="127.0.0.1:1"))


def test_plan_and_run_print_the_address_of_the_dev_broker(capsys: pytest.CaptureFixture[str]) -> None:
    from ackline.cli.run import note_dev_broker

    note_dev_broker(pipeline(connection="kafka_default"), {"bootstrap.servers": "127.0.0.1:9092"})
    assert "using the broker of `ackline dev` at 127.0.0.1:9092" in capsys.readouterr().err
    note_dev_broker(pipeline(bootstrap_servers="127.0.0.1:1"), {})
    assert capsys.readouterr().err == ""
