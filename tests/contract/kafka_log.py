"""Logs of every kind to read from: small batches, transactions, compacted and deleted records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.offsets import TopicPartition

COMPACTED = {
    "cleanup.policy": "compact,delete",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
}
"""Settings of a topic that is compacted within seconds, once a later record has rolled its segment."""


AT_ONCE = {"enable.idempotence": False, "max.in.flight": 1}
"""Settings of a producer that need not wait half a second for a producer id, and keeps the order all the same if its
first record is sent alone: only that one may meet a partition that is not led yet, and be sent again."""


def config(broker: Broker) -> dict[str, object]:
    return client_config({"bootstrap.servers": broker.bootstrap})


def producer(broker: Broker, **settings: Any) -> Producer:
    """Of small batches, and idempotent: what is sent again keeps its place, so that a number is an offset."""
    small = {
        "batch.size": 16384,
        "queue.buffering.max.messages": 500_000,
        "linger.ms": 20,
        "enable.idempotence": True,
    }
    return Producer({"bootstrap.servers": broker.bootstrap, **small, **settings})


def fill(
    broker: Broker, topic: str, count: int, partition: int = 0, value: Callable[[int], bytes] = b"%d".__mod__
) -> None:
    """`count` records, their number as value, in batches of at most 16 KiB."""
    client = producer(broker, **({} if count > 10_000 else AT_ONCE))
    for i in range(count):
        client.produce(topic, value(i), partition=partition)
        if i == 0:
            assert client.flush(60) == 0
        elif i % 10_000 == 0:
            client.poll(0)
    assert client.flush(60) == 0


def put(broker: Broker, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
    """Each record in a batch of its own."""
    client = producer(broker, **{"linger.ms": 0, "batch.num.messages": 1, **AT_ONCE})
    for number, (key, value) in enumerate(records):
        client.produce(topic, value, key, partition=partition)
        if number == 0:
            assert client.flush(60) == 0
    assert client.flush(60) == 0


@contextmanager
def transaction(broker: Broker, name: str) -> Iterator[Producer]:
    """An open transaction; whoever wants it ended ends it. What was produced is in the log once flushed."""
    client = producer(broker, **{"transactional.id": name, "transaction.timeout.ms": 60_000})
    client.init_transactions(30)
    client.begin_transaction()
    yield client


def aborted(broker: Broker, topic: str, values: Sequence[bytes]) -> None:
    """Records of a transaction that was given up, and its marker, which the broker writes a little later."""
    with transaction(broker, f"aborted-{topic}") as client:
        failed: list[object] = []
        for value in values:
            client.produce(
                topic, value, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
            )
        assert (client.flush(60), failed) == (0, [])
        client.abort_transaction(30)
    assert wait_until(lambda: end(broker, topic, "read_committed") == end(broker, topic, "read_uncommitted"), 30)


def end(broker: Broker, topic: str, isolation: str) -> int:
    with Cluster(config(broker), isolation) as cluster:
        (bounds,) = cluster.bounds([TopicPartition(topic, 0)]).values()
        return bounds.end


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    """What retention does: the log starts at `offset` afterwards."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for answer in admin.delete_records([ClientPartition(topic, 0, offset)]).values():
        answer.result(30)


def offsets(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> list[int]:
    """The offsets a plain consumer is given, from the log start to the end."""
    return [int(message.offset() or 0) for message in messages(broker, topic, isolation)]


def messages(broker: Broker, topic: str, isolation: str = "read_committed") -> list[Message]:
    """All records of partition 0."""
    client = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "plain", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": isolation,
        "fetch.wait.max.ms": 20,
    })  # fmt: skip
    found: list[Message] = []
    try:
        client.assign([ClientPartition(topic, 0, 0)])  # the earliest by name would be asked for half a second later
        while (message := client.poll(30)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message)
    finally:
        client.close()
    raise AssertionError(f"{topic} was not read to its end")


def compact(broker: Broker, topic: str, gone: Iterable[int], roll: Callable[[], None] | None = None) -> None:
    """Until none of `gone` is in the log any more. `roll` adds a record: what is before it may then be cleaned."""
    lost = set(gone)

    def cleaned() -> bool:
        if roll is None:
            put(broker, topic, [(b"roll", b"")])
        else:
            roll()
        return lost.isdisjoint(offsets(broker, topic))

    assert wait_until(cleaned, 60), "the broker did not compact"


def places(topic: str, wanted: Sequence[int]) -> dict[TopicPartition, Sequence[int]]:
    return {TopicPartition(topic, 0): wanted}
