"""The topic of the measurements: realistic JSON orders of about 190 bytes."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.local import events
from ackline.local.events import RecordLine

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
        return {
            TopicPartition(self.topic, partition): OffsetRange(0, len(range(partition, self.records, self.partitions)))
            for partition in range(self.partitions)
        }


def produce(bootstrap: str, topic: str, count: int, partitions: int) -> None:
    """Produces `count` records to the partitions in turn; they are the same in each call."""
    rng = random.Random(20240506)
    records = (
        RecordLine(key=str(rng.randrange(100_000)).encode(), value=_order(rng, number), partition=number % partitions)
        for number in range(count)
    )
    events.produce(bootstrap, topic, records, timeout=120)


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
