"""The keyed hash of a record's key is the same in all tiers, of fresh records and retries, isolated or not."""

import hashlib
import hmac

import pyarrow.parquet as pq
import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.streams import Stream, Translation
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


@pytest.mark.parametrize(
    ("handler", "settings"),
    [
        ("by_word", {}),
        ("arrow_words", {}),
        ("column_words", {}),
        ("by_word", {"isolated": True}),
        ("arrow_words", {"isolated": True, "record_timeout": 30.0}),
        ("by_word", {"once": True}),
    ],
)
def test_each_tier_stores_the_hash_of_each_key_of_fresh_records_and_of_retries(
    lab: Lab, log: tuple[TopicPartition, TopicPartition], handler: str, settings: dict[str, object]
) -> None:
    fresh, retries = log
    job = lab.ran(handler, {fresh: (0, 6)}, {retries: dict.fromkeys(range(6), 2)}, key_hash_secret=SECRET, **settings)
    found = [(row["partition"], row["offset"], row["key_hash"]) for row in lab.rows(job)]
    assert found == [(partition, offset, expected(key)) for partition in (0, 1) for offset, key in enumerate(KEYS)]


def test_the_raw_bytes_of_a_decoded_key_are_hashed(lab: Lab, log: tuple[TopicPartition, TopicPartition]) -> None:
    fresh, _ = log
    stream = Stream("", "tests.spark.stream_handlers:notes", key="utf8", value="utf8")
    job = lab.ran("by_word", {fresh: (0, 6)}, key_hash_secret=SECRET, translation=Translation((stream,)))
    assert [row["key_hash"] for row in lab.rows(job)] == [expected(key) for key in KEYS]


@pytest.mark.parametrize("handler", ["by_word", "column_words"])
def test_a_retry_that_the_log_no_longer_holds_has_no_hash(
    lab: Lab, log: tuple[TopicPartition, TopicPartition], handler: str
) -> None:
    retries, _ = log
    delete_before(lab.broker, retries.topic, 4)
    job = lab.ran(handler, None, {retries: {0: 2, 5: 2}}, key_hash_secret=SECRET)
    found = [(row["outcome"], row["key_hash"]) for row in lab.rows(job)]
    assert found == [("expired", None), ("acked", expected(b"\xff\x00"))]


def test_without_the_setting_the_files_have_no_such_column_and_the_table_reads_null(
    lab: Lab, log: tuple[TopicPartition, TopicPartition]
) -> None:
    fresh, _ = log
    job = lab.job("by_word", {fresh: (0, 6)})
    result = lab.run(job)
    for file in result.files:
        assert "key_hash" not in pq.read_schema(f"{lab.table.uri}/{file.path}").names
    assert {row["key_hash"] for row in lab.rows(job)} == {None}


@pytest.mark.parametrize("handler", ["by_word", "arrow_words"])
def test_the_process_of_an_isolated_handler_does_not_get_the_secret(lab: Lab, handler: str) -> None:
    from ackline.worker.run import without_secrets

    settings = lab.job(handler, key_hash_secret=SECRET, store_options={"aws_secret_access_key": "s"}).settings
    assert SECRET.decode() not in repr(settings)
    without = without_secrets(settings)
    assert (without.key_hash_secret, without.store_options) == (None, None)
