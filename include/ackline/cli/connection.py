"""Where the command finds the Kafka connection that a pipeline names: there is no Airflow to ask.

First the variable in which Airflow itself would look, AIRFLOW_CONN_<ID>; then the broker of a running `ackline dev up`.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ackline.errors import ConfigError
from ackline.pipeline import Pipeline


def connection_of(pipeline: Pipeline) -> Mapping[str, Any] | None:
    """The properties of the pipeline's connection; None where the file names its servers itself.

    Raises ConfigError where the connection is defined nowhere, or can't be read.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    variable = f"AIRFLOW_CONN_{name.upper()}"
    if variable in os.environ:
        return _parse(os.environ[variable], variable)
    from ackline.local.stack import dev_bootstrap

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
    """Airflow's two forms of a connection in the environment: JSON, or a URI whose query is the extra."""
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
    raise ConfigError(f"{variable} is no connection: neither JSON with an `extra`, nor a URI", key="kafka.connection")
