"""The keyed hash of a record's key in the column tier, where the key passes the JVM; tests/worker/test_tasks.py has the
other tiers."""

import hashlib
import hmac

import pytest

from ackline.ledger.offsets import TopicPartition
from tests.kafka.kafka_log import delete_before, put
from tests.spark.lab import Lab

SECRET = b"a secret of the tests"
KEYS = [b"4711", b"4712", None, b"", b"4711", b"\xff\x00"]
WORDS = [b"acked", b"failed", b"acked", b"skipped", None, b"acked"]


def expected(key: bytes | None) -> str | None:
    return None if key is None else hmac.new(SECRET, key, hashlib.sha256).hexdigest()[:32]


@pytest.fixture
def log(lab: Lab) -> tuple[TopicPartition, TopicPartition]:
    """Two partitions that hold the same records."""
    name = lab.topic(2)
    for partition in range(2):
        put(lab.broker, name, list(zip(KEYS, WORDS, strict=True)), partition)
    return TopicPartition(name, 0), TopicPartition(name, 1)


def test_the_column_tier_stores_the_hash_of_each_key_of_fresh_records_and_of_retries(
    lab: Lab, log: tuple[TopicPartition, TopicPartition]
) -> None:
    fresh, retries = log
    job = lab.ran("column_words", {fresh: (0, 6)}, {retries: dict.fromkeys(range(6), 2)}, key_hash_secret=SECRET)
    found = [(row["partition"], row["offset"], row["key_hash"]) for row in lab.rows(job)]
    assert found == [(partition, offset, expected(key)) for partition in (0, 1) for offset, key in enumerate(KEYS)]


def test_a_retry_that_the_log_no_longer_holds_has_no_hash(lab: Lab, log: tuple[TopicPartition, TopicPartition]) -> None:
    retries, _ = log
    delete_before(lab.broker, retries.topic, 4)
    job = lab.ran("column_words", None, {retries: {0: 2, 5: 2}}, key_hash_secret=SECRET)
    found = [(row["outcome"], row["key_hash"]) for row in lab.rows(job)]
    assert found == [("expired", None), ("acked", expected(b"\xff\x00"))]
