"""The Kafka connection that a pipeline file names, read by Airflow's provider."""

import json

import pytest

from ackline.airflow.connections import kafka_connection
from ackline.errors import ConfigError
from ackline.pipeline.pipeline import Pipeline


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
    extra = {"bootstrap.servers": "kafka:9092"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"conn_type": "kafka", "extra": extra}))
    assert kafka_connection(pipeline("kafka_shop")) == extra
