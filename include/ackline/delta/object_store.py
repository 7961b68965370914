"""Object stores: one address and one set of options for delta-rs and for Arrow.

delta-rs commits to the tables, and Arrow reads and writes their files. Both get what `options_of` returns, so they
cannot use different logins. Without a login in it, both find that of the machine's role by themselves.

The options come from the environment, or from the Airflow connection that ACKLINE_AUDIT_CONNECTION names. They hold
secrets. They travel to Spark's tasks inside the function of a task, as the properties of the Kafka connection do, and
never through an argument, a Spark setting, XCom, a log or a table.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from ackline.errors import ConfigError
from ackline.forms.connections import Connection, find_connection, variable_of
from ackline.pipeline.uris import scheme_problem
from ackline.scrub import scrub_address

CONNECTION = "ACKLINE_AUDIT_CONNECTION"
"""The variable that names the Airflow connection of the object store."""

_S3 = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL",
       "AWS_ALLOW_HTTP")  # fmt: skip
"""The variables of the environment. In lower case they are the names of delta-rs's options."""
_ENDPOINT, _ENDPOINTS = "aws_endpoint_url", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The option for the endpoint, and its variables; the first one that is set counts, as in AWS's own tools."""
_UNSAFE = ("AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER", "AWS_CONDITIONAL_PUT")
"""Variables by which delta-rs commits in another way than by a conditional put, which alone fences the turns."""
_FROM_EXTRA = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
    "allow_http": "aws_allow_http",
}

_given: dict[str, str] | None = None
"""Options that this process was started with, or that it read from Airflow; None if it looks them up itself."""


def use_options(options: Mapping[str, str] | None) -> None:
    """Makes this process use these options: a Spark task those of its driver, a task of Airflow those of its
    connection. Pass None to read the environment again."""
    global _given
    _given = None if options is None else dict(options)


def is_remote(folder: str) -> bool:
    """Returns whether a folder is in an object store."""
    return "://" in folder


def options_of(uri: str) -> dict[str, str]:
    """Returns delta-rs's storage options for a URI; none for a path. Raises ConfigError for a setting that is missing,
    contradicts another, or would make commits unsafe."""
    if not is_remote(uri):
        return {}
    if (problem := scheme_problem(uri.partition("://")[0])) is not None:
        raise ConfigError(f"{scrub_address(uri)} can't hold a table: {problem}", key="ACKLINE_AUDIT")
    options = _given if _given is not None else _look_up()
    _check(options)
    return dict(options)


def _look_up() -> dict[str, str]:
    name = os.environ.get(CONNECTION)
    if not name:
        return _from_environment()
    connection = find_connection(name, CONNECTION)
    if connection is None:
        raise ConfigError(
            f"the connection {name}, which {CONNECTION} names, is not defined here: set {variable_of(name)}, or remove "
            f"{CONNECTION} and set AWS_ACCESS_KEY_ID and the like",
            key=CONNECTION,
        )
    return options_of_connection(name, connection)


def _from_environment() -> dict[str, str]:
    options = {name.lower(): os.environ[name] for name in _S3 if os.environ.get(name)}
    # delta-rs would obey each of these by itself, and Arrow would not: log and data would be in different stores.
    for option, names in {"aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"), _ENDPOINT: _ENDPOINTS}.items():
        if (variable := next(filter(os.environ.get, names), None)) is not None:
            options[option] = os.environ[variable]
    return options if "aws_access_key_id" in options else _of_profile() | options


def _of_profile() -> dict[str, str]:
    """Returns the keys and region of the profile AWS_PROFILE, or of `default`; an empty dict if `default` has no key.
    Read here because delta-rs and Arrow support different kinds of profiles, and executors do not have the files.
    Raises ConfigError if the profile AWS_PROFILE has no access key."""
    name = os.environ.get("AWS_PROFILE")
    files = configparser.ConfigParser(interpolation=None)
    home = Path(os.path.expanduser("~/.aws"))  # a user may have no home folder: pathlib would raise
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
    try:
        files.read([os.environ.get("AWS_CONFIG_FILE") or home / "config", credentials])
    except (configparser.Error, UnicodeDecodeError):
        raise ConfigError("the files of AWS profiles can't be read", key="AWS_SHARED_CREDENTIALS_FILE") from None
    profile = name or "default"
    settings = {key: value for section in (f"profile {profile}", profile) if section in files
                for key, value in files[section].items()}  # fmt: skip
    if name and "aws_access_key_id" not in settings:
        raise ConfigError(
            f"AWS_PROFILE={name} has no access key, and Ackline follows no other kind of profile: set "
            f"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, e.g. by "
            f"`aws configure export-credentials --format env`",
            key="AWS_PROFILE",
        )
    if "aws_access_key_id" not in settings:
        return {}
    names = {"region": "aws_region"} | {name.lower(): name.lower() for name in _S3[:3]}
    return {option: settings[key] for key, option in names.items() if settings.get(key)}


