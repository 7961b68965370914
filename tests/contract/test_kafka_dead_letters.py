"""Dead letters on a real topic: whole where the broker takes them, headers only where it won't, never lost."""

import itertools
import random
import time
import uuid
from collections.abc import Iterator, Mapping

from confluent_kafka import Message, Producer

from ackline.kafka.config import client_config
from ackline.kafka.dead_letters import KEPT_BYTES, PAYLOAD_HEADER, DeadLetters, Letter, Sent
from ackline.kafka.exact import Found, read_exactly
from ackline.local.broker import Broker
from ackline.local.ports import free_ports
from ackline.offsets import TopicPartition
from tests.conftest import MakeTopic
from tests.contract.kafka_log import config, messages, producer

WHY = [("ackline.pipeline", b"orders"), ("ackline.attempts", b"4")]
STAMP = int(time.time() * 1000) - 60_000
Pair = tuple[bytes | None, bytes | None]


def noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.Random(size).randbytes(size)


def sources(
    broker: Broker, topic: str, *records: Pair, headers: Mapping[str, bytes] | None = None, timestamp: int = STAMP
) -> list[Found]:
    """Records of a source topic, read back."""
    client: Producer = producer(broker, **{"message.max.bytes": 10_000_000})
    for key, value in records:
        client.produce(topic, value, key, partition=0, headers=dict(headers or {}), timestamp=timestamp)
    assert client.flush(30) == 0
    wanted = {TopicPartition(topic, 0): range(len(records))}
    found = [result for result in read_exactly(config(broker), "read_committed", wanted) if isinstance(result, Found)]
    assert len(found) == len(records)
    return found


def sent(broker: Broker, topic: str, found: list[Found], **settings: float) -> list[Sent]:
    with DeadLetters(config(broker), topic, **settings) as dead_letters:
        return list(dead_letters.send(Letter(source, WHY) for source in found))


def shown(message: Message) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    headers: list[tuple[str, bytes]] = list(message.headers() or ())  # type: ignore[arg-type]
    return message.key(), message.value(), headers


