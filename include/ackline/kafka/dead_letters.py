"""Sends dead letters, copies of records that will not be tried again, and finds the letter of one record again.

A letter counts only once the broker has acknowledged it (acks=all). Any other letter stays pending, and a later run
sends it again. So after a crash the topic may hold a letter twice, but it never misses one.

The decision that a record is dead stores where its letter is, for readers of the tables. `ackline dead NAME TOPIC
PARTITION OFFSET` searches the topic instead: an earlier version has not stored that place, and the topic may have been
created again. The search reads from shortly before the record was given up, and then what is older. It keeps no record
but the letter, and ends after SEARCH_SECONDS.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import ConfigError, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import Closing, LastError, ackline_error, is_denial, is_transient
from ackline.kafka.cluster import Cluster
from ackline.kafka.fetching import Found, Headers, headers_of
from ackline.kafka.produce import (
    ALL_REPLICAS,
    MANY_OF_ANY_SIZE,
    POLL_SECONDS,
    REFUSED,
    cause_of,
    drop_unanswered,
    produce,
)
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import timestamp_of

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
_SETTINGS: Mapping[str, object] = {
    **ALL_REPLICAS,
    **MANY_OF_ANY_SIZE,
    "compression.type": "zstd",  # a record that fitted its topic only because it was compressed fits here too
    "topic.metadata.propagation.max.ms": 5000,
}
_TIMED_OUT = "_MSG_TIMED_OUT"
_FATAL = KafkaError(KafkaError._FATAL)


@dataclass(frozen=True, slots=True)
class Letter:
    """A record for the dead-letter topic, and the headers with the reason; they come after the record's own."""

    source: Found | Message
    headers: Sequence[tuple[str, bytes]]

    @property
    def message(self) -> Message:
        """The record that the letter holds."""
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
    partition: int = -1
    offset: int = -1
    """Where the broker has put the letter; -1 if it is not confirmed."""

    @property
    def denied(self) -> bool:
        """Whether the login lacks the right to write the letter."""
        return not self.confirmed and is_denial(self.error or "")


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
        """Returns the next form to try, which sends less; None if nothing is left to omit."""
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

    def finish(self, error: str | None, arrived: Message | None = None) -> None:
        """Sets the result: confirmed if `error` is None, at the place of the message that has arrived."""
        omitted = error is None and not self.form.value
        place = (-1, -1) if arrived is None else (arrived.partition() or 0, arrived.offset() or 0)
        self.delivery = Delivery(self.letter, error is None, error or self.refusal, omitted, *place)