def options_of_connection(name: str, connection: Connection) -> dict[str, str]:
    """Returns delta-rs's options from an Airflow connection of type `aws`. The environment adds none. Raises
    ConfigError for another type, and for an extra that Ackline does not follow; the message names its key only."""
    if connection.conn_type != "aws":
        raise ConfigError(
            f"the connection {name}, which {CONNECTION} names, has the type {connection.conn_type or 'none'}: only "
            f"`aws` is supported",
            key=CONNECTION,
        )
    unknown = sorted(connection.extra.keys() - _FROM_EXTRA.keys())
    if unknown:
        raise ConfigError(
            f"the connection {name} has the extra {', '.join(unknown)}, which Ackline does not follow: it takes "
            f"{', '.join(_FROM_EXTRA)}. For the role of a machine, or a profile, unset {CONNECTION}",
            key=CONNECTION,
        )
    login = {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
    options = login | {_FROM_EXTRA[key]: value for key, value in connection.extra.items()}
    options = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()
               if value not in (None, "")}  # fmt: skip
    if "aws_access_key_id" in options and "aws_session_token" not in options and os.environ.get("AWS_SESSION_TOKEN"):
        raise ConfigError(  # delta-rs would send the token of the environment with the key of the connection
            f"the connection {name} has a key, and AWS_SESSION_TOKEN is set, which belongs to another key: unset it, "
            f"or write the connection's own `aws_session_token` into its extra",
            key="AWS_SESSION_TOKEN",
        )
    return options


def _check(options: Mapping[str, str]) -> None:
    for name in _UNSAFE:
        if os.environ.get(name, "").lower() not in ("", "false", "0", "etag"):
            raise ConfigError(
                f"{name} is set: Ackline's commits are fenced by conditional puts, which it turns off; unset it",
                key=name,
            )
    if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
        raise ConfigError(
            "only one of access key and secret key is set for the object store: set both, or neither",
            key="AWS_ACCESS_KEY_ID",
        )
    for name in _ENDPOINTS:
        # delta-rs obeys the first one even beside an option, and the others where there is no option.
        if os.environ.get(name, options.get(_ENDPOINT)) != options.get(_ENDPOINT) and (
            name == _ENDPOINTS[0] or _ENDPOINT not in options
        ):
            raise ConfigError(
                f"{name} is set, and the object store has another endpoint, or none: the log of a table and its data "
                f"would be in different stores; unset it",
                key=name,
            )
    endpoint = urlsplit(options.get(_ENDPOINT, ""))
    if endpoint.geturl() and (
        endpoint.scheme not in ("http", "https") or endpoint.path.strip("/") or "@" in endpoint.netloc
    ):
        raise ConfigError("the endpoint of the object store must be http[s]://HOST[:PORT]", key="AWS_ENDPOINT_URL")
    if endpoint.scheme == "http" and options.get("aws_allow_http", "").lower() not in ("true", "1"):
        raise ConfigError(
            f"the object store's endpoint http://{endpoint.netloc} is not encrypted: use https, or set "
            f"AWS_ALLOW_HTTP=true (in a connection `allow_http`)",
            key="AWS_ALLOW_HTTP",
        )


def arrow_filesystem(folder: str) -> tuple[pafs.FileSystem, str]:
    """Returns Arrow's own file system for a path or URI, and the folder's path in it. delta-rs's Python file system is
    no alternative: threads of Arrow that call it and outlive the interpreter abort the process at its end
    (apache/arrow#34314). Opens no connection. Raises what `options_of` raises."""
    if not is_remote(folder):
        return pafs.LocalFileSystem(), folder
    return _s3(options_of(folder)), folder.partition("://")[2]


def _s3(options: Mapping[str, str]) -> pafs.FileSystem:
    endpoint = urlsplit(options.get(_ENDPOINT, ""))
    arguments: dict[str, Any] = {
        "access_key": options.get("aws_access_key_id"),
        "secret_key": options.get("aws_secret_access_key"),
        "session_token": options.get("aws_session_token"),
        "region": options.get("aws_region"),
        "scheme": endpoint.scheme,
        "endpoint_override": endpoint.netloc,
    }
    # A small file is one request, and not the three of an upload in parts.
    return pafs.S3FileSystem(allow_delayed_open=True, **{name: value for name, value in arguments.items() if value})
