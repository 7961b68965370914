"""Writes to all topics of a fleet all the time, and answers the records in flight, as the world outside does.

What it writes is drawn from the seed. When it writes depends on the machine.
"""

import heapq
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from tests.soak.fleet import Fleet, Member

TICK = 0.25
"""Seconds between two bursts."""
KEYS = 40
"""Keys of a compacted topic."""
DELIVERY_SECONDS = 300


class Writer(threading.Thread):
    """Produces about `rate` records a minute to each pipeline until `stop`. A context manager."""

    def __init__(self, fleet: Fleet, seed: int, rate: int) -> None:
        super().__init__(name="soak-writer", daemon=True)
        self.fleet, self.rate = fleet, rate
        self.delivered: Counter[str] = Counter()
        """Records that the broker has acknowledged, by topic."""
        self.refused: list[str] = []
        self.answered: Counter[str] = Counter()
        self.era = 0
        """How often the schema has changed: so many fields the records have more."""
        self._rng = random.Random(f"{seed}/writer")
        self._stopped = threading.Event()
        self._read: dict[str, int] = {}
        self._due: list[tuple[float, int, str, bytes, bytes]] = []
        self._number = 0
        self._producer = Producer(
            {
                "bootstrap.servers": fleet.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": DELIVERY_SECONDS * 1000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._stopped.wait(TICK):
            wanted = len(self.fleet.members) * self.rate * TICK / 60
            bursts = int(wanted) + (self._rng.random() < wanted % 1)
            for _ in range(bursts):
                self._write(self._rng.choice(self.fleet.members))
            self._answer()
            self._producer.poll(0)

    def stop(self) -> None:
        """Stops writing records. Returns when the broker has acknowledged all of them."""
        self._stopped.set()
        if self.is_alive():
            self.join(60)
        left = self._producer.flush(DELIVERY_SECONDS)
        if left:
            self.refused.append(f"{left} records were not delivered")

    def answer_all(self) -> None:
        self._answer(at_once=True)
        self._producer.flush(60)

    def _write(self, member: Member) -> None:
        self._number += 1
        key = f"k{self._rng.randrange(KEYS)}".encode() if member.kind == "compacted" else None
        value = json.dumps(self._value(member)).encode()
        partition = self._rng.randrange(member.partitions)
        self._producer.produce(member.topic, value, key, partition, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(f"{message.topic()}: {error}")
        else:
            self.delivered[str(message.topic())] += 1

    def _value(self, member: Member) -> Mapping[str, Any]:
        added = {f"field{n}": f"of era {n}" for n in range(1, self.era + 1)}
        if member.kind == "shop":
            items = [
                {"product": f"sku{self._rng.randrange(9)}", "pieces": self._rng.randint(1, 5)}
                for _ in range(self._rng.randint(0, 3))
            ]
            if items and self._rng.random() < 0.05:
                items[0]["fail"] = True
            return {"id": f"o{self._number}", "items": items}
        orders: dict[str, Any] = {"n": self._number, **added}
        draw = self._rng.random()
        if draw < 0.08:
            orders["fail"] = self._rng.choice((1, 1, 2, -1))
        elif draw < 0.11:
            orders["skip" if draw < 0.09 else "dead"] = True
        elif member.kind == "answered" and draw < 0.7:
            orders["wait"] = str(member.tokens)
        return orders

    def _answer(self, at_once: bool = False) -> None:
        for member in self.fleet.members:
            if member.kind == "answered" and member.tokens.exists():
                with member.tokens.open() as file:
                    file.seek(self._read.get(member.name, 0))
                    while (line := file.readline()).endswith("\n"):
                        self._read[member.name] = file.tell()
                        self._schedule(member, line.split()[2].encode())
        now = time.monotonic()
        while self._due and (at_once or self._due[0][0] <= now):
            _, _, topic, token, value = heapq.heappop(self._due)
            self._producer.produce(topic, value, token)
            self.answered[value.decode().split()[0]] += 1

    def _schedule(self, member: Member, token: bytes) -> None:
        """Answers at once, late, after the timeout, twice, or never."""
        draw = self._rng.random()
        if draw < 0.08:
            self.answered["never"] += 1
            return
        value = b"fail no stock" if draw < 0.16 else b"ack"
        for _ in range(2 if draw > 0.95 else 1):
            self._number += 1
            after = self._rng.uniform(0, 150 if draw > 0.8 else 40)
            heapq.heappush(self._due, (time.monotonic() + after, self._number, member.ack_topic, token, value))
