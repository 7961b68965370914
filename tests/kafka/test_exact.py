"""Exact reads on a real broker: every wanted offset gets one answer, which is proved and costs little."""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pytest

from ackline.errors import FatalError
from ackline.kafka import fetching
from ackline.kafka.exact import ExactReader, Found, Gone, read_exactly
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.kafka.kafka_log import (
    COMPACTED,
    aborted,
    compact,
    config,
    delete_before,
    end,
    fill,
    offsets,
    producer,
    put,
)

Answers = list[tuple[int, bytes | Outcome | None]]
"""Each offset of a partition with the record's value, or with the reason why there is no record."""


def answers(results: Iterable[Found | Gone]) -> Answers:
    return [(r.offset, r.message.value() if isinstance(r, Found) else r.outcome) for r in results]


def results(broker: Broker, topic: str, wanted: Sequence[int]) -> Iterator[Found | Gone]:
    return read_exactly(config(broker), "read_committed", {TopicPartition(topic, 0): wanted})


def read(broker: Broker, topic: str, wanted: Sequence[int]) -> Answers:
    return answers(results(broker, topic, wanted))


def values(offsets: Iterable[int]) -> Answers:
    """The answers for records whose value is their offset."""
    return [(offset, b"%d" % offset) for offset in offsets]


def gone(outcome: Outcome, *offsets: int) -> Answers:
    return [(offset, outcome) for offset in offsets]


expired, compacted = partial(gone, Outcome.EXPIRED), partial(gone, Outcome.COMPACTED)


@pytest.fixture
def name(topic: MakeTopic) -> str:
    """A topic of one partition."""
    return topic()


def test_every_wanted_offset_of_every_partition_is_answered_once_and_in_its_order(
    broker: Broker, reader: ExactReader, topic: MakeTopic
) -> None:
    name, rng = topic(partitions=4), random.Random(1)
    wanted = {}
    for partition in range(4):
        fill(broker, name, 5000, partition)
        wanted[TopicPartition(name, partition)] = sorted(rng.sample(range(5000), 200))
    found = list(reader.read(wanted))
    for tp, offsets_of_tp in wanted.items():
        of_tp = [result for result in found if result.topic_partition == tp]
        assert answers(of_tp) == values(offsets_of_tp)
        assert all(isinstance(r, Found) and r.message.partition() == tp.partition for r in of_tp)
    assert len(found) == 800


def test_scattered_offsets_cost_about_one_producer_batch_each(broker: Broker, reader: ExactReader, name: str) -> None:
    count = 100_000
    fill(broker, name, count, value=lambda i: b"%d" % i + b" " * 190)
    wanted = sorted(random.Random(2).sample(range(count), 200))
    started = time.monotonic()
    results = reader.read({TopicPartition(name, 0): wanted})
    assert [result.offset for result in results if isinstance(result, Found)] == wanted
    assert time.monotonic() - started < 60
    assert reader.delivered <= 50 * len(wanted)
    assert reader.received_bytes <= 1.5 * 16384 * len(wanted)


def test_a_long_close_stretch_is_read_through_not_sought(broker: Broker, reader: ExactReader, name: str) -> None:
    count = 120_000
    fill(broker, name, count)
    for wanted in (range(40_000, 100_000), range(0, count, 20)):
        before, started = reader.delivered, time.monotonic()
        assert answers(reader.read({TopicPartition(name, 0): wanted})) == values(wanted)
        assert time.monotonic() - started < 60
        assert reader.delivered - before < (wanted[-1] - wanted[0]) + 50_000


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_whatever_the_log_holds_it_is_answered_as_a_plain_reader_sees_it(
    broker: Broker, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """Random runs of plain, aborted and compacted records, with short stretches: all ways of reading alternate."""
    monkeypatch.setattr(fetching, "SEEK_DISTANCE", 3)
    monkeypatch.setattr(fetching, "DENSE_SPAN", 12)
    name, rng = topic(config=COMPACTED), random.Random(isolation)
    for _ in range(12):
        keys = [b"%d" % rng.randrange(30) for _ in range(rng.randrange(1, 40))]
        if rng.random() < 0.3:
            aborted(broker, name, keys)
        else:
            put(broker, name, [(key, key) for key in keys])
    last = end(broker, name, isolation)
    compact(broker, name, [0])
    with ExactReader(config(broker), isolation) as reader:
        for share in (0.02, 0.1, 0.5, 1.0, 1.0):
            wanted = sorted(rng.sample(range(last), max(1, int(share * last))))
            there = set(offsets(broker, name, isolation))
            found = answers(reader.read({TopicPartition(name, 0): wanted}))
            assert [offset for offset, _ in found] == wanted
            gone = {offset for offset, answer in found if isinstance(answer, Outcome)}
            assert set(wanted) - there <= gone <= set(wanted) - set(offsets(broker, name, isolation))


def test_records_come_whole_s44(broker: Broker, name: str) -> None:
    """Null keys, empty values, tombstones, undecodable bytes, repeated and null headers, 900 KB."""
    large, stamp = random.Random(3).randbytes(900_000), int(time.time() * 1000) - 1234
    client = producer(broker)
    records = [(None, b""), (b"", None), (b"\xff\xfe", b"\x00\xff"), (b"k", large), (b"k", b"last")]
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("b", b"\xff")]
    for key, value in records:
        client.produce(name, value, key, headers=headers, timestamp=stamp)
    assert client.flush(30) == 0
    messages = [result.message for result in results(broker, name, range(5)) if isinstance(result, Found)]
    assert [(message.key(), message.value()) for message in messages] == records
    assert all(message.headers() == headers and message.timestamp()[1] == stamp for message in messages)


