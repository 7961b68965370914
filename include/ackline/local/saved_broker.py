"""Finds the broker that `ackline dev up` or a kept demo left running, by the file that it saved.

Every command that finds a connection imports this module, so it imports neither psutil nor Airflow nor Kafka clients.
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from ackline.paths import project_root

LOOPBACK = "127.0.0.1"
SAVED = "broker.json"
"""The file in a broker's folder that names the last broker started there."""


@dataclass(frozen=True, slots=True)
class SavedBroker:
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


def read_saved(directory: Path) -> SavedBroker | None:
    """Returns the last broker started in a folder, running or not; None if none was."""
    try:
        return SavedBroker(**json.loads((directory / SAVED).read_text()))
    except FileNotFoundError:
        return None


def dev_bootstrap() -> str | None:
    """Returns the address of the broker that is up: that of `ackline dev`, else the demo's; None if neither listens."""
    for folder in (dev_folder(), demo_folder() / "broker"):
        saved = read_saved(folder)
        if saved is not None and _runs(saved.pid) and _listens(saved.port):
            return saved.bootstrap
    return None


def _runs(pid: int) -> bool:
    """Returns whether a process has this number; with the port that it saved listening, it is that broker."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((LOOPBACK, port)) == 0
