"""Reaches the tables in an object store. The login is that of the environment, or of ACKLINE_AUDIT_CONNECTION.

Arrow's own file systems read the tables. delta-rs's Python file system aborts the process at its end if one of Arrow's
threads outlives the interpreter (apache/arrow#34314).
"""

import json
import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow.fs as pafs

S3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL",
      "AWS_ALLOW_HTTP"}  # fmt: skip
EXTRA = {"region_name": "aws_region", "endpoint_url": "aws_endpoint_url", "allow_http": "aws_allow_http"}


def storage_uri(uri: str) -> str:
    """Return the URI as delta-rs expects it: a path for `file://`, and `s3` for `s3a`."""
    return uri.removeprefix("file://").replace("s3a://", "s3://", 1)


def storage_options(uri: str) -> dict[str, str]:
    """Return delta-rs's options for a URI; raises ValueError if the connection is not defined."""
    if not uri.startswith("s3://"):
        return {}
    if connection := os.environ.get("ACKLINE_AUDIT_CONNECTION"):
        return _options_of(connection)
    options = {name.lower(): os.environ[name] for name in S3 if os.environ.get(name)}
    for option, name in (("aws_region", "AWS_DEFAULT_REGION"), ("aws_endpoint_url", "AWS_ENDPOINT_URL_S3")):
        if os.environ.get(name):
            options.setdefault(option, os.environ[name])
    return options


def _options_of(connection: str) -> dict[str, str]:
    variable = f"AIRFLOW_CONN_{connection.upper()}"
    text = os.environ.get(variable)
    if text is None:
        raise ValueError(f"the connection {connection} is not defined here: set {variable}")
    if text.lstrip().startswith("{"):
        fields = json.loads(text)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        login, password = fields.get("login"), fields.get("password")
    else:
        parts = urlsplit(text)
        extra = dict(parse_qsl(parts.query))
        extra = json.loads(extra["__extra__"]) if "__extra__" in extra else extra
        login, password = (unquote(part) if part else None for part in (parts.username, parts.password))
    options = {"aws_access_key_id": login, "aws_secret_access_key": password}
    options |= {EXTRA.get(name, name): value for name, value in extra.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
            if value not in (None, "")}  # fmt: skip


def filesystem_of(uri: str, options: dict[str, str]) -> pafs.FileSystem:
    """Return the folder of a table as Arrow's own file system."""
    if "://" not in uri:
        return pafs.SubTreeFileSystem(uri, pafs.LocalFileSystem())
    if not uri.startswith("s3://"):
        store, path = pafs.FileSystem.from_uri(uri)
        return pafs.SubTreeFileSystem(path, store)
    endpoint = urlsplit(options.get("aws_endpoint_url", ""))
    arguments: dict[str, Any] = {
        "access_key": options.get("aws_access_key_id"),
        "secret_key": options.get("aws_secret_access_key"),
        "session_token": options.get("aws_session_token"),
        "region": options.get("aws_region"),
        "scheme": endpoint.scheme,
        "endpoint_override": endpoint.netloc,
    }
    store = pafs.S3FileSystem(**{name: value for name, value in arguments.items() if value})
    return pafs.SubTreeFileSystem(uri.removeprefix("s3://"), store)
