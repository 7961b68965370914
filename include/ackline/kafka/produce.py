"""Produces answers for records in flight, and what steps emit to output topics.

Sends answers for records in flight to an ack topic. An answer counts as sent once all replicas have it.

Produces what steps emit to output topics. A record is acked only after all replicas have its messages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ackline.kafka import clients
from ackline.kafka.clients import LastError, ackline_error, kafka_error

ANSWER_TIMEOUT = 30.0
"""Seconds within which the broker has to acknowledge an answer."""
_ANSWER_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # the answers for one token keep their order, whichever client sends them
    "message.timeout.ms": int(ANSWER_TIMEOUT * 1000),
}


def send_answers(config: Mapping[str, object], topic: str, answers: Sequence[tuple[str, str]]) -> None:
    """Sends each (token, value) to `topic`, in this order. Returns once all replicas have all of them.

    Raises an AcklineError if one was not acknowledged; it may have arrived all the same. To send an answer again does
    no harm: only the first one of an attempt counts.
    """
    last, errors = LastError(), list[KafkaError]()
    producer = clients.producer(config, **_ANSWER_SETTINGS, error_cb=last)
    doing = f"sending an answer to {topic}"

    def on_delivery(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    try:
        for token, value in answers:
            producer.produce(topic, value.encode(), token.encode(), on_delivery=on_delivery)
        left = producer.flush(ANSWER_TIMEOUT + 5)
    except (KafkaException, BufferError) as raised:
        raise ackline_error(kafka_error(raised) or KafkaError(KafkaError._FAIL), doing, config, last=last) from raised
    if left and not errors:
        errors.append(KafkaError(KafkaError._MSG_TIMED_OUT))
    if errors:
        raise ackline_error(errors[0], doing, config, last=last)


OUTPUT_TIMEOUT = 60.0
"""Seconds within which the broker has to acknowledge a message."""
_OUTPUT_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": 1_000_000_000,  # the client's maximum: the broker alone decides what is too large
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # a key goes to the partition that Java's producer chooses
    "message.timeout.ms": int(OUTPUT_TIMEOUT * 1000),
}
_REFUSED = frozenset({
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "INVALID_MSG_SIZE",
    "POLICY_VIOLATION",
})  # fmt: skip
"""Errors that mean that the broker refuses this message as it is: the same bytes would be refused again."""


@dataclass(slots=True)
class Row:
    """A message for an output topic. `error` is set where the broker does not have it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    error: KafkaError | None = field(default=None, compare=False)


class OutputTopics:
    """A producer to output topics. Close it, or drop what it has not sent."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._last = LastError()
        self._producer: Producer = clients.producer(config, **_OUTPUT_SETTINGS, error_cb=self._last)

    def send(self, rows: Sequence[Row]) -> list[int]:
        """Sends rows and waits until all replicas have them. Returns the indexes of those that the broker refuses for
        what they are, such as too large ones.

        Raises an AcklineError if any other was not acknowledged; it may have arrived all the same.
        """
        self._send(rows)
        for row in rows:
            # The broker refuses a batch as a whole: each is sent again in a batch of its own.
            if row.error is not None and row.error.name() in _REFUSED:
                row.error = None
                self._send([row])
        failed = [row for row in rows if row.error is not None and row.error.name() not in _REFUSED]
        if failed:
            assert failed[0].error is not None
            raise self._error(failed[0].error, failed[0].topic)
        return [number for number, row in enumerate(rows) if row.error is not None]

    def _send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                self._produce(row)
            except KafkaException as raised:
                row.error = kafka_error(raised) or KafkaError(KafkaError._FAIL)
        if self._producer.flush(OUTPUT_TIMEOUT + 5):
            raise self._error(KafkaError(KafkaError._MSG_TIMED_OUT), rows[0].topic)

    def _produce(self, row: Row) -> None:
        while True:
            try:
                self._producer.produce(
                    row.topic, row.value, row.key, headers=list(row.headers), on_delivery=_keep_error(row)
                )
                return
            except BufferError:  # the client's queue is full: wait for acknowledgements
                self._producer.poll(1)

    def _error(self, error: KafkaError, topic: str) -> Exception:
        return ackline_error(error, f"writing to the output topic {topic}", self._config, last=self._last)

    def close(self) -> None:
        """Drops the messages that have no answer yet, and closes the connections."""
        self._producer.purge()
        self._producer.flush(1)


def _keep_error(row: Row) -> Callable[[KafkaError | None, Any], None]:
    def on_delivery(error: KafkaError | None, _message: object) -> None:
        row.error = error

    return on_delivery
