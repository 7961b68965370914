"""Dead letters on a real topic: whole if the broker takes them, else with headers only, and never lost."""

import itertools
import random
import time
import uuid
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Message, Producer

from ackline.kafka.dead_letters import KEPT_BYTES, PAYLOAD_HEADER, DeadLetters, Delivery, Letter
from ackline.kafka.exact import Found, read_exactly
from ackline.ledger.offsets import TopicPartition
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import config, messages, producer

REASON = [("ackline.pipeline", b"orders"), ("ackline.attempts", b"4")]
OMITTED = (PAYLOAD_HEADER, b"omitted: MSG_SIZE_TOO_LARGE")
TIMESTAMP = int(time.time() * 1000) - 60_000
KeyValue = tuple[bytes | None, bytes | None]


def noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.Random(size).randbytes(size)


def sources(broker: Broker, topic: str, *records: KeyValue, headers: Mapping[str, bytes] | None = None) -> list[Found]:
    """Produces records to a source topic and reads them back."""
    client: Producer = producer(broker, **{"message.max.bytes": 10_000_000})
    for key, value in records:
        client.produce(topic, value, key, partition=0, headers=dict(headers or {}), timestamp=TIMESTAMP)
    assert client.flush(30) == 0
    wanted = {TopicPartition(topic, 0): range(len(records))}
    found = [result for result in read_exactly(config(broker), "read_committed", wanted) if isinstance(result, Found)]
    assert len(found) == len(records)
    return found


def send(broker: Broker, topic: str, found: list[Found], **settings: float) -> list[Delivery]:
    with DeadLetters(config(broker), topic, **settings) as dead_letters:
        return list(dead_letters.send(Letter(source, REASON) for source in found))


def results(deliveries: list[Delivery]) -> list[tuple[bool, str | None, bool]]:
    return [(delivery.confirmed, delivery.error, delivery.omitted) for delivery in deliveries]


def content(message: Message) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    headers: list[tuple[str, bytes]] = list(message.headers() or ())  # type: ignore[arg-type]
    return message.key(), message.value(), headers


CONFIRMED = (True, None, False)


