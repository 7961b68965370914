"""Reads the Kafka connection that a pipeline file names, by the Kafka provider of Airflow.

Each step reads it anew, so a rotated password takes effect at the next step. The result holds secrets. It goes to Kafka
clients and into the environment of the Spark driver, and never to a log, an argument, XCom or a Spark setting.
"""

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowOptionalProviderFeatureException

from ackline.errors import ConfigError
from ackline.pipeline import Pipeline


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
            f"call; use SASL PLAIN, SCRAM or certificates",
            key="kafka.connection",
        )
    return {key: value for key, value in found.items() if not callable(value)}
