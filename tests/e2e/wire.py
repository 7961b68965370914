"""Produces, in transactions too, and reads back, with nothing of the product."""

import ctypes
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import confluent_kafka
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
)

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
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def ackline_headers(self) -> dict[str, str]:
        """The headers that Ackline added, without their prefix `ackline.`."""
        return {
            name.removeprefix("ackline."): (value or b"").decode()
            for name, value in self.headers
            if name.startswith("ackline.")
        }


def produce(bootstrap: str, topic: str, records: Iterable[Write], partition: int = 0) -> None:
    """Produce records in this order, each once; returns when the broker has acknowledged all of them."""
    # A single broker can refuse only the first request to a new partition, so the first record is sent alone. With
    # several brokers leaders change, and idempotence is worth the half second that a producer id takes.
    single_broker = "," not in bootstrap
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            **({"max.in.flight": 1} if single_broker else {"enable.idempotence": True}),
            "linger.ms": 5,
            "batch.size": 16_384,
            "message.max.bytes": 2_000_000,
        }
    )
    _send(producer, topic, records, partition)


RawHeaders = Sequence[tuple[bytes, bytes | None]]


def produce_raw_headers(bootstrap: str, topic: str, records: Iterable[tuple[bytes, RawHeaders]]) -> None:
    """Produce values, each with headers of any names, to partition 0. The Python client takes names of text only;
    librdkafka takes bytes."""
    libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(libraries.glob("librdkafka-*.so*"))))
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert (
        library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), error, ctypes.c_size_t(512)) == 0
    )
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, ctypes.c_size_t(512)))
    assert producer.value, error.value
    for value, headers in records:
        taken = ctypes.c_void_p(library.rd_kafka_headers_new(ctypes.c_size_t(len(headers))))
        for name, content in headers:
            sizes = ctypes.c_ssize_t(len(name)), ctypes.c_ssize_t(len(content or b""))
            assert library.rd_kafka_header_add(taken, name, sizes[0], content, sizes[1]) == 0
        # Tagged arguments (rdkafka.h): topic 1, partition 3, value 4, flags 7 (copy: 2), headers 10, end 0.
        record = (1, topic.encode(), 3, ctypes.c_int32(0), 4, value, ctypes.c_size_t(len(value)), 7, 2)
        assert library.rd_kafka_producev(producer, *record, 10, taken, 0) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


