"""The topic of the measurements: realistic JSON orders of about 190 bytes."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ackline.ledger.offsets import OffsetRange, TopicPartition

ISOLATION = "read_committed"


@dataclass(frozen=True, slots=True)
class Subject:
    """The topic, and the folder in which the sides write."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    folder: Path

    @property
    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """The range of each partition."""
        return {
            TopicPartition(self.topic, partition): OffsetRange(0, len(range(partition, self.records, self.partitions)))
            for partition in range(self.partitions)
        }


def produce(bootstrap: str, topic: str, count: int, partitions: int) -> None:
    """Produces `count` records to the partitions in turn; they are the same in each call."""
    rng = random.Random(20240506)
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 50,
        "batch.size": 262_144,
        "enable.idempotence": True,
    }
    client = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    for number in range(count):
        key, value = str(rng.randrange(100_000)).encode(), _order(rng, number)
        while True:
            try:
                client.produce(topic, value, key, partition=number % partitions)
                break
            except BufferError:
                client.poll(0.1)
        if number % 10_000 == 0:
            client.poll(0)
    if client.flush(120):
        raise SystemExit("not all records were produced")


def _order(rng: random.Random, number: int) -> bytes:
    order = {
        "order_id": number,
        "customer": f"customer-{rng.randrange(100_000)}",
        "status": rng.choice(["new", "paid", "shipped"]),
        "amount": round(rng.random() * 1000, 2),
        "currency": "EUR",
        "sku": f"sku-{rng.randrange(10_000)}",
        "quantity": rng.randrange(1, 10),
        "note": "please leave it at the back door",
    }
    return json.dumps(order).encode()
