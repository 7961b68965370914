"""The Kafka connection that a pipeline file names, through the Kafka provider's own handling of it.

Asked anew by each step, so that a rotated password takes effect at the next one. What comes back holds secrets: it
goes to clients, and to the Spark driver by its environment; never to a log, an argument, XCom or a Spark setting.
"""

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowOptionalProviderFeatureException

from ackline.errors import ConfigError
from ackline.pipeline import Pipeline


def kafka_connection(pipeline: Pipeline) -> dict[str, Any] | None:
    """The librdkafka properties of the pipeline's connection; None where the file names its servers itself.

    Raises ConfigError where the connection is not defined, names no broker, or logs in by a callback: Spark reads with
    Java's client, which can't call one.
    """
    name = pipeline.kafka.connection
    if name is None:
        return None
    try:
        # The provider keeps this to itself, and has no other way to its callbacks and managed log-ins.
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
