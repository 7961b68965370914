"""Reads topics, logs, committed offsets, dead letters, and a journal of handler calls."""

import hashlib
import time
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from ackline.verify.evidence import DeadLetter, Ints, Log, TopicPartition, Unreadable

Config = dict[str, Any]
TIMEOUT = 30.0
"""Seconds for which an answer is waited for."""
SILENCE = 120.0
"""Seconds without a record after which reading fails. A byte quota may make a reader wait for a minute and more."""


def digest(message: Message) -> str:
    """Return a digest of key and value; a null and an empty one have different digests."""
    parts: tuple[Any, Any] = (message.key(), message.value())
    return hashlib.sha256(b"".join(b"-" if p is None else b"%d:%b" % (len(p), p) for p in parts)).hexdigest()


def open_consumer(config: Config, isolation: str, group: str | None = None) -> Consumer:
    """Return a consumer that commits nothing; without `group` it has a group id that is never used again."""
    return Consumer({
        **config, "group.id": group or f"ackline-checker-{uuid.uuid4()}", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
    })  # fmt: skip


def read_log_bounds(config: Config, topic: str, isolation: str) -> dict[int, tuple[int, int]]:
    """Return start and end of the log of each partition; under `read_committed` the end is the last stable offset.

    Raises Unreadable if the topic does not exist.
    """
    admin, level = AdminClient(config), IsolationLevel[isolation.upper()]
    partitions = admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions

    def list_offsets(spec: OffsetSpec) -> dict[int, int]:
        request = {KafkaTopicPartition(topic, partition): spec for partition in partitions}
        futures = admin.list_offsets(request, isolation_level=level, request_timeout=TIMEOUT)
        return {tp.partition: int(future.result(TIMEOUT).offset) for tp, future in futures.items()}

    starts = list_offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = list_offsets(OffsetSpec.latest())  # type: ignore[no-untyped-call]
    if not ends:
        raise Unreadable(f"topic {topic} does not exist")
    return {partition: (starts[partition], ends[partition]) for partition in ends}


def read_topic(
    config: Config,
    topic: str,
    isolation: str,
    bounds: Mapping[int, tuple[int, int]],
    take: Callable[[Message], None],
) -> dict[int, Ints]:
    """Call `take` with every record inside `bounds`, and return the offsets of each partition, sorted.

    Raises Unreadable if a partition fails, or if no record comes for SILENCE seconds before all ends are reached.
    """
    found = {partition: array("q") for partition in bounds}
    ends = {partition: end for partition, (start, end) in bounds.items() if start < end}  # of partitions not read yet
    reader = open_consumer(config, isolation)
    try:
        reader.assign([KafkaTopicPartition(topic, partition, bounds[partition][0]) for partition in ends])
        progress = time.monotonic()
        while ends:
            # consume() of many messages waits for the whole timeout even if some have arrived. So the wait is for the
            # first message only.
            for message in reader.consume(1, timeout=0.5) + reader.consume(10_000, timeout=0):
                partition, offset, error = message.partition(), message.offset(), message.error()
                if partition not in ends or offset is None:
                    continue
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise Unreadable(f"topic {topic}: {error}")
                progress = time.monotonic()
                if error is None and offset < ends[partition]:
                    found[partition].append(offset)
                    take(message)
                # A log may end with offsets that hold no record (transaction markers): then only the end-of-partition
                # event, whose offset is the next one to be read, proves that the end is reached.
                if offset >= ends[partition] - (error is None):
                    del ends[partition]
            if time.monotonic() - progress > SILENCE:
                raise Unreadable(f"topic {topic}: no record of partitions {sorted(ends)} for {SILENCE:.0f} seconds")
    finally:
        reader.close()
    return {partition: np.array(offsets, dtype=np.int64) for partition, offsets in found.items()}


