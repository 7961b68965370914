"""The Kafka connection of a pipeline for the command: the one with its id, or the broker of `ackline dev up`.

`ackline.forms.connections` finds a connection in Airflow or in the environment. The connection `kafka_default` alone
may be undefined: it is then the broker of `ackline dev up` or of a kept demo, found by the file that it saved. Any
other name is of a real cluster, and a mistyped one must not lead to another broker.

Every command that finds a connection imports this module, so it imports neither psutil nor Airflow nor Kafka clients.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ackline.errors import ConfigError
from ackline.forms.connections import find_connection, variable_of
from ackline.pipeline.folder import project_root
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.properties import properties_of_connection
from ackline.stored import Stored

LOOPBACK = "127.0.0.1"
SAVED = "broker.json"
"""The file in a broker's folder that names the last broker started there."""


@dataclass(frozen=True, slots=True)
class SavedBroker(Stored):
    """The last broker started in a folder: its ports, its process number, and when that process started."""

    port: int
    controller_port: int
    pid: int
    started: int

    @property
    def bootstrap(self) -> str:
        """The value of a client's `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"


def dev_folder() -> Path:
    """Returns the folder of the broker of `ackline dev`. Its topics stay there when it is stopped."""
    return project_root() / ".ackline" / "dev"


def demo_folder() -> Path:
    """Returns the folder of a demo that was kept: it holds `broker`, `airflow` and `audit`."""
    return project_root() / ".ackline" / "demo"


def dev_bootstrap() -> str | None:
    """Returns the address of the broker that is up: that of `ackline dev`, else the demo's; None if neither listens."""
    for folder in (dev_folder(), demo_folder() / "broker"):
        saved = SavedBroker.read(folder / SAVED)
        if saved is not None and _runs(saved.pid) and listens(saved.port):
            return saved.bootstrap
    return None


def _runs(pid: int) -> bool:
    """Returns whether a process has this number. If its saved port listens too, it is the broker."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def listens(port: int, host: str = LOOPBACK) -> bool:
    """Returns whether a server takes connections on a port."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((host, port)) == 0


DEV_CONNECTION = "kafka_default"
"""The connection that the broker of `ackline dev` replaces where it is not defined."""


def connection_of(pipeline: Pipeline) -> Mapping[str, Any] | None:
    """Returns the properties of the pipeline's connection; None if the file names bootstrap servers itself.

    Raises ConfigError if the connection is not defined, can't be read, or logs in by a Python callback, and
    TransientError if Airflow does not answer the lookup.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    connection = find_connection(name, "kafka.connection")
    if connection is not None:
        return properties_of_connection(name, connection.extra)
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
    return name == DEV_CONNECTION and find_connection(name, "kafka.connection") is None
