"""The Airflow connections of Kafka and of the tables' object store.

Each task, and each request of the page, reads them anew, so a rotated password or key takes effect at once. What they
hold goes to the clients and into the environment of the Spark driver, and never to a log, an argument, XCom or a Spark
setting.
"""

import os
from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowOptionalProviderFeatureException

from ackline.errors import ConfigError
from ackline.pipeline import properties
from ackline.pipeline.folder import audit_root
from ackline.pipeline.pipeline import Pipeline
from ackline.tables.object_store import CONNECTION, is_remote, options_of, options_of_connection, use_options


def use_audit_connection() -> dict[str, str] | None:
    """Makes this process reach the object store of the tables by the connection that ACKLINE_AUDIT_CONNECTION names.

    Without that variable the environment has the login. Returns the options of the object store; None if the tables are
    on a disk. Raises ConfigError if the connection is not defined or can't be used.
    """
    root, name = audit_root(), os.environ.get(CONNECTION)
    if not is_remote(root):
        return None
    if name:
        try:
            connection = Connection.get(name)
        except AirflowNotFoundException:
            raise ConfigError(
                f"the Airflow connection {name}, which {CONNECTION} names, is not defined", key=CONNECTION
            ) from None
        fields = properties.Connection(
            connection.conn_type, connection.login, connection.password, connection.extra_dejson
        )
        use_options(options_of_connection(name, fields))
    return options_of(root)


def kafka_connection(pipeline: Pipeline) -> dict[str, Any] | None:
    """Returns the librdkafka properties of the connection; None if the file names bootstrap servers itself.

    Raises ConfigError if the connection is not defined, names no broker, or logs in by a Python callback, which the
    Java client of Spark can't call.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    try:
        # Private, but the provider has no public method that resolves its callbacks and managed log-ins.
        found: dict[str, Any] = KafkaBaseHook(name)._build_config()  # type: ignore[no-untyped-call]
    except AirflowNotFoundException:
        raise ConfigError(
            f"the Airflow connection {name}, which pipeline {pipeline.name} names, is not defined",
            key="kafka.connection",
        ) from None
    except (ValueError, AttributeError, ImportError, AirflowOptionalProviderFeatureException) as error:
        raise ConfigError(f"the Airflow connection {name} can't be used: {error}", key="kafka.connection") from None
    if callable(found.get("oauth_cb")):
        raise ConfigError(
            f"the Airflow connection {name} logs in by a Python callback (oauth_cb), which Spark's Kafka source can't "
            f"call; use `sasl.oauthbearer.method: oidc`, SASL PLAIN, SCRAM or certificates",
            key="kafka.connection",
        )
    return {key: value for key, value in found.items() if not callable(value)}