def read_logs(
    config: Config, topic: str, isolation: str, wanted: Mapping[TopicPartition, set[int]]
) -> dict[TopicPartition, Log]:
    """Return the log of each partition of a topic, with the digests of the records at the `wanted` offsets."""
    bounds = read_log_bounds(config, topic, isolation)
    tps = {partition: TopicPartition(topic, partition) for partition in bounds}
    digests: dict[int, dict[int, str]] = {partition: {} for partition in bounds}

    def take_digest(message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset in wanted.get(tps[partition], ()):
            digests[partition][offset] = digest(message)

    received = read_topic(config, topic, isolation, bounds, take_digest)
    aborted: dict[int, Ints] = {}
    if is_compacted(config, topic):
        stored = received
        if isolation == "read_committed":
            stored = read_topic(config, topic, "read_uncommitted", bounds, lambda message: None)
        aborted = {partition: np.setdiff1d(stored[partition], received[partition]) for partition in bounds}
    return {
        tp: Log(*bounds[p], received[p], aborted=aborted.get(p), digests=digests[p]) for p, tp in tps.items()
    }  # fmt: skip


def is_compacted(config: Config, topic: str) -> bool:
    """Return whether the topic has compaction, alone or with deletion."""
    admin, resource = AdminClient(config), ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(TIMEOUT)
    return "compact" in str(settings["cleanup.policy"].value)


def read_committed_offsets(
    config: Config, group: str, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[int, str]]:
    """Return the committed offsets of the group with their metadata, without partitions that have none.

    It tries again for 30 seconds, because a broker that has just started has no group coordinator yet; then it raises
    Unreadable.
    """
    reader, deadline = open_consumer(config, "read_committed", group), time.monotonic() + TIMEOUT
    committed: list[KafkaTopicPartition] | None = None
    try:
        while committed is None:
            try:
                committed = reader.committed([KafkaTopicPartition(*tp) for tp in tps], timeout=10)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise Unreadable(f"committed offsets of group {group}: {error}") from error
                time.sleep(0.2)
    finally:
        reader.close()
    return {TopicPartition(c.topic, c.partition): (c.offset, c.metadata or "") for c in committed if c.offset >= 0}


PREFIX = "ackline."
HEADERS = {
    f"{PREFIX}{name}" for name in ("pipeline", "lane", "epoch", "topic", "partition", "offset", "timestamp",
                                   "attempts", "error_class", "turn")
}  # fmt: skip
"""The headers of every dead letter. A letter without the record's value has one more, which gives the reason."""


def read_dead_letters(config: Config, topic: str, pipeline: str) -> list[DeadLetter]:
    """Return the dead letters of `pipeline` on `topic`; those of other pipelines on the same topic are left out.

    Raises Unreadable if the topic cannot be read, or if the headers of a dead letter do not name its origin.
    """
    letters: list[DeadLetter] = []

    def take_letter(message: Message) -> None:
        letter = parse_dead_letter(message, pipeline)
        if letter:
            letters.append(letter)

    read_topic(config, topic, "read_committed", read_log_bounds(config, topic, "read_committed"), take_letter)
    return letters


def parse_dead_letter(message: Message, pipeline: str) -> DeadLetter | None:
    """Return the dead letter in `message`; None if it is not one of `pipeline`.

    The record itself may have such headers, if it was a dead letter before. Kafka keeps the order of headers, and
    those of this dead letter come after those of the record, so the last one of each name counts.
    """
    all_headers: Any = message.headers() or ()
    headers = {name: value for name, value in all_headers if name.startswith(PREFIX)}
    if headers.get(f"{PREFIX}pipeline") != pipeline.encode():
        return None
    try:
        lane, epoch, topic, partition, offset = (
            headers[f"{PREFIX}{name}"].decode() for name in ("lane", "epoch", "topic", "partition", "offset")
        )
        # A dead letter that the broker refuses for good is sent without the value, and a header of its own marks it.
        without_value = message.value() is None and headers.keys() > HEADERS
        content = None if without_value else digest(message)
        turn = headers.get(f"{PREFIX}turn")
        return DeadLetter(
            lane, int(epoch), topic, int(partition), int(offset), content, None if turn is None else int(turn)
        )
    except (KeyError, ValueError, AttributeError) as error:
        where = f"{message.topic()}[{message.partition()}] offset {message.offset()}"
        raise Unreadable(f"dead letter {where}: a header of its origin is missing or invalid: {error!r}") from error


COLUMNS = ("topic", "partition", "offset", "attempt", "pid")


def read_calls(path: str) -> pa.Table:
    """Return the handler calls of a journal: one a line, its columns separated by tabs; none if there is no file."""
    types = {name: pa.string() if name == "topic" else pa.int64() for name in COLUMNS}
    if not Path(path).exists() or not Path(path).stat().st_size:
        return pa.table({name: pa.array([], types[name]) for name in COLUMNS})
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(column_names=list(COLUMNS)),
        parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )
