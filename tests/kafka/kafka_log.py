"""Writes logs of every kind for tests: small batches, transactions, compacted and deleted records."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from ackline.kafka.config import client_config
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from tests.e2e import wire

COMPACTED = {
    "cleanup.policy": "compact,delete", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "100",
}  # fmt: skip
"""Settings of a topic that is compacted within seconds, once a later record has rolled its segment."""


AT_ONCE = {"enable.idempotence": False, "max.in.flight": 1}
"""Settings of a producer that does not wait half a second for a producer id. It keeps the order if its first record is
sent alone, because only that record may meet a partition without a leader and be sent again."""


def config(broker: Broker) -> dict[str, object]:
    return client_config({"bootstrap.servers": broker.bootstrap})


def producer(broker: Broker, **settings: Any) -> Producer:
    """A producer of small batches. Idempotent: a record that is sent again keeps its place, so record n is offset n."""
    small = {"batch.size": 16384, "queue.buffering.max.messages": 500_000, "linger.ms": 20, "enable.idempotence": True}
    return Producer({"bootstrap.servers": broker.bootstrap, **small, **settings})


def fill(
    broker: Broker, topic: str, count: int, partition: int = 0, value: Callable[[int], bytes] = b"%d".__mod__
) -> None:
    """Produces `count` records, each with its number as value, in batches of at most 16 KiB."""
    client = producer(broker, **({} if count > 10_000 else AT_ONCE))
    for i in range(count):
        client.produce(topic, value(i), partition=partition)
        if i == 0:
            assert client.flush(60) == 0
        elif i % 10_000 == 0:
            client.poll(0)
    assert client.flush(60) == 0


def put(broker: Broker, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
    """Produces (key, value) records, each in a batch of its own."""
    client = producer(broker, **{"linger.ms": 0, "batch.num.messages": 1, **AT_ONCE})
    for number, (key, value) in enumerate(records):
        client.produce(topic, value, key, partition=partition)
        if number == 0:
            assert client.flush(60) == 0
    assert client.flush(60) == 0


def aborted(broker: Broker, topic: str, values: Sequence[bytes]) -> None:
    """Produces records and aborts their transaction; waits for its marker, which the broker writes a little later."""
    wire.produce_aborted(broker.bootstrap, topic, [wire.Write(value, value) for value in values])


def end(broker: Broker, topic: str, isolation: str) -> int:
    """Returns the end of partition 0 as a reader of this isolation has it."""
    return wire.log_end(broker.bootstrap, topic, stable=isolation == "read_committed")


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    """Deletes the records below `offset`, as retention does."""
    wire.delete_records(broker.bootstrap, (topic, 0), offset)


def offsets(broker: Broker, topic: str, isolation: str = "read_uncommitted") -> list[int]:
    """The offsets that a plain consumer reads, from the log start to the end."""
    return [int(message.offset() or 0) for message in messages(broker, topic, isolation)]


def messages(broker: Broker, topic: str, isolation: str = "read_committed") -> list[Message]:
    """All records of partition 0."""
    client = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "plain", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": isolation,
        "fetch.wait.max.ms": 20,
    })  # fmt: skip
    read: list[Message] = []
    try:
        client.assign([ClientPartition(topic, 0, 0)])  # "earliest" by name costs another half a second
        while (message := client.poll(30)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return read
            read.append(message)
    finally:
        client.close()
    raise AssertionError(f"{topic} was not read to its end")


def compact(broker: Broker, topic: str, gone: Iterable[int], roll: Callable[[], None] | None = None) -> None:
    """Waits until no offset of `gone` is in the log. `roll` adds a record; the broker may clean those before it.

    Without `roll` each has a key of its own, so that none of them goes while a test reads.
    """
    lost = set(gone)

    def cleaned() -> bool:
        if roll is None:
            put(broker, topic, [(uuid.uuid4().bytes, b"")])
        else:
            roll()
        return lost.isdisjoint(offsets(broker, topic))

    assert wait_until(cleaned, 200), "the broker did not compact"
