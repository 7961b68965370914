"""Finds the Kafka connection that a pipeline names, without Airflow.

The variable AIRFLOW_CONN_<ID>, which Airflow reads too, comes first. The broker of `ackline dev up` comes second.
"""

from collections.abc import Mapping
from typing import Any

from ackline.connection_variable import connection_from_environment, variable_of
from ackline.errors import ConfigError
from ackline.local.saved_broker import dev_bootstrap
from ackline.pipeline import Pipeline


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
    bootstrap = dev_bootstrap()
    if bootstrap:
        return {"bootstrap.servers": bootstrap}
    variable = variable_of(name)
    raise ConfigError(
        f'the Kafka connection {name} is not defined here: set {variable}=\'{{"conn_type": "kafka", "extra": '
        f'{{"bootstrap.servers": "HOST:PORT"}}}}\', start a broker with `ackline dev up`, or write '
        f"bootstrap_servers in the file",
        key="kafka.connection",
    )
