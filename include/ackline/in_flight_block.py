"""The keys `ack_topic` and `in_flight` of a pipeline file: records that an answer from outside settles. Pure."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from ackline.blocks import StrictBlock, duration_text, parse_duration
from ackline.kafka_block import KafkaBlock
from ackline.token_keys import TOKEN_KEYS

NO_TIMEOUT = "none"


def _timeout(value: object) -> timedelta | None:
    if value is None or value == NO_TIMEOUT:
        return None
    try:
        timeout = parse_duration(value)
    except ValueError:
        raise ValueError("write a duration with its unit, such as 30s or 1h, or `none`") from None
    if timeout <= timedelta():
        raise ValueError("write a duration above 0s, such as 30s, or `none` for no timeout")
    return timeout


def _text(timeout: timedelta | None) -> str:
    return NO_TIMEOUT if timeout is None else duration_text(timeout)


class InFlightBlock(StrictBlock):
    """How long a record waits for its answer from outside, and how many records of a partition may wait at once."""

    timeout: Annotated[timedelta | None, BeforeValidator(_timeout), PlainSerializer(_text)] = timedelta(seconds=30)
    max: int | None = Field(None, ge=1)


def obstacle_of_ack_topic(topic: str, settings: Mapping[str, Any]) -> str | None:
    """Returns why a pipeline with these settings can't have the ack topic `topic`, and what to do; None if it can.

    A setting that is missing was refused already, and is no second problem.
    """
    kafka = settings.get("kafka")
    if settings.get("guarantee", "at_least_once") != "at_least_once":
        return (
            "a record in flight is tried again if no answer comes, which only `guarantee: at_least_once` does; remove "
            "this key, or write that guarantee"
        )
    if isinstance(kafka, KafkaBlock) and kafka.subscribes_to_topic(topic):
        return f"the pipeline reads the topic {topic}, so it would handle its answers as records; name another topic"
    if isinstance(kafka, KafkaBlock) and kafka.connection is None:
        return (
            f"tokens are signed with a secret, which is `{TOKEN_KEYS}` in the extra of the Kafka connection; write "
            f"`kafka.connection` instead of `bootstrap_servers`"
        )
    if topic == getattr(settings.get("dead_letter"), "topic", None):
        return f"{topic} is the dead-letter topic too; name another topic"
    return None