def open_transaction(bootstrap: str, topic: str, records: Iterable[Write], *, partition: int = 0) -> Producer:
    """Produce records in a transaction that stays open; returns its producer, which can commit or abort it."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{uuid.uuid4().hex}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    _send(producer, topic, records, partition)
    return producer


def produce_aborted(bootstrap: str, topic: str, records: Iterable[Write], *, partition: int = 0) -> None:
    """Produce records in a transaction that is aborted; its marker takes one more offset."""
    open_transaction(bootstrap, topic, records, partition=partition).abort_transaction(SECONDS)
    wait_until_stable(bootstrap, topic, partition)


def wait_until_stable(bootstrap: str, topic: str, partition: int = 0) -> None:
    """Wait for the marker of a transaction, which the broker writes after its answer."""
    _until(lambda: log_end(bootstrap, topic, partition, stable=True) == log_end(bootstrap, topic, partition))


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def log_end(bootstrap: str, topic: str, partition: int = 0, *, stable: bool = False) -> int:
    """Returns the end of the log, or the last stable offset."""
    level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    return _bound(bootstrap, topic, partition, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]


def log_start(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Returns the start of the log: the lowest offset that it still has."""
    return _bound(bootstrap, topic, partition, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def _bound(bootstrap: str, topic: str, partition: int, spec: OffsetSpec, level: IsolationLevel | None = None) -> int:
    tp, admin = TopicPartition(topic, partition), AdminClient({"bootstrap.servers": bootstrap})
    level = level or IsolationLevel.READ_UNCOMMITTED
    return int(admin.list_offsets({tp: spec}, isolation_level=level)[tp].result(SECONDS).offset)


def set_topic_config(bootstrap: str, topic: str, **settings: str) -> None:
    """Change settings of a topic; a dot in a name is written as `_`."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its requests end with it
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def _send(producer: Producer, topic: str, records: Iterable[Write], partition: int) -> None:
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    for number, record in enumerate(records):
        producer.produce(
            topic,
            record.value,
            record.key,
            partition,
            delivered,
            timestamp=record.timestamp,
            headers=list(record.headers),
        )
        if number % 10_000 in (0, 9_999):
            producer.flush(SECONDS)
    assert producer.flush(SECONDS) == 0
    assert refused == []


def read(bootstrap: str, topic: str, partition: int = 0) -> list[Read]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
                "isolation.level": "read_committed", "enable.auto.commit": False,
                "fetch.wait.max.ms": 20}  # fmt: skip
    records: list[Read] = []
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
                    return records
                raise KafkaException(error)
            headers: Any = message.headers() or ()
            key, value, offset = cast(tuple[Any, Any, int], (message.key(), message.value(), message.offset()))
            records.append(Read(offset, key, value, list(headers)))
    raise TimeoutError(f"{topic}[{partition}] was not read to its end")


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    """Add partitions to a topic, up to `count`; returns when each has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(SECONDS)

    def led() -> bool:
        leaders = [p.leader for p in admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions.values()]
        return len(leaders) == count and all(leader >= 0 for leader in leaders)

    _until(led)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic; returns when the broker no longer lists it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its requests end with it
    admin.delete_topics([topic])[topic].result(SECONDS)
    _until(lambda: topic not in topics(bootstrap))


def delete_records(bootstrap: str, tp: tuple[str, int], before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.delete_records([TopicPartition(*tp, before)]).values():
        answer.result(SECONDS)


def committed_offset(bootstrap: str, group: str, tp: tuple[str, int]) -> tuple[int, str] | None:
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        committed = retry_until_ready(lambda: consumer.committed([TopicPartition(*tp)], timeout=10))[0]
    return (committed.offset, committed.metadata or "") if committed.offset >= 0 else None


def commit_offset(bootstrap: str, group: str, tp: tuple[str, int], offset: int, metadata: str) -> None:
    offsets = [TopicPartition(*tp, offset, metadata=metadata)]
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        for answer in retry_until_ready(lambda: consumer.commit(offsets=offsets, asynchronous=False)):
            assert answer.error is None


@contextmanager
def member(
    bootstrap: str,
    group: str,
    topic: str,
    client_id: str = "member",
    protocol: str = "classic",
    static: str | None = None,
) -> Iterator[None]:
    """A live member of the group, which has the topic's partitions while the block runs, and commits nothing; a
    `static` one of this instance id does not leave at its end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": client_id,
        "enable.auto.commit": False,
        "group.protocol": protocol,
        **({"group.instance.id": static} if static else {}),
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        _until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        yield


@contextmanager
def member_of_type(bootstrap: str, kind: str, group: str, topic: str) -> Iterator[None]:
    """A live member of a share group or of a Kafka Streams group (`streams`), for which the Python client has no API.

    It sends the heartbeats of KIP-932 and KIP-1071 by which a member joins and leaves, in Kafka's binary protocol.
    """
    host, port = bootstrap.split(":")
    member, nothing, none = _text(str(uuid.uuid4())), b"\x00", b"\x01"  # null, and an empty array
    beginning = {"share": (76, 1), "streams": (88, 0)}[kind]

    def heartbeat(epoch: int) -> None:
        body = _text(group) + member + struct.pack(">i", epoch)
        if kind == "share":
            body += nothing + b"\x02" + _text(topic)
        else:
            subtopology = _text("0") + b"\x02" + _text(topic) + none * 5 + b"\0"
            topology = b"\x01" + struct.pack(">i", 1) + b"\x02" + subtopology + b"\0" if epoch == 0 else b"\xff"
            ids = struct.pack(">i", 0) + nothing * 2 + struct.pack(">i", 30_000)
            body += ids + topology + none * 3 + _text("process") + b"\xff" + none + nothing * 2 + b"\0"
        request = struct.pack(">hhi", *beginning, 1) + struct.pack(">h", 4) + b"test" + b"\0" + body + b"\0"
        stream.sendall(struct.pack(">i", len(request)) + request)
        answer = _received(stream, *struct.unpack(">i", _received(stream, 4)))
        assert struct.unpack(">h", answer[9:11]) == (0,), answer

    with closing(socket.create_connection((host, int(port)), SECONDS)) as stream:
        heartbeat(0)
        yield
        heartbeat(-1)


def _text(text: str) -> bytes:
    """A short compact string of Kafka's protocol."""
    return bytes([len(text) + 1]) + text.encode()


def _received(stream: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += stream.recv(size - len(received))
    return received


def topics(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS).topics)


def retry_until_ready(request: Callable[[], T]) -> T:
    """Returns the answer to a request, which is repeated until the group's coordinator is ready."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return request()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
