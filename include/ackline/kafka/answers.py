"""Sends answers for records in flight to an ack topic. An answer counts as sent once all replicas have it."""

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from ackline.kafka import clients
from ackline.kafka.failures import LastError, ackline_error, kafka_error

TIMEOUT = 30.0
"""Seconds within which the broker has to acknowledge an answer."""
_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # the answers for one token keep their order, whichever client sends them
    "message.timeout.ms": int(TIMEOUT * 1000),
}


def send_answers(config: Mapping[str, object], topic: str, answers: Sequence[tuple[str, str]]) -> None:
    """Sends each (token, value) to `topic`, in this order. Returns once all replicas have all of them.

    Raises an AcklineError if one was not acknowledged; it may have arrived all the same. To send an answer again does
    no harm: only the first one of an attempt counts.
    """
    last, errors = LastError(), list[KafkaError]()
    producer = clients.producer(config, **_SETTINGS, error_cb=last)
    doing = f"sending an answer to {topic}"

    def on_delivery(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    try:
        for token, value in answers:
            producer.produce(topic, value.encode(), token.encode(), on_delivery=on_delivery)
        left = producer.flush(TIMEOUT + 5)
    except (KafkaException, BufferError) as raised:
        raise ackline_error(kafka_error(raised) or KafkaError(KafkaError._FAIL), doing, config, last=last) from raised
    if left and not errors:
        errors.append(KafkaError(KafkaError._MSG_TIMED_OUT))
    if errors:
        raise ackline_error(errors[0], doing, config, last=last)
