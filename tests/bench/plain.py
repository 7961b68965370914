"""The side without Spark and without a ledger: processes that consume in a loop and write to a Delta table."""

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from multiprocessing.pool import Pool
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from deltalake import DeltaTable, write_deltalake

from ackline.ledger.offsets import TopicPartition
from ackline.tables.schemas import OUTCOMES, PARTITION_BY
from tests.bench.topic import ISOLATION, Subject

ROWS_A_COMMIT = 100_000


def plain_loop(pool: Pool, processes: int, subject: Subject) -> int:
    """Handles all records in the processes of `pool`, which run already, and returns how many.

    It writes the columns of `outcomes`, one row for each record.
    """
    root = str(subject.folder / f"plain-{uuid.uuid4().hex[:8]}")
    DeltaTable.create(root, OUTCOMES, partition_by=PARTITION_BY)
    shares = [list(subject.ranges.items())[number::processes] for number in range(processes)]
    work = [(subject.bootstrap, [(tp, offsets.end) for tp, offsets in share], root) for share in shares]
    return sum(pool.starmap(_consume, work, chunksize=1))


def _consume(bootstrap: str, share: Sequence[tuple[TopicPartition, int]], root: str) -> int:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "plain", "enable.auto.commit": False,
        "auto.offset.reset": "error", "isolation.level": ISOLATION, "check.crcs": True,
        "fetch.message.max.bytes": 16 << 20, "fetch.max.bytes": 64 << 20,
    })  # fmt: skip
    consumer.assign([ClientPartition(tp.topic, tp.partition, 0) for tp, _ in share])
    total = sum(end for _, end in share)
    rows: list[tuple[Any, ...]] = []
    handled = 0
    while handled < total:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            json.loads(message.value() or b"")
            rows.append((message.topic(), message.partition(), message.offset(), message.timestamp()[1] * 1000))
            handled += 1
        if len(rows) >= ROWS_A_COMMIT or handled == total:
            write_deltalake(root, _table(rows), mode="append")
            rows.clear()
    consumer.close()
    return handled


def _table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    topics, partitions, offsets, timestamps = zip(*rows, strict=True)
    count, now = len(rows), datetime.now(UTC)
    values = {
        "pipeline": pa.repeat("plain", count),
        "plan_date": pa.repeat(pa.scalar(now.date()), count),
        "lane": pa.repeat("live", count),
        "epoch": pa.repeat(pa.scalar(0, pa.int32()), count),
        "turn": pa.repeat(pa.scalar(1, pa.int64()), count),
        "run_id": pa.repeat("plain", count),
        "topic": pa.array(topics, pa.string()),
        "partition": pa.array(partitions, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "attempt": pa.repeat(pa.scalar(1, pa.int32()), count),
        "outcome": pa.repeat("acked", count),
        "record_timestamp": pa.array(timestamps, pa.timestamp("us", "UTC")),
        "handled_at": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
    }
    return pa.table({field.name: values.get(field.name, pa.nulls(count, field.type)) for field in OUTCOMES})
