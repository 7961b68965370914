"""What the log may hold (S1, S6, S40, S43, S44): everything that exists is handled once, exactly as it was produced."""

import json
from contextlib import closing

import pytest

from ackline.kafka.cluster import Cluster
from ackline.local.processes import wait_until
from ackline.offsets import TopicPartition
from tests.conftest import MakeTopic
from tests.contract.kafka_log import (
    COMPACTED,
    aborted,
    compact,
    config,
    delete_before,
    fill,
    offsets,
    producer,
    put,
    transaction,
)
from tests.spark.bench import Bench

ODD = [
    (b"k", b"plain"),
    (None, b"without a key"),
    (b"", b""),
    (b"\xff\xfe", b"\xc3\x28 undecodable \x00"),
    (b"big", b"x" * 900_000),
    (b"k", '{"é": "<script>"}'.encode()),
]


def produce_odd(bench: Bench, name: str) -> int:
    """Each odd record several times, saying in a header what it is."""
    client = producer(bench.broker, **{"message.max.bytes": 2_000_000, "compression.type": "lz4"})
    for number in range(4 * len(ODD)):
        key, value = ODD[number % len(ODD)]
        names = ["wanted", "twice", "none", "twice", "bytes"]
        wanted = {
            "key": None if key is None else key.hex(),
            "value": [len(value), value[:8].hex()],
            "names": names,
            "timestamp": 1_700_000_000_000 + number,
        }
        texts: list[str | bytes | None] = [json.dumps(wanted).encode(), b"1", None, b"2", b"\xff\x00"]
        headers = list(zip(names, texts, strict=True))
        client.produce(name, value, key, headers=headers, timestamp=1_700_000_000_000 + number)
    assert client.flush(30) == 0
    return 4 * len(ODD)


def log_end(bench: Bench, name: str) -> int:
    """The high watermark."""
    place = TopicPartition(name, 0)
    with closing(Cluster(config(bench.broker), "read_uncommitted")) as cluster:
        return cluster.bounds([place])[place].end


@pytest.mark.parametrize("handler", ["checks", "arrow_checks", "column_checks"])
def test_odd_records_reach_the_handler_as_produced(bench: Bench, topic: MakeTopic, handler: str) -> None:
    """S44: null keys, empty values, undecodable bytes, 900 KB values, headers: each has an outcome."""
    name = topic(1, {"retention.ms": "-1"})
    count = produce_odd(bench, name)
    place = TopicPartition(name, 0)
    job = bench.job(handler, {place: (0, count)})
    bench.run(job)
    assert bench.outcomes(job) == [(offset, "acked", None) for offset in range(count)]
    stored = bench.rows(job)[3]["record_timestamp"]
    assert stored.timestamp() * 1000 == 1_700_000_000_003


@pytest.mark.parametrize("handler", ["checks", "arrow_checks"])
def test_odd_records_reach_the_handler_again_as_produced(bench: Bench, topic: MakeTopic, handler: str) -> None:
    name = topic(1, {"retention.ms": "-1"})
    count = produce_odd(bench, name)
    job = bench.job(handler, None, {TopicPartition(name, 0): dict.fromkeys(range(0, count, 2), 2)})
    bench.run(job)
    assert bench.outcomes(job) == [(offset, "acked", None) for offset in range(0, count, 2)]
    assert {row["attempt"] for row in bench.rows(job)} == {2}


def test_an_aborted_or_open_transaction_is_not_handled_under_read_committed(bench: Bench, topic: MakeTopic) -> None:
    """S6, S43, I14: markers and aborted records are gaps, also at the end of the range."""
    name = topic()
    put(bench.broker, name, [(None, b"a")])
    aborted(bench.broker, name, [b"never", b"never"])
    put(bench.broker, name, [(None, b"b")])
    aborted(bench.broker, name, [b"never"])
    place = TopicPartition(name, 0)
    # The markers, which take an offset each, are written some time after the transaction has ended.
    assert wait_until(lambda: log_end(bench, name) == 7, 30)
    for isolation, count in (("read_committed", 2), ("read_uncommitted", 5)):
        job = bench.job("ack", {place: (0, 7)}, isolation=isolation)
        bench.run(job)
        handled = [offset for offset, _, _ in bench.outcomes(job)]
        assert handled == offsets(bench.broker, name, isolation)
        assert len(handled) == count
    with transaction(bench.broker, f"open-{name}") as client:
        client.produce(name, b"open", partition=0)
        assert client.flush(30) == 0
        below = bench.job("ack", {place: (0, 7)})
        assert bench.run(below).calls == 2
        client.abort_transaction(30)


def test_compacted_records_are_gaps_when_fresh_and_said_when_they_were_to_be_retried(
    bench: Bench, topic: MakeTopic
) -> None:
    """S1, S40."""
    name = topic(1, COMPACTED)
    put(bench.broker, name, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2")])
    compact(bench.broker, name, [0, 1])
    end = max(offsets(bench.broker, name)) + 1
    place = TopicPartition(name, 0)
    fresh = bench.job("ack", {place: (0, end)})
    bench.run(fresh)
    assert [offset for offset, _, _ in bench.outcomes(fresh)] == offsets(bench.broker, name)
    for handler in ("ack", "column_words"):
        retry = bench.job(handler, None, {place: {0: 2, 1: 3, 3: 2}})
        result = bench.run(retry)
        rows = [(row["offset"], row["outcome"], row["attempt"], row["record_timestamp"]) for row in bench.rows(retry)]
        assert rows[:2] == [(0, "compacted", 0, None), (1, "compacted", 0, None)]
        assert rows[2][:3] == (3, "acked" if handler == "ack" else "failed", 2)
        assert result.calls == 1


def test_retries_that_retention_took_are_expired(bench: Bench, topic: MakeTopic) -> None:
    """S41."""
    name = topic()
    fill(bench.broker, name, 20)
    delete_before(bench.broker, name, 8)
    place = TopicPartition(name, 0)
    job = bench.job("ack", {place: (18, 20)}, {place: {3: 2, 4: 2, 9: 2}})
    bench.run(job)
    rows = [(row["offset"], row["outcome"], row["attempt"]) for row in bench.rows(job)]
    assert rows == [(3, "expired", 0), (4, "expired", 0), (9, "acked", 2), (18, "acked", 1), (19, "acked", 1)]


def test_an_empty_range_in_a_gap_gives_no_rows(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    put(bench.broker, name, [(None, b"a")])
    aborted(bench.broker, name, [b"never"] * 3)
    result = bench.run(bench.job("ack", {TopicPartition(name, 0): (1, 5)}))
    assert (result.files, result.calls, result.counts) == ((), 0, {})


def test_nothing_to_read_needs_no_job(bench: Bench, topic: MakeTopic) -> None:
    result = bench.run(bench.job("ack"))
    assert (result.files, result.calls, result.fetched_for_retries) == ((), 0, 0)