class DeadLetters(Closing):
    """A producer to one topic, which must exist. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], topic: str, *, timeout: float = TIMEOUT) -> None:
        self.topic = topic
        self._config = config
        self._settings: dict[str, object] = {**_SETTINGS, "message.timeout.ms": int(timeout * 1000)}
        self._last = LastError()
        self._settings["error_cb"] = self._last
        self._batching = clients.producer(config, **self._settings)
        self._unbatched: Producer | None = None
        self._to_resend: deque[_Posting] = deque()
        self._confirmed_at = 0.0
        self._gave_up = False
        self._fatal: str | None = None
        """The name of a producer's fatal error, once a letter has failed by it."""

    def close(self) -> None:
        """Drops the letters that have no answer yet, and closes the connections."""
        for producer in self._producers():
            drop_unanswered(producer)

    def send(self, letters: Iterable[Letter]) -> Iterator[Delivery]:
        """Sends each letter and yields the results in the same order; a letter that fails raises nothing.

        Lazy: takes from `letters` as fast as the broker acknowledges, with at most a thousand letters or 32 MiB without
        an answer. After a letter has timed out and no later one was confirmed, gives up the following letters unsent,
        until one is confirmed.
        """
        window: deque[_Posting] = deque()
        window_bytes = 0
        for letter in letters:
            source = letter.source
            headers = source.headers if isinstance(source, Found) else headers_of(source)
            if headers is None:
                headers = [(HEADERS_HEADER, b"omitted: a name is not UTF-8")]
            posting = _Posting(letter, time.monotonic(), headers)
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
            self._serve(POLL_SECONDS)
        if posting.delivery.error == _FATAL.name():
            self._fatal = self._fatal or cause_of(_FATAL, self._last, *self._producers()).name()
            return replace(posting.delivery, error=self._fatal)
        return posting.delivery

    def _serve(self, wait: float) -> None:
        """Handles the broker's answers, and sends each refused letter in its next form."""
        for producer in self._producers():
            with suppress(KafkaException):  # a fatal error: each letter gets it as its own result, too
                producer.poll(wait if len(producer) else 0)
        while self._to_resend:
            self._post(self._to_resend.popleft())

    def _post(self, posting: _Posting) -> None:
        if self._gave_up:
            posting.finish(_TIMED_OUT)
            return
        message, form = posting.letter.message, posting.form
        key, kept = message.key(), posting.original_headers
        size = len(key or b"") + sum(len(name) + len(value or b"") for name, value in kept)
        if not form.value and (size > KEPT_BYTES or not form.key_and_headers):
            key, kept = None, []
        headers: list[tuple[str, str | bytes | None]] = [*kept, *posting.letter.headers]
        if not form.value:
            headers.append((PAYLOAD_HEADER, f"omitted: {posting.refusal}".encode()))
        # The letter gets today's timestamp. With the record's own (which is in a header), retention of the dead-letter
        # topic would delete the letter of an old record at once.
        produce(
            self._unbatched_producer() if form.own_batch else self._batching,
            self.topic, key, message.value() if form.value else None, headers,
            lambda error, message: self._on_delivery(posting, error, message),
        )  # fmt: skip

    def _on_delivery(self, posting: _Posting, error: KafkaError | None, message: Message | None) -> None:
        if error is None:
            self._confirmed_at, self._gave_up = time.monotonic(), False
            posting.finish(None, message)
            return
        form = posting.form.smaller() if error.name() in REFUSED else None
        if form is not None:
            posting.form, posting.refusal = form, error.name()
            self._to_resend.append(posting)
            return
        if error.name() == _TIMED_OUT and self._confirmed_at < posting.posted_at:
            self._gave_up = True
        posting.finish(self._last.cause(error).name())

    def _producers(self) -> list[Producer]:
        return [self._batching] if self._unbatched is None else [self._batching, self._unbatched]

    def _unbatched_producer(self) -> Producer:
        """The producer that puts each record into a batch of its own."""
        if self._unbatched is None:
            self._unbatched = clients.producer(self._config, **self._settings, **{"batch.num.messages": 1})
        return self._unbatched


SEARCH_SECONDS = 60.0
"""Seconds after which a search gives up."""
SENT_BEFORE = timedelta(hours=1)
"""The search first reads the letters from this long before the record was given up, and older ones only then."""
FIRST_HEADER = "ackline.pipeline"
"""The first header that Ackline appends to those of the record."""
_DOING = "reading the dead letters"
_SEARCH_POLL_SECONDS = 0.2
_BATCH = 500
# Retention may pass the position: then the search goes on at the log start.
_FETCH = {**clients.DENSE_FETCH, "auto.offset.reset": "earliest"}


@dataclass(frozen=True, slots=True)
class LetterId:
    """The identity of a dead letter: the lane and epoch that have sent it, and the record that it holds."""

    pipeline: str
    lane: str
    epoch: int
    tp: TopicPartition
    offset: int

    def is_of(self, headers: Mapping[str, str]) -> bool:
        """Returns whether these headers, which Ackline has appended, are those of this letter."""
        names = ("pipeline", "lane", "epoch", "topic", "partition", "offset")
        values = (self.pipeline, self.lane, self.epoch, *self.tp, self.offset)
        return all(headers.get(f"ackline.{name}") == str(value) for name, value in zip(names, values, strict=True))


@dataclass(frozen=True, slots=True)
class FoundLetter:
    """A dead letter in its topic. `headers` are Ackline's own, `source_headers` those of the record."""

    tp: TopicPartition
    offset: int
    sent_at: datetime | None
    headers: Mapping[str, str]
    source_headers: Headers
    key: bytes | None
    value: bytes | None


