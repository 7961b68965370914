"""Sends dead letters: copies records that will not be tried again to a topic, where an operator can inspect them.

A letter counts only once the broker has acknowledged it (acks=all). Any other letter stays pending, and a later run
sends it again. So after a crash the topic may hold a letter twice, but it never misses one.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ackline.kafka import clients
from ackline.kafka.clients import kafka_error
from ackline.kafka.fetching import Found, Headers, headers_of

PAYLOAD_HEADER = "ackline.payload"
"""Header of a letter without the record's value: `omitted: ` and the name of the broker's error."""
HEADERS_HEADER = "ackline.headers"
"""Header of a letter without the record's own headers, because a name among them is not UTF-8."""
KEPT_BYTES = 64 * 1024
"""Limit of key and headers together, in bytes. A letter without its value keeps both up to this size."""
TIMEOUT = 30.0
"""Seconds after which this run gives up a letter that the broker has not acknowledged."""

_MAX_UNANSWERED = 1000
_MAX_UNANSWERED_BYTES = 32 * 1024 * 1024
_POLL_SECONDS = 0.02
_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": 1_000_000_000,  # the client's maximum: the broker alone decides what is too large
    "compression.type": "zstd",  # a record that fitted its topic only because it was compressed fits here too
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # a key goes to the partition that Java's producer chooses
    "topic.metadata.propagation.max.ms": 5000,
}
_TIMED_OUT = "_MSG_TIMED_OUT"
_REFUSED = frozenset({
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "INVALID_MSG_SIZE",
    "POLICY_VIOLATION",
})  # fmt: skip
"""Errors that mean that the broker refuses this record as it is: the same bytes would be refused again."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record for the dead-letter topic, and the headers with the reason; they come after the record's own."""

    source: Found | Message
    headers: Sequence[tuple[str, bytes]]

    @property
    def message(self) -> Message:
        """The record itself."""
        return self.source.message if isinstance(self.source, Found) else self.source


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of sending a letter. Only a `confirmed` letter is on the topic for certain.

    `error` names the last error, if there was one. `omitted`: the broker refused the record as it is, and the letter
    went without its value.
    """

    letter: Letter
    confirmed: bool
    error: str | None = None
    omitted: bool = False


@dataclass(frozen=True, slots=True)
class _Form:
    """How much of a record is sent, and whether in a batch of its own.

    The broker refuses a batch as a whole, so a refused letter is first repeated in its own batch: one record that is
    too large must not cost its neighbours their values.
    """

    own_batch: bool = False
    value: bool = True
    key_and_headers: bool = True

    def smaller(self) -> "_Form | None":
        """The next form to try; None if nothing is left to omit."""
        if not self.own_batch:
            return replace(self, own_batch=True)
        if self.value:
            return replace(self, value=False)
        return replace(self, key_and_headers=False) if self.key_and_headers else None


@dataclass(slots=True)
class _Posting:
    """A letter that was given to a producer."""

    letter: Letter
    posted_at: float
    original_headers: Headers
    form: _Form = _Form()
    refusal: str | None = None
    delivery: Delivery | None = None

    @property
    def size(self) -> int:
        message = self.letter.message
        return len(message) + len(message.key() or b"")

    def finish(self, error: str | None) -> None:
        """Sets the result: confirmed if `error` is None."""
        omitted = error is None and not self.form.value
        self.delivery = Delivery(self.letter, error is None, error or self.refusal, omitted)


class DeadLetters:
    """A producer to one topic, which must exist. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], topic: str, *, timeout: float = TIMEOUT) -> None:
        self.topic = topic
        self._config = config
        self._settings = {**_SETTINGS, "message.timeout.ms": int(timeout * 1000)}
        self._batching = clients.producer(config, **self._settings)
        self._unbatched: Producer | None = None
        self._to_resend: deque[_Posting] = deque()
        self._confirmed_at = 0.0
        self._gave_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops the letters that have no answer yet, and closes the connections."""
        for producer in self._producers():
            producer.purge()
            producer.flush(1)

    def send(self, letters: Iterable[Letter]) -> Iterator[Delivery]:
        """Sends each letter and yields the results in the same order; a letter that fails raises nothing.

        Lazy: takes from `letters` as fast as the broker acknowledges, with at most a thousand letters or 32 MiB without
        an answer. After a letter has timed out and no later one was confirmed, gives up the following letters unsent,
        until one is confirmed.
        """
        window: deque[_Posting] = deque()
        window_bytes = 0
        for letter in letters:
            posting = _Posting(letter, time.monotonic(), _original_headers(letter.message))
            window.append(posting)
            window_bytes += posting.size
            self._post(posting)
            while window and (
                window[0].delivery or len(window) >= _MAX_UNANSWERED or window_bytes >= _MAX_UNANSWERED_BYTES
            ):
                window_bytes -= window[0].size
                yield self._await(window.popleft())
        while window:
            yield self._await(window.popleft())

    def _await(self, posting: _Posting) -> Delivery:
        while posting.delivery is None:
            self._serve(_POLL_SECONDS)
        return posting.delivery

    def _serve(self, wait: float) -> None:
        """Handles the broker's answers, and sends each refused letter in its next form."""
        for producer in self._producers():
            producer.poll(wait if len(producer) else 0)
        while self._to_resend:
            self._post(self._to_resend.popleft())

    def _post(self, posting: _Posting) -> None:
        if self._gave_up:
            posting.finish(_TIMED_OUT)
            return
        try:
            self._produce(posting, self._unbatched_producer() if posting.form.own_batch else self._batching)
        except KafkaException as raised:
            error = kafka_error(raised)
            self._on_delivery(posting, error if error is not None else KafkaError(KafkaError._FAIL))

    def _produce(self, posting: _Posting, producer: Producer) -> None:
        message, form = posting.letter.message, posting.form
        key, kept = _key_and_headers(message, posting.original_headers, form)
        headers: list[tuple[str, str | bytes | None]] = [*kept, *posting.letter.headers]
        if not form.value:
            headers.append((PAYLOAD_HEADER, f"omitted: {posting.refusal}".encode()))
        # No retry library: the queue empties only by polling, without a time limit, and this runs once for each letter.
        while True:
            try:
                # The letter gets today's timestamp. With the record's own (which is in a header), retention of the
                # dead-letter topic would delete the letter of an old record at once.
                producer.produce(
                    self.topic, message.value() if form.value else None, key, headers=headers,
                    on_delivery=self._callback(posting),
                )  # fmt: skip
                return
            except BufferError:
                producer.poll(_POLL_SECONDS)

    def _callback(self, posting: _Posting) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _: self._on_delivery(posting, error)

    def _on_delivery(self, posting: _Posting, error: KafkaError | None) -> None:
        if error is None:
            self._confirmed_at, self._gave_up = time.monotonic(), False
            posting.finish(None)
            return
        form = posting.form.smaller() if error.name() in _REFUSED else None
        if form is not None:
            posting.form, posting.refusal = form, error.name()
            self._to_resend.append(posting)
            return
        if error.name() == _TIMED_OUT and self._confirmed_at < posting.posted_at:
            self._gave_up = True
        posting.finish(error.name())

    def _producers(self) -> list[Producer]:
        return [self._batching] if self._unbatched is None else [self._batching, self._unbatched]

    def _unbatched_producer(self) -> Producer:
        """The producer that puts each record into a batch of its own."""
        if self._unbatched is None:
            self._unbatched = clients.producer(self._config, **self._settings, **{"batch.num.messages": 1})
        return self._unbatched


def _original_headers(message: Message) -> Headers:
    headers = headers_of(message)
    return [(HEADERS_HEADER, b"omitted: a name is not UTF-8")] if headers is None else headers


def _key_and_headers(message: Message, headers: Headers, form: _Form) -> tuple[bytes | None, Headers]:
    """Key and original headers, as far as `form` keeps them."""
    key = message.key()
    if form.value:
        return key, headers
    size = len(key or b"") + sum(len(name) + len(value or b"") for name, value in headers)
    return (key, headers) if form.key_and_headers and size <= KEPT_BYTES else (None, [])
