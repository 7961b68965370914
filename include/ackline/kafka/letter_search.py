"""Finds the dead letter of one record in a dead-letter topic, for `ackline dead NAME TOPIC PARTITION OFFSET`.

No table holds where a letter is: the broker gives its offset after it was sent, and a crash may send it twice. So the
search reads the topic from shortly before the record was given up, and then what is older. It keeps no record but the
letter, and ends after SEARCH_SECONDS.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import ConfigError, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import LastError, ackline_error, is_transient, kafka_error
from ackline.kafka.cluster import Cluster
from ackline.kafka.fetching import Headers, headers_of
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import timestamp_of

SEARCH_SECONDS = 60.0
"""Seconds after which a search gives up."""
SENT_BEFORE = timedelta(hours=1)
"""The search first reads the letters from this long before the record was given up, and older ones only then."""
FIRST_HEADER = "ackline.pipeline"
"""The first header that Ackline appends to those of the record."""
_POLL_SECONDS = 0.2
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
    split = {tp: _within(recent[tp], log) for tp, log in bounds.items()}
    deadline, last = time.monotonic() + timeout, LastError()
    client = clients.consumer(config, "ackline-letters", isolation, **_FETCH, error_cb=last)
    try:
        for parts in (
            {tp: OffsetRange(split[tp], log.end) for tp, log in bounds.items()},
            {tp: OffsetRange(log.start, split[tp]) for tp, log in bounds.items()},
        ):
            letter = _Search(client, config, last, wanted, deadline, timeout).read(parts)
            if letter is not None:
                return letter
    except KafkaException as raised:
        raise ackline_error(
            kafka_error(raised) or KafkaError(KafkaError._FAIL), "reading the dead letters", config, last=last
        ) from raised
    finally:
        client.close()
    return None


def _within(offset: int | None, log: LogBounds) -> int:
    return log.end if offset is None else min(max(log.start, offset), log.end)


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
                topic = next(iter(active)).topic
                raise TransientError(
                    f"the dead letter was not found in {topic} within {self.timeout:g} s, and not all of it is read. "
                    f"Run this again, or look for its headers `ackline.topic`, `ackline.partition` and "
                    f"`ackline.offset` with a Kafka client",
                    topic=topic,
                )
            for message in self.client.consume(_BATCH, _POLL_SECONDS):
                self._take(message, active)
        self.client.unassign()
        return self.letter

    def _take(self, message: Message, active: dict[TopicPartition, int]) -> None:
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        error, offset = message.error(), message.offset()
        if error is not None and error.name() == "_PARTITION_EOF":
            self._leave(tp, active)
        elif error is not None and not is_transient(error):
            raise ackline_error(error, "reading the dead letters", self.config, tp, offset, self.last)
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
