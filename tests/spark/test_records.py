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
from tests.spark.lab import Lab

ODD = [
    (b"k", b"plain"),
    (None, b"without a key"),
    (b"", b""),
    (b"\xff\xfe", b"\xc3\x28 undecodable \x00"),
    (b"big", b"x" * 900_000),
    (b"k", '{"é": "<script>"}'.encode()),
]


def produce_odd(lab: Lab, name: str) -> int:
    """Produces each odd record four times, with a header that describes it. Returns how many records those are."""
    client = producer(lab.broker, **{"message.max.bytes": 2_000_000, "compression.type": "lz4"})
    for number in range(4 * len(ODD)):
        key, value = ODD[number % len(ODD)]
        names = ["expected", "twice", "none", "twice", "bytes"]
        expected = {
            "key": None if key is None else key.hex(),
            "value": [len(value), value[:8].hex()],
            "names": names,
            "timestamp": 1_700_000_000_000 + number,
        }
        texts: list[str | bytes | None] = [json.dumps(expected).encode(), b"1", None, b"2", b"\xff\x00"]
        headers = list(zip(names, texts, strict=True))
        client.produce(name, value, key, headers=headers, timestamp=1_700_000_000_000 + number)
    assert client.flush(30) == 0
    return 4 * len(ODD)


def log_end(lab: Lab, name: str) -> int:
    """The high watermark."""
    tp = TopicPartition(name, 0)
    with closing(Cluster(config(lab.broker), "read_uncommitted")) as cluster:
        return cluster.bounds([tp])[tp].end


@pytest.mark.parametrize("handler", ["checks", "arrow_checks", "column_checks"])
def test_odd_records_reach_the_handler_as_produced(lab: Lab, topic: MakeTopic, handler: str) -> None:
    """S44: null keys, empty values, undecodable bytes, 900 KB values, headers: each has an outcome, fresh or retry."""
    name = topic(1, {"retention.ms": "-1"})
    count = produce_odd(lab, name)
    tp = TopicPartition(name, 0)
    fresh = lab.job(handler, {tp: (0, count)})
    lab.run(fresh)
    assert lab.outcomes(fresh) == [(offset, "acked", None) for offset in range(count)]
    assert lab.rows(fresh)[3]["record_timestamp"].timestamp() * 1000 == 1_700_000_000_003
    retries = lab.job(handler, None, {tp: dict.fromkeys(range(0, count, 2), 2)})
    lab.run(retries)
    assert lab.outcomes(retries) == [(offset, "acked", None) for offset in range(0, count, 2)]
    assert {row["attempt"] for row in lab.rows(retries)} == {2}


def test_an_aborted_or_open_transaction_is_not_handled_under_read_committed(lab: Lab, topic: MakeTopic) -> None:
    """S6, S43, I14: markers and aborted records are gaps, at the end of the range, too."""
    name = topic()
    put(lab.broker, name, [(None, b"a")])
    aborted(lab.broker, name, [b"never", b"never"])
    put(lab.broker, name, [(None, b"b")])
    aborted(lab.broker, name, [b"never"])
    tp = TopicPartition(name, 0)
    # The broker writes the markers, which have an offset each, some time after the transaction has ended.
    assert wait_until(lambda: log_end(lab, name) == 7, 30)
    for isolation, count in (("read_committed", 2), ("read_uncommitted", 5)):
        job = lab.job("ack", {tp: (0, 7)}, isolation_level=isolation)
        lab.run(job)
        handled = [offset for offset, _, _ in lab.outcomes(job)]
        assert handled == offsets(lab.broker, name, isolation)
        assert len(handled) == count
    with transaction(lab.broker, f"open-{name}") as client:
        client.produce(name, b"open", partition=0)
        assert client.flush(30) == 0
        below = lab.job("ack", {tp: (0, 7)})
        assert lab.run(below).calls == 2
        client.abort_transaction(30)


def test_compacted_records_are_gaps_if_fresh_and_compacted_if_retried(lab: Lab, topic: MakeTopic) -> None:
    """S1, S40."""
    name = topic(1, COMPACTED)
    put(lab.broker, name, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2")])
    compact(lab.broker, name, [0, 1])
    end = max(offsets(lab.broker, name)) + 1
    tp = TopicPartition(name, 0)
    fresh = lab.job("ack", {tp: (0, end)})
    lab.run(fresh)
    assert [offset for offset, _, _ in lab.outcomes(fresh)] == offsets(lab.broker, name)
    for handler in ("ack", "column_words"):
        retry = lab.job(handler, None, {tp: {0: 2, 1: 3, 3: 2}})
        result = lab.run(retry)
        rows = [(row["offset"], row["outcome"], row["attempt"], row["record_timestamp"]) for row in lab.rows(retry)]
        assert rows[:2] == [(0, "compacted", 0, None), (1, "compacted", 0, None)]
        assert rows[2][:3] == (3, "acked" if handler == "ack" else "failed", 2)
        assert result.calls == 1


def test_retries_that_retention_has_deleted_are_expired(lab: Lab, topic: MakeTopic) -> None:
    """S41."""
    name = topic()
    fill(lab.broker, name, 20)
    delete_before(lab.broker, name, 8)
    tp = TopicPartition(name, 0)
    job = lab.job("ack", {tp: (18, 20)}, {tp: {3: 2, 4: 2, 9: 2}})
    lab.run(job)
    rows = [(row["offset"], row["outcome"], row["attempt"]) for row in lab.rows(job)]
    assert rows == [(3, "expired", 0), (4, "expired", 0), (9, "acked", 2), (18, "acked", 1), (19, "acked", 1)]


def test_an_empty_range_in_a_gap_gives_no_rows_and_no_range_needs_no_job(lab: Lab, topic: MakeTopic) -> None:
    name = topic()
    put(lab.broker, name, [(None, b"a")])
    aborted(lab.broker, name, [b"never"] * 3)
    for job in (lab.job("ack", {TopicPartition(name, 0): (1, 5)}), lab.job("ack")):
        result = lab.run(job)
        assert (result.files, result.counts, result.calls, result.fetched_for_retries) == ((), {}, 0, 0)
