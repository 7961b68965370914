"""The Airflow connections of Kafka and of the tables' object store, and whether tasks run on several hosts.

Each task, and each request of the page, reads them anew, so a rotated password or key takes effect at once. What they
hold goes to the clients, and through a pipe to the Spark driver, but never to a log, an argument, XCom, a variable or a
Spark setting.
"""

import os
import re
from typing import Any

from airflow.configuration import conf
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from ackline.delta.object_store import CONNECTION, is_remote, options_of, options_of_connection, use_options
from ackline.errors import ConfigError
from ackline.forms import connections
from ackline.pipeline.folder import audit_root, check_audit_is_shared
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.properties import properties_of_connection

_LOCAL_EXECUTORS = ("LocalExecutor", "SequentialExecutor")


def use_audit_connection() -> dict[str, str] | None:
    """Makes this process reach the object store of the tables by the connection that ACKLINE_AUDIT_CONNECTION names.

    Without that variable the environment has the login. Returns the options of the object store; None if the tables are
    on a disk. Raises ConfigError if the connection is not defined or can't be used, and if the tables would be in the
    folder that ACKLINE_AUDIT has by default, while tasks of this Airflow run on several hosts.
    """
    check_audit_is_shared(_why_hosts_differ())
    root, name = audit_root(), os.environ.get(CONNECTION)
    if not is_remote(root):
        return None
    if name:
        use_options(options_of_connection(name, _connection(name, f"which {CONNECTION} names", CONNECTION)))
    return options_of(root)


def _why_hosts_differ() -> str | None:
    """Returns why the tasks of this Airflow may run on more than one host; None if its executors start them on theirs.

    The setting may list several executors: by name or module path, each with a team before it and an alias behind it.
    """
    entries = [entry.strip() for entry in re.split("[,;]", conf.get("core", "executor", fallback="")) if entry.strip()]
    paths = [entry.rpartition("=")[2].partition(":")[0] for entry in entries]
    elsewhere = [path for path in paths if path.rpartition(".")[2] not in _LOCAL_EXECUTORS]
    return f"Airflow runs its tasks by {', '.join(elsewhere)} ([core] executor)" if elsewhere else None


def kafka_connection(pipeline: Pipeline) -> dict[str, Any] | None:
    """Returns the librdkafka properties of the connection; None if the file names bootstrap servers itself.

    Raises ConfigError if the connection is not defined, or logs in by a Python callback, which the Java client of Spark
    can't call.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    found = _connection(name, f"which pipeline {pipeline.name} names", "kafka.connection")
    return properties_of_connection(name, found.extra)


def _connection(name: str, named_by: str, key: str) -> connections.Connection:
    """Returns the connection with this id. Raises ConfigError, with what names it, if it is not defined."""
    try:
        found = Connection.get(name)
    except AirflowNotFoundException:
        raise ConfigError(f"the Airflow connection {name}, {named_by}, is not defined", key=key) from None
    return connections.Connection(found.conn_type or "", found.login, found.password, found.extra_dejson)