def test_large_records_of_several_partitions_do_not_starve_each_other(
    broker: Broker, reader: ExactReader, topic: MakeTopic
) -> None:
    name, large = topic(partitions=3), random.Random(4).randbytes(900_000)
    for partition in range(3):
        put(broker, name, [(None, b"small" if i % 2 else large) for i in range(20)], partition)
    found = list(reader.read({TopicPartition(name, p): list(range(0, 20, 2)) for p in range(3)}))
    assert len(found) == 30
    assert all(isinstance(r, Found) and r.message.value() == large for r in found)


def test_retention_that_overtakes_a_read_is_noticed_s41(broker: Broker, reader: ExactReader, name: str) -> None:
    fill(broker, name, 100_000)
    results = reader.read({TopicPartition(name, 0): [10, 30_000, 60_000, 99_999]})
    first = next(results)
    delete_before(broker, name, 60_001)
    second, *rest = answers(results)
    assert answers([first]) == values([10])
    assert [second] in (expired(30_000), values([30_000]))  # it may have been fetched already
    assert rest == [*expired(60_000), *values([99_999])]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_compaction_with_no_record_left_behind_it_is_proved_by_the_end_s40(
    broker: Broker, topic: MakeTopic, idempotent: bool
) -> None:
    """Every later record, such as the one that rolled the segment, was aborted, so no reader gets it."""
    name = topic(config=COMPACTED)
    client = producer(broker, **{"enable.idempotence": idempotent})
    for value in (b"first", b"second", None):
        client.produce(name, value, b"same", partition=0)
        assert client.flush(30) == 0
    compact(broker, name, [0, 1, 2], lambda: aborted(broker, name, [b"x"]))
    assert offsets(broker, name, "read_committed") == []
    assert read(broker, name, [0, 1]) == compacted(0, 1)
    assert read(broker, name, [1]) == compacted(1)


def test_an_aborted_tail_is_passed_by_reaching_the_end_s6(broker: Broker, name: str) -> None:
    put(broker, name, [(None, b"0")])
    aborted(broker, name, [b"%d" % i for i in range(3000)])
    assert read(broker, name, [0, 1, 2999]) == [*values([0]), *compacted(1, 2999)]


def test_many_aborted_batches_do_not_make_later_fetches_large(broker: Broker, reader: ExactReader, name: str) -> None:
    for _ in range(3):
        aborted(broker, name, [b"%d" % i + b" " * 190 for i in range(2000)])
    start = 3 * 2001
    fill(broker, name, 60_000, value=lambda i: b"%d" % (start + i) + b" " * 190)
    wanted = [0, 2500, *range(start + 500, start + 60_000, 997)]
    found = list(reader.read({TopicPartition(name, 0): wanted}))
    assert [r.outcome for r in found if isinstance(r, Gone)] == [Outcome.COMPACTED] * 2
    passed = 3 * 2001 * 200
    assert reader.received_bytes < 1.5 * 16384 * len(wanted) + 2 * passed


def test_what_an_open_transaction_holds_back_is_beyond_the_end_s43(broker: Broker, name: str) -> None:
    put(broker, name, [(None, b"0")])
    client = wire.open_transaction(broker.bootstrap, name, [wire.Write(b"1")])
    put(broker, name, [(None, b"2")])
    with pytest.raises(FatalError, match="the log ends at 1") as raised:
        read(broker, name, [0, 2])
    client.abort_transaction(30)
    assert wait_until(lambda: end(broker, name, "read_committed") == 4, 30)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (name, 0, 2)
    assert read(broker, name, [0, 1]) == [*values([0]), *compacted(1)]


def test_an_offset_beyond_the_log_is_an_error_before_anything_is_answered(broker: Broker, name: str) -> None:
    fill(broker, name, 10)
    with pytest.raises(FatalError, match="truncated, or the topic was created again") as raised:
        next(results(broker, name, [0, 10]))
    assert raised.value.offset == 10


def test_a_topic_that_is_not_there_is_an_error_that_names_it(broker: Broker) -> None:
    with pytest.raises(FatalError, match=r"nowhere\[0\] does not exist .*create it"):
        read(broker, "nowhere", [0])


def test_a_batch_that_cannot_be_decoded_is_an_error_not_a_gap(broker: Broker, name: str) -> None:
    """The client reports the damage and goes on after it. To take the next record as a proof would lose one."""
    put(broker, name, [(None, b"first"), (None, b"damaged"), (None, b"third")])
    segment = next((broker.directory / "data" / f"{name}-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(b"damaged"))
        file.write(b"DAMAGED")
    reading = results(broker, name, [0, 1, 2])
    assert answers([next(reading)]) == [(0, b"first")]
    with pytest.raises(FatalError, match=r"\[0\]: the batch of records at offset 1 is damaged .*_BAD_MSG") as raised:
        list(reading)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (name, 0, 1)
    unchecked = {**config(broker), "check.crcs": "false"}
    assert answers(read_exactly(unchecked, "read_committed", {TopicPartition(name, 0): [1]})) == [(1, b"DAMAGED")]


def test_a_reader_may_be_left_early_and_used_again(broker: Broker, reader: ExactReader, name: str) -> None:
    fill(broker, name, 1000)
    tp = TopicPartition(name, 0)
    results = reader.read({tp: [1, 500, 900]})
    assert answers([next(results)]) == values([1])
    results.close()
    assert answers(reader.read({tp: [0, 2, 999]})) == values([0, 2, 999])
    assert answers(reader.read({})) == []


@pytest.mark.parametrize("wanted", [[5, 4], [4, 4], [-1]])
def test_offsets_out_of_order_are_refused(broker: Broker, wanted: list[int]) -> None:
    with pytest.raises(ValueError, match="not ascending"):
        read(broker, "any", wanted)