def test_a_letter_has_the_original_key_value_and_headers_and_says_why(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    records: list[Pair] = [(b"k", b"v"), (None, b"\xff\x00"), (b"", b""), (b"tombstone", None)]
    found = sources(broker, topic(), *records, headers={"trace": b"\xfe", "empty": b""})
    answers = sent(broker, dead, found)
    assert [(a.confirmed, a.error, a.omitted) for a in answers] == [(True, None, False)] * 4
    assert [a.letter.source for a in answers] == found
    original = [("trace", b"\xfe"), ("empty", b"")]
    assert [shown(m) for m in messages(broker, dead)] == [(key, value, [*original, *WHY]) for key, value in records]


def test_a_plain_message_may_be_sent_as_well(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    found = sources(broker, topic(), (b"k", b"v"))
    with DeadLetters(config(broker), dead) as dead_letters:
        assert [a.confirmed for a in dead_letters.send([Letter(found[0].message, [])])] == [True]
        assert list(dead_letters.send([])) == []
    assert [shown(m) for m in messages(broker, dead)] == [(b"k", b"v", [])]


def test_a_record_too_large_for_the_topic_goes_as_headers_only_and_its_neighbours_whole(
    broker: Broker, topic: MakeTopic
) -> None:
    dead = topic(config={"max.message.bytes": "20000"})
    values = [b"1", noise(30_000), b"3", noise(15_000), noise(9000)]
    records: list[Pair] = list(zip([b"a", b"b", b"c", b"d", b"e"], values, strict=True))
    answers = sent(broker, dead, sources(broker, topic(), *records, headers={"trace": b"1"}))
    assert [a.confirmed for a in answers] == [True] * 5
    assert [a.omitted for a in answers] == [False, True, False, False, False]
    assert answers[1].error == "MSG_SIZE_TOO_LARGE"
    by_key = {m.key(): shown(m) for m in messages(broker, dead)}
    headers = [("trace", b"1"), *WHY]
    omitted = (PAYLOAD_HEADER, b"omitted: MSG_SIZE_TOO_LARGE")
    assert by_key[b"b"] == (b"b", None, [*headers, omitted])
    assert [by_key[key] for key, _ in records[2:]] == [(key, value, headers) for key, value in records[2:]]
    assert len(by_key) == len(messages(broker, dead)) == 5


def test_a_key_and_headers_that_are_large_themselves_are_left_out_too(broker: Broker, topic: MakeTopic) -> None:
    dead, tiny = topic(config={"max.message.bytes": "100000"}), topic(config={"max.message.bytes": "5000"})
    large = sources(broker, topic(), (noise(KEPT_BYTES + 1), noise(50_000)), headers={"trace": b"1"})
    small = sources(broker, topic(), (noise(6000), noise(8000)), headers={"trace": b"1"})
    for to, found in ((dead, large), (tiny, small)):
        (answer,) = sent(broker, to, found)
        assert (answer.confirmed, answer.omitted, answer.error) == (True, True, "MSG_SIZE_TOO_LARGE")
        (letter,) = messages(broker, to)
        assert shown(letter) == (None, None, [*WHY, (PAYLOAD_HEADER, b"omitted: MSG_SIZE_TOO_LARGE")])


def test_what_fitted_the_source_only_compressed_fits_here(broker: Broker, topic: MakeTopic) -> None:
    large = {"max.message.bytes": "1000000"}
    source, dead = topic(config=large), topic(config=large)
    client = producer(broker, **{"message.max.bytes": 10_000_000, "compression.type": "gzip"})
    client.produce(source, b"abcdefgh" * 500_000, b"k", partition=0)
    assert client.flush(30) == 0
    found = read_exactly(config(broker), "read_committed", {TopicPartition(source, 0): [0]})
    (answer,) = sent(broker, dead, [r for r in found if isinstance(r, Found)])
    assert answer == Sent(answer.letter, confirmed=True)
    assert messages(broker, dead)[0].value() == b"abcdefgh" * 500_000


def test_a_record_the_topic_refuses_for_what_it_is_stays_unconfirmed_alone(broker: Broker, topic: MakeTopic) -> None:
    """A compacted topic takes no record without a key, with headers only neither."""
    dead = topic(config={"cleanup.policy": "compact"})
    answers = sent(broker, dead, sources(broker, topic(), (b"a", b"1"), (None, b"2"), (b"c", b"3")))
    assert [a.confirmed for a in answers] == [True, False, True]
    assert answers[1].error == "INVALID_RECORD"
    assert not answers[1].omitted
    assert {m.key() for m in messages(broker, dead)} == {b"a", b"c"}


def test_the_letter_of_an_old_record_is_not_old_itself(broker: Broker, topic: MakeTopic) -> None:
    """By the record's own time, the topic would refuse it here, and elsewhere let retention take it at once."""
    dead, before = topic(config={"message.timestamp.before.max.ms": "30000"}), int(time.time() * 1000)
    (answer,) = sent(broker, dead, sources(broker, topic(), (b"a", b"1")))
    assert (answer.confirmed, answer.omitted, answer.error) == (True, False, None)
    (letter,) = messages(broker, dead)
    assert shown(letter) == (b"a", b"1", WHY)
    assert letter.timestamp()[1] >= before > STAMP


def test_a_missing_topic_confirms_nothing_and_raises_nothing(broker: Broker, topic: MakeTopic) -> None:
    found = sources(broker, topic(), (b"a", b"1"), (b"b", b"2"))
    answers = sent(broker, f"nowhere-{uuid.uuid4()}", found, timeout=10)
    assert [a.confirmed for a in answers] == [False, False]
    assert {a.error for a in answers} <= {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"}


def test_a_broker_that_is_away_leaves_all_unconfirmed_after_one_time_out(broker: Broker, topic: MakeTopic) -> None:
    (found,) = sources(broker, topic(), (b"a", b"1"))
    away = client_config({"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"})
    started = time.monotonic()
    with DeadLetters(away, "any", timeout=2) as dead_letters:
        answers = list(dead_letters.send(itertools.repeat(Letter(found, WHY), 5000)))
    assert time.monotonic() - started < 60
    assert len(answers) == 5000
    assert {(a.confirmed, a.error) for a in answers} == {(False, "_MSG_TIMED_OUT")}


def test_a_bounce_while_sending_loses_and_repeats_nothing(fragile: Broker) -> None:
    source, dead = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("source", "dead"))
    for name in (source, dead):
        fragile.create_topic(name)
    found = sources(fragile, source, *((b"%d" % i, b"v") for i in range(3000)))
    with DeadLetters(config(fragile), dead, timeout=60) as dead_letters:
        answers = dead_letters.send(Letter(one, WHY) for one in found)
        confirmed = [next(answers) for _ in range(100)]
        fragile.bounce()
        confirmed += list(answers)
    assert all(answer.confirmed for answer in confirmed)
    assert [m.key() for m in messages(fragile, dead)] == [f.message.key() for f in found]


def test_letters_are_taken_as_the_broker_keeps_up(broker: Broker, topic: MakeTopic) -> None:
    dead = topic()
    (found,) = sources(broker, topic(), (b"a", noise(500_000)))
    taken = 0

    def letters() -> Iterator[Letter]:
        nonlocal taken
        while taken < 300:
            taken += 1
            yield Letter(found, WHY)

    with DeadLetters(config(broker), dead) as dead_letters:
        for given, answer in enumerate(dead_letters.send(letters())):
            assert answer.confirmed
            assert taken - given <= 80  # 32 MiB of half a megabyte, and a little
    assert len(messages(broker, dead)) == taken == 300