def test_a_letter_has_the_original_key_value_and_headers_and_the_reason(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    records: list[KeyValue] = [(b"k", b"v"), (None, b"\xff\x00"), (b"", b""), (b"tombstone", None)]
    found = sources(broker, topic(), *records, headers={"trace": b"\xfe", "empty": b""})
    deliveries = send(broker, dead, found)
    assert results(deliveries) == [CONFIRMED] * 4
    assert [delivery.letter.source for delivery in deliveries] == found
    places = {(delivery.partition, delivery.offset) for delivery in deliveries}
    assert places == {(message.partition(), message.offset()) for message in messages(broker, dead)}
    headers = [("trace", b"\xfe"), ("empty", b""), *REASON]
    assert [content(m) for m in messages(broker, dead)] == [(key, value, headers) for key, value in records]


def test_a_plain_message_may_be_sent_as_well(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    (found,) = sources(broker, topic(), (b"k", b"v"))
    with DeadLetters(config(broker), dead) as dead_letters:
        assert results(list(dead_letters.send([Letter(found.message, [])]))) == [CONFIRMED]
        assert list(dead_letters.send([])) == []
    assert [content(m) for m in messages(broker, dead)] == [(b"k", b"v", [])]


def test_a_record_too_large_for_the_topic_goes_as_headers_only_and_its_neighbours_whole(
    broker: Broker, topic: MakeTopic
) -> None:
    dead = topic(config={"max.message.bytes": "20000"})
    values = [b"1", noise(30_000), b"3", noise(15_000), noise(9000)]
    records: list[KeyValue] = list(zip([b"a", b"b", b"c", b"d", b"e"], values, strict=True))
    deliveries = send(broker, dead, sources(broker, topic(), *records, headers={"trace": b"1"}))
    assert [(d.confirmed, d.omitted) for d in deliveries] == [(True, key == b"b") for key, _ in records]
    assert deliveries[1].error == "MSG_SIZE_TOO_LARGE"
    by_key = {m.key(): content(m) for m in messages(broker, dead)}
    headers = [("trace", b"1"), *REASON]
    assert by_key[b"b"] == (b"b", None, [*headers, OMITTED])
    assert [by_key[key] for key, _ in records[2:]] == [(key, value, headers) for key, value in records[2:]]
    assert len(by_key) == len(messages(broker, dead)) == 5


@pytest.mark.parametrize(("limit", "key_size"), [(100_000, KEPT_BYTES + 1), (5000, 6000)])
def test_a_key_and_headers_that_are_large_themselves_are_left_out_too(
    broker: Broker, topic: MakeTopic, limit: int, key_size: int
) -> None:
    """Larger than Ackline keeps beside an omitted value, or larger than the topic takes."""
    dead = topic(config={"max.message.bytes": str(limit)})
    deliveries = send(broker, dead, sources(broker, topic(), (noise(key_size), noise(50_000)), headers={"trace": b"1"}))
    assert results(deliveries) == [(True, "MSG_SIZE_TOO_LARGE", True)]
    assert [content(m) for m in messages(broker, dead)] == [(None, None, [*REASON, OMITTED])]


def test_what_fitted_the_source_only_compressed_fits_here(broker: Broker, topic: MakeTopic) -> None:
    large = {"max.message.bytes": "1000000"}
    source, dead = topic(config=large), topic(config=large)
    client = producer(broker, **{"message.max.bytes": 10_000_000, "compression.type": "gzip"})
    client.produce(source, b"abcdefgh" * 500_000, b"k", partition=0)
    assert client.flush(30) == 0
    found = read_exactly(config(broker), "read_committed", {TopicPartition(source, 0): [0]})
    assert results(send(broker, dead, [r for r in found if isinstance(r, Found)])) == [CONFIRMED]
    assert messages(broker, dead)[0].value() == b"abcdefgh" * 500_000


def test_a_record_that_the_topic_refuses_in_any_form_stays_unconfirmed_alone(broker: Broker, topic: MakeTopic) -> None:
    """A compacted topic takes no record without a key, not even with headers only."""
    dead = topic(config={"cleanup.policy": "compact"})
    deliveries = send(broker, dead, sources(broker, topic(), (b"a", b"1"), (None, b"2"), (b"c", b"3")))
    assert [(d.confirmed, d.omitted) for d in deliveries] == [(True, False), (False, False), (True, False)]
    assert deliveries[1].error == "INVALID_RECORD"
    assert {m.key() for m in messages(broker, dead)} == {b"a", b"c"}


def test_the_letter_of_an_old_record_is_not_old_itself(broker: Broker, topic: MakeTopic) -> None:
    """With the record's own time, this topic refuses the letter, and another's retention deletes it at once."""
    dead, before = topic(config={"message.timestamp.before.max.ms": "30000"}), int(time.time() * 1000)
    assert results(send(broker, dead, sources(broker, topic(), (b"a", b"1")))) == [CONFIRMED]
    (letter,) = messages(broker, dead)
    assert content(letter) == (b"a", b"1", REASON)
    assert letter.timestamp()[1] >= before > TIMESTAMP


def test_a_missing_topic_confirms_nothing_and_raises_nothing(broker: Broker, topic: MakeTopic) -> None:
    found = sources(broker, topic(), (b"a", b"1"), (b"b", b"2"))
    deliveries = send(broker, f"nowhere-{uuid.uuid4()}", found, timeout=10)
    assert [delivery.confirmed for delivery in deliveries] == [False, False]
    assert {delivery.error for delivery in deliveries} <= {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"}


def test_an_unreachable_broker_leaves_all_unconfirmed_after_one_time_out(
    broker: Broker, topic: MakeTopic, unreachable: dict[str, object]
) -> None:
    (found,) = sources(broker, topic(), (b"a", b"1"))
    started = time.monotonic()
    with DeadLetters(unreachable, "any", timeout=2) as dead_letters:
        deliveries = list(dead_letters.send(itertools.repeat(Letter(found, REASON), 5000)))
    assert time.monotonic() - started < 60
    assert results(deliveries) == [(False, "_MSG_TIMED_OUT", False)] * 5000


def test_letters_are_taken_as_the_broker_keeps_up(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    (found,) = sources(broker, topic(), (b"a", noise(500_000)))
    taken = 0

    def letters() -> Iterator[Letter]:
        nonlocal taken
        while taken < 120:
            taken += 1
            yield Letter(found, REASON)

    with DeadLetters(config(broker), dead) as dead_letters:
        for given, delivery in enumerate(dead_letters.send(letters())):
            assert delivery.confirmed
            assert taken - given <= 80  # 32 MiB of half a megabyte, and a little
    assert len(messages(broker, dead)) == taken == 120
