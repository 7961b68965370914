"""What an Airflow connection holds: its variable in the environment, and the key that hashes record keys. Pure.

Reads an Airflow connection from its variable AIRFLOW_CONN_<ID>, without Airflow. Pure.

Airflow accepts two forms of the value: JSON, or a URI whose query is the extra. So does this module.

The keyed hash of a record's key, by which the audit table finds a record without holding its key. Pure.

It is the HMAC-SHA256 of the key's raw bytes, cut to 128 bits and written in 32 hexadecimal digits. So two keys of a
billion share a hash with a probability of about 1 in 10^21. Without the secret a reader of the table can't test which
key a hash is of, however few keys there are.
"""

import hmac
import json
import os
from collections.abc import Callable, Mapping
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


SECRET = "ackline.key_hash_secret"
"""The extra of the Kafka connection that holds the secret."""
PREFIX = "ackline."
"""What the names of Ackline's own extras begin with. Kafka's clients refuse them."""
_DIGITS = 32
_LEAST = 16

KeyHash = Callable[[bytes], str]


def key_hash(secret: bytes) -> KeyHash:
    """Returns the function that hashes a key under this secret."""
    keyed = hmac.new(secret, digestmod="sha256")

    def hashed(key: bytes) -> str:
        copy = keyed.copy()  # the secret is hashed once, which halves the time a key takes
        copy.update(key)
        return copy.hexdigest()[:_DIGITS]

    return hashed


def secret_of(connection: Mapping[str, Any], name: str | None) -> bytes:
    """Returns the secret in the extra of the Kafka connection `name`.

    Raises ConfigError if the extra has none, or one of fewer than 16 characters. The message quotes nothing of it.
    """
    secret = connection.get(SECRET)
    if not isinstance(secret, str) or len(secret) < _LEAST:
        problem = f"has no `{SECRET}`" if secret is None else f"has a `{SECRET}` that is no text of {_LEAST} characters"
        raise ConfigError(
            f"the extra of the Kafka connection {name or '(none)'} {problem}: set it to a random text of at least "
            f"{_LEAST} characters, and keep it: under another secret the same key has another hash",
            key="audit.key_hash",
        )
    return secret.encode()


def without_own_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a connection without Ackline's own, which hold secrets that no Kafka client needs."""
    return {name: value for name, value in properties.items() if not name.startswith(PREFIX)}
