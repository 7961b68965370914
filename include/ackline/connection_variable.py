"""Reads an Airflow connection from its variable AIRFLOW_CONN_<ID>, without Airflow. Pure.

Airflow accepts two forms of the value: JSON, or a URI whose query is the extra. So does this module.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ackline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Connection:
    """The fields of an Airflow connection that Ackline uses. They hold secrets, so they are never shown."""

    conn_type: str
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def variable_of(connection: str) -> str:
    """Returns the name of the variable that defines a connection."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def connection_from_environment(connection: str, key: str) -> Connection | None:
    """Returns a connection by its id; None if its variable is not set.

    Raises ConfigError, which names the setting `key`, if the variable holds no connection. The message quotes nothing
    of it.
    """
    variable = variable_of(connection)
    text = os.environ.get(variable)
    if text is None:
        return None
    try:
        return _from_json(text) if text.lstrip().startswith("{") else _from_uri(text)
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"{variable} is not a connection: write JSON with an `extra`, or a URI", key=key) from None


def _from_json(text: str) -> Connection:
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    return Connection(str(fields.get("conn_type") or ""), fields.get("login"), fields.get("password"), _mapping(extra))


def _from_uri(text: str) -> Connection:
    uri = urlsplit(text)
    query = dict(parse_qsl(uri.query))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    login, password = (unquote(part) if part else None for part in (uri.username, uri.password))
    return Connection(uri.scheme, login, password, _mapping(extra))


def _mapping(extra: object) -> Mapping[str, Any]:
    if not isinstance(extra, dict):
        raise TypeError
    return extra