def split_headers(headers: Headers) -> tuple[Headers, dict[str, str]]:
    """Returns the headers of the record, and those that Ackline has appended.

    The record may have headers of the same names, if it is a dead letter itself. Ackline's are the last ones.
    """
    names = [name for name, _ in headers]
    first = len(names) - 1 - names[::-1].index(FIRST_HEADER) if FIRST_HEADER in names else len(names)
    return headers[:first], {name: (value or b"").decode(errors="replace") for name, value in headers[first:]}


def find_letter(
    config: Mapping[str, object],
    cluster: Cluster,
    isolation: str,
    topic: str,
    wanted: LetterId,
    given_up_at: datetime,
    timeout: float = SEARCH_SECONDS,
) -> FoundLetter | None:
    """Returns the last letter with this identity, or None if the topic does not hold one any more.

    Reads first what was sent from SENT_BEFORE on, and the older part only if the letter is not there. Raises
    ConfigError if the topic does not exist, TransientError after `timeout` seconds and if no broker answers.
    """
    described = cluster.topics([topic]).get(topic)
    if described is None:
        raise ConfigError(f"the dead-letter topic {topic} does not exist any more", key="dead_letter.topic")
    bounds = cluster.bounds(TopicPartition(topic, number) for number in described.partitions)
    recent = cluster.offsets_at(bounds, given_up_at - SENT_BEFORE)
    split = {
        tp: log.end if (first := recent[tp]) is None else min(max(log.start, first), log.end)
        for tp, log in bounds.items()
    }
    deadline, last = time.monotonic() + timeout, LastError()
    client = clients.consumer(config, isolation, **_FETCH, error_cb=last)
    try:
        with clients.as_ackline_errors(_DOING, config, last):
            for parts in (
                {tp: OffsetRange(split[tp], log.end) for tp, log in bounds.items()},
                {tp: OffsetRange(log.start, split[tp]) for tp, log in bounds.items()},
            ):
                letter = _Search(client, config, last, wanted, deadline, timeout).read(parts)
                if letter is not None:
                    return letter
    finally:
        client.close()
    return None


@dataclass(slots=True)
class _Search:
    client: Consumer
    config: Mapping[str, object]
    last: LastError
    wanted: LetterId
    deadline: float
    timeout: float
    letter: FoundLetter | None = None

    def read(self, parts: Mapping[TopicPartition, OffsetRange]) -> FoundLetter | None:
        """Reads these parts of the topic to their ends. Returns the last letter with the wanted identity, or None."""
        active = {tp: part.end for tp, part in parts.items() if part}
        self.client.assign([ClientPartition(*tp, parts[tp].start) for tp in active])
        while active:
            if time.monotonic() > self.deadline:
                tp = next(iter(active))
                raise TransientError(
                    f"the dead letter was not found in {tp.topic} within {self.timeout:g} s, and not all of it is read."
                    f" Run this again, or look for its headers `ackline.topic`, `ackline.partition` and "
                    f"`ackline.offset` with a Kafka client",
                    tp=tp,
                )
            for message in self.client.consume(_BATCH, _SEARCH_POLL_SECONDS):
                self._take(message, active)
        self.client.unassign()
        return self.letter

    def _take(self, message: Message, active: dict[TopicPartition, int]) -> None:
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        error, offset = message.error(), message.offset()
        if error is not None and error.name() == "_PARTITION_EOF":
            self._leave(tp, active)
        elif error is not None and not is_transient(error):
            raise ackline_error(error, _DOING, self.config, tp, offset, self.last)
        elif error is None and offset is not None and tp in active:
            if offset < active[tp]:
                self._compare(message, tp, offset)
            if offset >= active[tp] - 1:
                self._leave(tp, active)

    def _leave(self, tp: TopicPartition, active: dict[TopicPartition, int]) -> None:
        if active.pop(tp, None) is not None:
            self.client.incremental_unassign([ClientPartition(*tp)])

    def _compare(self, message: Message, tp: TopicPartition, offset: int) -> None:
        headers = headers_of(message)
        source, own = split_headers(headers or [])
        if self.wanted.is_of(own):
            kind, milliseconds = message.timestamp()
            sent_at = timestamp_of(milliseconds) if kind else None
            self.letter = FoundLetter(tp, offset, sent_at, own, source, message.key(), message.value())
