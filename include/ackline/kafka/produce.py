"""Produces messages that count once all replicas have them: answers for records in flight, rows for output topics, and
dead letters (`ackline.kafka.dead_letters`, which keeps a window of unanswered letters and makes refused ones smaller).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ackline.errors import AcklineError
from ackline.kafka import clients
from ackline.kafka.clients import LastError, ackline_error, kafka_error

ALL_REPLICAS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    # A key goes to the partition that Java's producer chooses, so its messages keep their order, whichever client sends
    # them.
    "partitioner": "murmur2_random",
}
"""Settings of each producer, with which a message counts once all replicas have it."""
MANY_OF_ANY_SIZE: Mapping[str, object] = {
    "message.max.bytes": 1_000_000_000,  # the client's maximum: the broker alone decides what is too large
    "linger.ms": 5,
}
"""More settings, of producers that send dead letters or rows for output topics."""
REFUSED = frozenset({
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "INVALID_MSG_SIZE",
    "POLICY_VIOLATION",
})  # fmt: skip
"""Errors that mean that the broker refuses this message as it is: the same bytes would be refused again."""
POLL_SECONDS = 0.02
_REFUSAL_SECONDS = 1.0

_ANSWER_SECONDS = 30.0
"""Seconds within which the broker has to acknowledge an answer."""
_OUTPUT_SECONDS = 60.0
"""Seconds within which the broker has to acknowledge a message for an output topic."""

OnDelivery = Callable[[KafkaError | None, Any], None]
"""Takes the error with which a message failed, None once all replicas have it, and a value to ignore."""


def produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, str | bytes | None]],
    on_delivery: OnDelivery,
    **place: Any,
) -> None:
    """Gives a message to a producer. `place` may be its `partition`, and its `timestamp` in milliseconds.

    A later poll calls `on_delivery` with the result; this calls it itself if the client refuses the message.
    While the client's queue is full, this waits for acknowledgements. The wait ends, because the client gives up each
    message after `message.timeout.ms`.
    """
    # No retry library: the queue empties only by polling, and this runs once for each message.
    while True:
        try:
            producer.produce(topic, value, key, headers=list(headers), on_delivery=on_delivery, **place)
            return
        except BufferError:
            producer.poll(POLL_SECONDS)
        except KafkaException as raised:
            on_delivery(kafka_error(raised) or KafkaError(KafkaError._FAIL), None)
            return


def cause_of(error: KafkaError, last: LastError, *producers: Producer) -> KafkaError:
    """Returns the refusal behind the error of a message, or that error. `last` is the `error_cb` of the producers.

    After a fatal error, as of a login without a right to the topic, a message itself has `_FATAL`. The client passes
    the refusal to the callback, perhaps after the results of the messages: this waits for it, for a second at most.
    """
    until = time.monotonic() + _REFUSAL_SECONDS
    while error.name() == "_FATAL" and last.cause(error) is error and time.monotonic() < until:
        for producer in producers:
            with suppress(KafkaException):
                producer.poll(POLL_SECONDS)
    return last.cause(error)


def drop_unanswered(producer: Producer) -> None:
    """Drops the messages that have no answer yet, and closes the connections.

    After a fatal error each call of a producer may raise it again. The results of the messages have named it by then.
    """
    with suppress(KafkaException):
        producer.purge()
        producer.flush(1)


@dataclass(slots=True)
class Row:
    """A message for a topic. `error` is set where the broker does not have it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    error: KafkaError | None = field(default=None, compare=False)
    place: Mapping[str, int] = field(default_factory=dict)
    """`partition` and `timestamp`, as `produce` takes them, where they are not left to the producer."""
    offset: int = field(default=-1, compare=False)
    """Where the broker has put the message; -1 as long as it is not known."""

    def keep_result(self, error: KafkaError | None, message: Any) -> None:
        """Sets `error` and `offset` to the result of sending the message. The producer calls it as `on_delivery`."""
        self.error = error
        if error is None and message is not None:
            self.offset = message.offset()


class _Sender:
    """A producer that sends rows and waits for them. A row may take `seconds`. `doing` begins the message of an error,
    and is followed by the topic."""

    def __init__(self, config: Mapping[str, object], doing: str, seconds: float, **settings: object) -> None:
        self._config, self._doing, self._seconds = config, doing, seconds
        self._last = LastError()
        settings = {**ALL_REPLICAS, **settings, "message.timeout.ms": int(seconds * 1000)}
        self._producer = clients.producer(config, **settings, error_cb=self._last)

    def failed(self, rows: Sequence[Row]) -> list[Row]:
        """Sends rows, and returns those that failed once each has an answer. Raises an AcklineError if one has none."""
        for row in rows:
            produce(self._producer, row.topic, row.key, row.value, row.headers, row.keep_result, **row.place)
        try:
            unanswered = self._producer.flush(self._seconds + 5)
        except KafkaException as raised:  # a fatal error, as of a login without a right to the topic
            raise self.error(kafka_error(raised) or KafkaError(KafkaError._FAIL), rows[0].topic) from None
        if unanswered:
            raise self.error(KafkaError(KafkaError._MSG_TIMED_OUT), rows[0].topic)
        return [row for row in rows if row.error is not None]

    def error(self, error: KafkaError, topic: str) -> AcklineError:
        """Returns the error to raise for a message to `topic` that failed with `error`."""
        right, error = f"Write on topic {topic}", cause_of(error, self._last, self._producer)
        return ackline_error(error, f"{self._doing} {topic}", self._config, last=self._last, right=right)

    def close(self) -> None:
        """Drops the messages that have no answer yet, and closes the connections."""
        drop_unanswered(self._producer)


def send_answers(config: Mapping[str, object], topic: str, answers: Sequence[tuple[str, str]]) -> None:
    """Sends each (token, value) to `topic`, in this order. Returns once all replicas have all of them.

    Raises an AcklineError if one was not acknowledged; it may have arrived all the same. To send an answer again does
    no harm: only the first one of an attempt counts.
    """
    sender = _Sender(config, "sending an answer to", _ANSWER_SECONDS)
    for failed in sender.failed([Row(topic, token.encode(), value.encode()) for token, value in answers]):
        if failed.error is not None:
            raise sender.error(failed.error, topic)


class OutputTopics(_Sender):
    """A producer of what steps emit to output topics. A record is acked only after all replicas have its messages."""

    def __init__(
        self, config: Mapping[str, object], doing: str = "writing to the output topic", **settings: object
    ) -> None:
        super().__init__(config, doing, _OUTPUT_SECONDS, **MANY_OF_ANY_SIZE, **settings)

    def send(self, rows: Sequence[Row]) -> list[int]:
        """Sends rows and waits until all replicas have them. Returns the indexes of those that the broker refuses for
        what they are, such as too large ones.

        Raises an AcklineError if any other was not acknowledged; it may have arrived all the same.
        """
        for row in self.failed(rows):
            # The broker refuses a batch as a whole: each is sent again in a batch of its own.
            if row.error is not None and row.error.name() in REFUSED:
                row.error = None
                self.failed([row])
            if row.error is not None and row.error.name() not in REFUSED:
                raise self.error(row.error, row.topic)
        return [number for number, row in enumerate(rows) if row.error is not None]
