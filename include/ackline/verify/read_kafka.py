"""Reads topics, their logs and the committed offsets of a group from Kafka."""

import hashlib
import time
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from ackline.verify.arrays import Ints
from ackline.verify.evidence import Log, TopicPartition, Unreadable

Config = dict[str, Any]
TIMEOUT = 30.0
"""Seconds without any progress after which reading fails."""


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

    Raises Unreadable if a partition fails, or if no record comes for 30 seconds before all ends are reached.
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
            if time.monotonic() - progress > TIMEOUT:
                raise Unreadable(f"topic {topic}: no record of partitions {sorted(ends)} for {TIMEOUT:.0f} seconds")
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
