"""The search for one dead letter on a real topic: exact, bounded, and whatever else the topic holds."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer

from ackline.errors import ConfigError, TransientError
from ackline.kafka import dead_letters
from ackline.kafka.cluster import Cluster
from ackline.kafka.dead_letters import FoundLetter, LetterId, find_letter, split_headers
from ackline.ledger.offsets import TopicPartition
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.kafka import kafka_log
from tests.kafka.kafka_log import config, producer

NOW = datetime.now(UTC)
WANTED = LetterId("lab", "live", 2, TopicPartition("orders", 3), 1041)
Headers = list[tuple[str, bytes]]


def headers_of(letter: LetterId = WANTED, turn: int = 7, **changed: object) -> Headers:
    names = {"pipeline": letter.pipeline, "lane": letter.lane, "epoch": letter.epoch, "topic": letter.tp.topic,
             "partition": letter.tp.partition, "offset": letter.offset, "turn": turn}  # fmt: skip
    return [(f"ackline.{name}", str(value).encode()) for name, value in {**names, **changed}.items()]


class DeadTopic:
    """A dead-letter topic of three partitions, and the search in it."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker, self.name = broker, name
        self.producer: Producer = producer(broker)

    def put(self, headers: Headers, value: bytes = b"", partition: int = 0, at: datetime = NOW) -> None:
        stamp = int(at.timestamp() * 1000)
        self.producer.produce(self.name, value, b"key", partition=partition, headers=headers, timestamp=stamp)  # type: ignore[arg-type]
        assert self.producer.flush(30) == 0

    def find(self, wanted: LetterId = WANTED, at: datetime = NOW, timeout: float = 30.0) -> FoundLetter | None:
        with Cluster(config(self.broker), "read_committed") as cluster:
            return find_letter(config(self.broker), cluster, "read_committed", self.name, wanted, at, timeout)


@pytest.fixture
def dead(broker: Broker, topic: MakeTopic) -> DeadTopic:
    return DeadTopic(broker, topic(3))


def test_the_letter_is_found_among_others_by_its_identity(dead: DeadTopic) -> None:
    dead.put([], b"of another application")
    dead.put([("\u00fc", b"1")], b"with a header of its own", 1)
    others: list[dict[str, object]] = [
        {"pipeline": "x"}, {"lane": "backfill-1"}, {"epoch": 1}, {"topic": "x"}, {"partition": 0}, {"offset": 1042},
    ]  # fmt: skip
    for changed in others:
        dead.put(headers_of(WANTED, 7, **changed), b"of another record", 2)
    assert dead.find() is None
    dead.put([("trace", b"t-1"), ("trace", b"t-2"), *headers_of()], b"payload", 2)
    found = dead.find()
    assert found is not None
    assert (found.tp, found.offset, found.value, found.key) == (TopicPartition(dead.name, 2), 6, b"payload", b"key")
    assert found.source_headers == [("trace", b"t-1"), ("trace", b"t-2")]
    assert found.headers["ackline.turn"] == "7"
    assert found.sent_at is not None
    assert abs(found.sent_at - NOW) < timedelta(seconds=1)


def test_of_a_letter_that_was_sent_twice_the_last_one_is_found(dead: DeadTopic) -> None:
    dead.put(headers_of(turn=7), b"first")
    dead.put(headers_of(turn=8), b"second")
    found = dead.find()
    assert found is not None
    assert (found.value, found.headers["ackline.turn"]) == (b"second", "8")


def test_a_letter_of_a_letter_is_known_by_the_headers_that_were_appended_last(dead: DeadTopic) -> None:
    """A pipeline may read a dead-letter topic: its records have headers of the same names."""
    inner = LetterId("first", "live", 0, TopicPartition("source", 1), 5)
    dead.put([*headers_of(inner, error_message="of the first"), *headers_of()])
    found = dead.find()
    assert found is not None
    assert ("ackline.error_message", b"of the first") in found.source_headers
    assert "ackline.error_message" not in found.headers
    assert dead.find(inner) is None
    assert split_headers([("ackline.offset", b"1041")]) == ([("ackline.offset", b"1041")], {})


def test_a_letter_that_was_sent_by_another_clock_is_found_in_the_older_part(dead: DeadTopic) -> None:
    dead.put(headers_of(), b"old", at=NOW - timedelta(days=3))
    dead.put([], b"new", 1)
    found = dead.find()
    assert found is not None
    assert found.value == b"old"
    assert dead.find(at=NOW + timedelta(days=300)) == found


def test_what_retention_took_and_open_or_aborted_transactions_do_not_keep_the_search_from_its_end(
    dead: DeadTopic,
) -> None:
    dead.put(headers_of(), b"gone")
    dead.put([], b"kept")
    kafka_log.delete_before(dead.broker, dead.name, 1)
    kafka_log.aborted(dead.broker, dead.name, [b"aborted"])
    began = time.monotonic()
    assert dead.find() is None
    assert time.monotonic() - began < 20


def test_a_search_that_takes_too_long_ends_with_an_error(dead: DeadTopic) -> None:
    dead.put([], b"x")
    with pytest.raises(TransientError, match=r"was not found in .* within 0 s, and not all of it is read"):
        dead.find(timeout=0)


def test_it_reads_in_batches_and_keeps_one_letter(dead: DeadTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_BATCH", 7)
    for n in range(100):
        dead.put(headers_of(offset=n), partition=n % 3)
    dead.put(headers_of(), b"payload", 1)
    found = dead.find()
    assert found is not None
    assert found.value == b"payload"


def test_a_topic_that_does_not_exist_is_named(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="the dead-letter topic nowhere does not exist any more"):
        DeadTopic(broker, "nowhere").find()
