"""Finds the Kafka connection that a pipeline names, without Airflow.

The variable AIRFLOW_CONN_<ID>, which Airflow reads too, comes first. The broker of `ackline dev up` comes second.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

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
    variable = f"AIRFLOW_CONN_{name.upper()}"
    if variable in os.environ:
        return _parse(os.environ[variable], variable)
    bootstrap = dev_bootstrap()
    if bootstrap:
        return {"bootstrap.servers": bootstrap}
    raise ConfigError(
        f'the Kafka connection {name} is not defined here: set {variable}=\'{{"conn_type": "kafka", "extra": '
        f'{{"bootstrap.servers": "HOST:PORT"}}}}\', start a broker with `ackline dev up`, or write '
        f"bootstrap_servers in the file",
        key="kafka.connection",
    )


def _parse(text: str, variable: str) -> Mapping[str, Any]:
    """Returns the extra of a connection in either form that Airflow reads: JSON, or a URI whose query is the extra."""
    try:
        if text.lstrip().startswith("{"):
            extra = json.loads(text).get("extra", {})
            found = json.loads(extra) if isinstance(extra, str) else extra
        else:
            query = dict(parse_qsl(urlsplit(text).query))
            found = json.loads(query["__extra__"]) if "__extra__" in query else query
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ConfigError(f"{variable} is not a connection: write JSON with an `extra`, or a URI", key="kafka.connection")
