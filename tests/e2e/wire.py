"""Kafka for the tests themselves: producing, transactions included, and reading back, with nothing of the product."""

import ctypes
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import confluent_kafka
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec  # type: ignore[attr-defined]

__all__ = [
    "Read",
    "Write",
    "aborted",
    "add_partitions",
    "closing",
    "committed",
    "delete_topic",
    "end",
    "patiently",
    "produce",
    "produce_header",
    "read",
    "stable",
    "topics",
    "transaction",
]

T = TypeVar("T")
SECONDS = 30.0
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Write:
    """A record to produce; `timestamp` in milliseconds."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def said(self) -> dict[str, str]:
        """The headers that Ackline put there, without their prefix."""
        return {
            name.removeprefix("ackline."): (value or b"").decode()
            for name, value in self.headers
            if name.startswith("ackline.")
        }


def produce(bootstrap: str, topic: str, records: Iterable[Write], partition: int = 0) -> None:
    """Append records in this order, each once; returns when the broker has all of them."""
    # A broker alone refuses a request or answers it; what it may refuse is the first to a new partition: sent alone.
    # Where replicas come and go, idempotence is worth the half second that librdkafka takes to get a producer id.
    alone = "," not in bootstrap
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            **({"max.in.flight": 1} if alone else {"enable.idempotence": True}),
            "linger.ms": 5,
            "batch.size": 16_384,
            "message.max.bytes": 2_000_000,
        }
    )
    _send(producer, topic, records, partition)


def produce_header(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    """Append a record with a header of any name: this client takes text only, the library below it takes bytes."""
    libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka-*.so*"))))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    why = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), why, ctypes.c_size_t(512)) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, why, ctypes.c_size_t(512)))
    assert producer.value, why.value
    # Tagged arguments (rdkafka.h): topic 1, partition 3, value 4, flags 7 (copy: 2), header 9, end 0.
    where = (1, topic.encode(), 3, ctypes.c_int32(0), 4, value, ctypes.c_size_t(len(value)), 7, 2)
    assert library.rd_kafka_producev(producer, *where, 9, name, b"1", ctypes.c_ssize_t(1), 0) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


def transaction(bootstrap: str, topic: str, records: Iterable[Write], *, partition: int = 0) -> Producer:
    """Append records in a transaction that is left open; returns its producer, to commit or abort it."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{uuid.uuid4().hex}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    _send(producer, topic, records, partition)
    return producer


def aborted(bootstrap: str, topic: str, records: Iterable[Write], *, partition: int = 0) -> None:
    """Append records in a transaction that is aborted: they, and a marker, take their offsets."""
    transaction(bootstrap, topic, records, partition=partition).abort_transaction(SECONDS)
    stable(bootstrap, topic, partition)


def committed(bootstrap: str, topic: str, records: Iterable[Write], *, partition: int = 0) -> None:
    """The same, committed."""
    transaction(bootstrap, topic, records, partition=partition).commit_transaction(SECONDS)
    stable(bootstrap, topic, partition)


def stable(bootstrap: str, topic: str, partition: int = 0) -> None:
    """Wait for the marker, which the broker writes after it has answered."""
    deadline = time.monotonic() + SECONDS
    while end(bootstrap, topic, partition, stable=True) != end(bootstrap, topic, partition):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(bootstrap: str, topic: str, partition: int = 0, *, stable: bool = False) -> int:
    """The log's end, or the last stable offset."""
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    tp, latest = TopicPartition(topic, partition), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return int(admin.list_offsets({tp: latest}, isolation_level=level)[tp].result(SECONDS).offset)


def _send(producer: Producer, topic: str, records: Iterable[Write], partition: int) -> None:
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    for number, one in enumerate(records):
        producer.produce(
            topic, one.value, one.key, partition, delivered, timestamp=one.timestamp, headers=list(one.headers)
        )
        if number % 10_000 in (0, 9_999):
            producer.flush(SECONDS)
    assert producer.flush(SECONDS) == 0
    assert refused == []


def read(bootstrap: str, topic: str, partition: int = 0) -> list[Read]:
    """Every committed record of a partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
                "isolation.level": "read_committed", "enable.auto.commit": False,
                "fetch.wait.max.ms": 20}  # fmt: skip
    found: list[Read] = []
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise KafkaException(error)
            given: Any = message.headers() or ()
            key, value, offset = cast(tuple[Any, Any, int], (message.key(), message.value(), message.offset()))
            found.append(Read(offset, key, value, list(given)))
    raise TimeoutError(f"{topic}[{partition}] was not read to its end")


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Give a topic `count` partitions in all."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(SECONDS)
    deadline = time.monotonic() + SECONDS
    while True:
        leaders = [p.leader for p in admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions.values()]
        if len(leaders) == count and all(leader >= 0 for leader in leaders):
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; returns when it is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its requests end with it
    admin.delete_topics([topic])[topic].result(SECONDS)
    deadline = time.monotonic() + SECONDS
    while topic in topics(bootstrap):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def topics(bootstrap: str) -> set[str]:
    """The names of all topics."""
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS).topics)


def patiently(ask: Callable[[], T]) -> T:
    """Ask until the group's coordinator is ready."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
