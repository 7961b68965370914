"""Where a command finds a connection by its id: in Airflow, where that is set up here, or in AIRFLOW_CONN_<ID>.

This is the one place for all connections of the command: Kafka's, Spark's and that of the tables' object store. The
places and their order are those of a task: the secrets backend of Airflow's configuration, the variable, Airflow's
database. Airflow takes seconds to load, and configures the logging of the process that loads it. So another process
loads it (`ackline.airflow.lookup`), and only where Airflow may have what the environment lacks: a secrets backend is
configured, or the variable is not set and a database exists.
"""

import configparser
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ackline.errors import ConfigError, TransientError

LOOKUP = "ackline.airflow.lookup"
"""The module that another process runs with the id of a connection. It prints the connection as JSON."""
LOOKUP_SECONDS = 120
_BACKENDS = (("secrets", "backend"), ("workers", "secrets_backend"))
_DATABASE = ("database", "sql_alchemy_conn")


@dataclass(frozen=True, slots=True)
class Connection:
    """The fields of an Airflow connection that Ackline uses. They hold secrets, so they are never shown."""

    conn_type: str
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    host: str | None = field(default=None, repr=False)
    port: int | None = None


def variable_of(connection: str) -> str:
    """Returns the name of the variable that defines a connection."""
    return f"AIRFLOW_CONN_{connection.upper()}"


_AIRFLOW_VARIABLE = re.compile(r"_*AIRFLOW", re.IGNORECASE)


def without_airflow(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment without the variables of Airflow: they hold connections and Airflow's own secrets, which
    no process of a handler may inherit."""
    return {name: value for name, value in environment.items() if not _AIRFLOW_VARIABLE.match(name)}


def find_connection(connection: str, key: str) -> Connection | None:
    """Returns a connection by its id; None if neither Airflow nor its variable has it.

    Raises ConfigError, which names the setting `key`, if the variable holds no connection, and TransientError if
    Airflow does not answer. The messages quote nothing of a connection.
    """
    if _has_secrets_backend() or (variable_of(connection) not in os.environ and _has_database()):
        return _of_airflow(connection)
    return connection_from_environment(connection, key)


def connection_from_environment(connection: str, key: str) -> Connection | None:
    """Returns the connection in the variable AIRFLOW_CONN_<ID>: JSON, or a URI whose query is the extra. None if it is
    not set. Raises ConfigError, which names the setting `key`, for another text."""
    variable = variable_of(connection)
    text = os.environ.get(variable)
    if text is None:
        return None
    try:
        return connection_from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"{variable} is not a connection: write JSON with an `extra`, or a URI", key=key) from None


def connection_from_json(text: str) -> Connection:
    """Returns the connection that a JSON object holds, as Airflow writes it. Raises ValueError and TypeError."""
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    host, port = fields.get("host"), fields.get("port")
    return Connection(
        str(fields.get("conn_type") or ""), fields.get("login"), fields.get("password"), _mapping(extra),
        str(host) if host else None, int(port) if port else None,
    )  # fmt: skip


def _from_uri(text: str) -> Connection:
    uri = urlsplit(text)
    scheme, rest = uri.scheme, text.partition("://")[2]
    of_host = f"{rest.partition('://')[0]}://" if "://" in rest else ""
    if of_host:  # such as k8s://https://HOST:443: the host is a URL itself
        uri = urlsplit(f"{scheme}://{rest.partition('://')[2]}")
    query = dict(parse_qsl(uri.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    login, password = (unquote(part) if part else None for part in (uri.username, uri.password))
    # Not `hostname`, which is in lower case.
    host = unquote(uri.netloc.rpartition("@")[2].removesuffix(f":{uri.port}" if uri.port else ":"))
    return Connection(scheme.replace("-", "_"), login, password, _mapping(extra), of_host + host or None, uri.port)


def _mapping(extra: object) -> Mapping[str, Any]:
    if not isinstance(extra, dict):
        raise TypeError
    return extra


def _has_secrets_backend() -> bool:
    return any(map(_configured, _BACKENDS)) and find_spec("airflow") is not None


def _has_database() -> bool:
    # A SQLite file that does not exist holds no connection, and Airflow would create it.
    address = _configured(_DATABASE) or f"sqlite:///{_airflow_home() / 'airflow.db'}"
    path = address.removeprefix("sqlite:///") if address.startswith("sqlite:///") else None
    return (path is None or Path(path).is_file()) and find_spec("airflow") is not None


def _airflow_home() -> Path:
    # Not by pathlib, which raises for a user without a home folder.
    return Path(os.path.expanduser(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")))


def _configured(setting: tuple[str, str]) -> str | None:
    """Returns a value of Airflow's configuration, from its variable or its file; None if neither sets it. If a command
    or a secrets backend gives the value, returns the text that names it."""
    section, name = setting
    variable = f"AIRFLOW__{section.upper()}__{name.upper()}"
    for spelling in ("", "_CMD", "_SECRET"):
        if value := os.environ.get(variable + spelling):
            return value
    path = os.environ.get("AIRFLOW_CONFIG") or _airflow_home() / "airflow.cfg"
    file = _file_of(os.path.expanduser(os.path.expandvars(path)))
    values = (file.get((section, name + spelling)) for spelling in ("", "_cmd", "_secret"))
    return next(filter(None, values), None)


@lru_cache(maxsize=4)
def _file_of(path: str) -> Mapping[tuple[str, str], str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    return {(section, name): value for section in parser.sections() for name, value in parser.items(section)}


@lru_cache(maxsize=64)
def _of_airflow(connection: str) -> Connection | None:
    """Returns the connection that Airflow has under an id, or None. It comes through a pipe, never a file."""
    command = [sys.executable, "-P", "-m", LOOKUP, connection]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            timeout=LOOKUP_SECONDS, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        found = answer["found"]
        return None if found is None else connection_from_json(json.dumps(found))
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise TransientError(
            f"Airflow can't be asked for the connection {connection}: `airflow connections get {connection}` shows why"
        ) from None
