"""Copies in a rescue topic on a real broker: the record comes back as it was, or an error names its copy (S88)."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from ackline.errors import CopyGone
from ackline.kafka.cluster import Cluster
from ackline.kafka.copies import CopyReader, copy_of, rescue_topic
from ackline.kafka.exact import ExactReader, Found, Gone, read_exactly
from ackline.ledger.copies import NO_COPIES, Copies, CopyLog, CopyRun, Rescued
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import config, delete_before, messages, producer

TURN = TurnId("orders", "live", 0, 7)
TIMESTAMP = int(time.time() * 1000) - 3_600_000
RECORDS: Sequence[tuple[bytes | None, bytes | None]] = [(b"k", b"v"), (None, b"\xff\x00"), (b"", b""), (b"t", None)]
HEADERS = [("trace", b"\xfe"), ("ackline.pipeline", b"of another one"), ("none", None)]


def put(broker: Broker, topic: str) -> TopicPartition:
    client = producer(broker)
    for number, (key, value) in enumerate(RECORDS):
        client.produce(topic, value, key, partition=0, headers=list(HEADERS), timestamp=TIMESTAMP + number)
    assert client.flush(30) == 0
    return TopicPartition(topic, 0)


def rescued(
    broker: Broker, cluster: Cluster, tp: TopicPartition, rescue: str, topic_id: str | None = None
) -> Mapping[TopicPartition, Rescued]:
    """Copies all records of a topic, and returns the places."""
    ids = {name: info.topic_id for name, info in cluster.topics([tp.topic, rescue]).items()}
    log = CopyLog(rescue, ids[rescue], 0)
    topic_id = topic_id or ids[tp.topic]
    found = read_exactly(config(broker), "read_committed", {tp: range(len(RECORDS))})
    rows = [copy_of(each, topic_id, log, TURN) for each in found if isinstance(each, Found)]
    sender = rescue_topic(config(broker))
    assert sender.send(rows) == []
    sender.close()
    assert [row.offset for row in rows] == list(range(rows[0].offset, rows[0].offset + len(RECORDS)))
    return {tp: Rescued(ids[tp.topic], Copies.of([CopyRun(0, len(RECORDS), log, rows[0].offset)]))}


def read(broker: Broker, of: Mapping[TopicPartition, Rescued], tp: TopicPartition) -> list[Found | Gone]:
    with CopyReader(lambda: ExactReader(config(broker), "read_committed"), of) as reader:
        return list(reader.read({tp: range(len(RECORDS))}))


def content(answer: Found | Gone) -> tuple[Any, ...]:
    assert isinstance(answer, Found)
    message = answer.message
    place = (answer.topic_partition, answer.offset, message.topic(), message.partition(), message.offset())
    return *place, message.key(), message.value(), answer.headers, answer.timestamp, message.error()


def test_s88_a_record_comes_back_from_its_copy_as_it_was(broker: Broker, topic: MakeTopic, cluster: Cluster) -> None:
    tp, rescue = put(broker, topic()), topic()
    of = rescued(broker, cluster, tp, rescue)
    before = read(broker, of, tp)
    delete_before(broker, tp.topic, 3)
    after = read(broker, of, tp)
    assert list(map(content, after)) == list(map(content, before))
    assert content(after[0])[-3:] == (HEADERS, (TIMESTAMP, False), None)
    assert [isinstance(each, Gone) for each in read(broker, {tp: Rescued("", NO_COPIES)}, tp)] == [True] * 3 + [False]


def test_s88_a_copy_has_key_value_headers_and_time_of_its_record_and_names_it(
    broker: Broker, topic: MakeTopic, cluster: Cluster
) -> None:
    tp, rescue = put(broker, topic()), topic()
    rescued(broker, cluster, tp, rescue)
    first, *_ = messages(broker, rescue)
    headers: list[tuple[str, bytes]] = list(first.headers() or ())  # type: ignore[arg-type]
    assert (first.key(), first.value(), first.timestamp()) == (b"k", b"v", (TIMESTAMP_CREATE_TIME, TIMESTAMP))
    assert headers[:3] == HEADERS
    own = dict(headers[3:])
    assert (own["ackline.topic"], own["ackline.partition"], own["ackline.offset"]) == (tp.topic.encode(), b"0", b"0")


def test_s88_a_broker_that_stamps_the_copies_changes_no_timestamp_of_a_record(
    broker: Broker, topic: MakeTopic, cluster: Cluster
) -> None:
    tp, rescue = put(broker, topic()), topic(config={"message.timestamp.type": "LogAppendTime"})
    of = rescued(broker, cluster, tp, rescue)
    before = read(broker, of, tp)
    delete_before(broker, tp.topic, 4)
    assert list(map(content, read(broker, of, tp))) == list(map(content, before))


@pytest.mark.parametrize("what", ["deleted records", "no topic", "shorter", "another record", "another topic id"])
def test_s88_a_copy_that_is_gone_is_an_error_that_names_record_and_copy(
    what: str, broker: Broker, topic: MakeTopic, cluster: Cluster
) -> None:
    tp, rescue = put(broker, topic()), topic()
    other = put(broker, topic())
    of = rescued(broker, cluster, tp, rescue, topic_id="of-another" if what == "another topic id" else None)
    [run] = of[tp].copies
    log = run.log
    if what == "deleted records":
        delete_before(broker, rescue, 1)
    elif what == "no topic":
        log = log._replace(topic=f"{rescue}-gone")
    elif what == "shorter":
        run = run._replace(first=100)
    elif what == "another record":
        run = run._replace(first=next(iter(rescued(broker, cluster, other, rescue)[other].copies)).first)
    delete_before(broker, tp.topic, 4)
    lost = {tp: Rescued(of[tp].topic_id, Copies.of([run._replace(log=log)]))}
    with pytest.raises(
        CopyGone, match=rf"{tp.topic}\[0\]: the record at offset 0 is gone.*{log.topic}\[0\]@"
    ) as caught:
        read(broker, lost, tp)
    assert (caught.value.topic, caught.value.offset) == (tp.topic, 0)


def test_s88_a_record_whose_copy_is_too_large_is_refused_alone(
    broker: Broker, topic: MakeTopic, cluster: Cluster
) -> None:
    tp, rescue = TopicPartition(topic(), 0), topic(config={"max.message.bytes": "20000"})
    client = producer(broker)
    for size in (10, 30_000, 10):
        client.produce(tp.topic, random.Random(size).randbytes(size), partition=0)
    assert client.flush(30) == 0
    log = CopyLog(rescue, cluster.topics([rescue])[rescue].topic_id, 0)
    found = read_exactly(config(broker), "read_committed", {tp: range(3)})
    rows = [copy_of(each, "id", log, TURN) for each in found if isinstance(each, Found)]
    sender = rescue_topic(config(broker))
    assert sender.send(rows) == [1]
    sender.close()
    assert [row.offset for row in rows] == [0, -1, 1]
