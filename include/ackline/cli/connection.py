"""Finds the Kafka connection that a pipeline names, without Airflow.

The variable AIRFLOW_CONN_<ID>, which Airflow reads too, defines it. The connection `kafka_default` alone may be
undefined: it is then the broker of `ackline dev up`, if that runs. Any other name is of a real cluster, and a mistyped
one must not lead to another broker.
"""

from collections.abc import Mapping
from typing import Any

from ackline.connection_variable import connection_from_environment, variable_of
from ackline.errors import ConfigError
from ackline.local.saved_broker import dev_bootstrap
from ackline.pipeline import Pipeline

DEV_CONNECTION = "kafka_default"
"""The connection that the broker of `ackline dev` stands for."""


def connection_of(pipeline: Pipeline) -> Mapping[str, Any] | None:
    """Returns the properties of the pipeline's connection; None if the file names bootstrap servers itself.

    Raises ConfigError if the connection is not defined, or can't be read.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    connection = connection_from_environment(name, "kafka.connection")
    if connection is not None:
        return connection.extra
    bootstrap = dev_bootstrap() if name == DEV_CONNECTION else None
    if bootstrap:
        return {"bootstrap.servers": bootstrap}
    ways = [f'set {variable_of(name)}=\'{{"conn_type": "kafka", "extra": {{"bootstrap.servers": "HOST:PORT"}}}}\'']
    ways += ["start a broker with `ackline dev up`"] * (name == DEV_CONNECTION)
    raise ConfigError(
        f"the Kafka connection {name} is not defined here: {', '.join(ways)}, or write bootstrap_servers in the file",
        key="kafka.connection",
    )


def uses_dev_broker(pipeline: Pipeline) -> bool:
    """Returns whether the pipeline's connection is not defined, so that the broker of `ackline dev` stands for it."""
    name = pipeline.kafka.connection
    return name == DEV_CONNECTION and connection_from_environment(name, "kafka.connection") is None
