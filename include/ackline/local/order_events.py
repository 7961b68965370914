"""Believable order events for the demo, and a producer for them.

The stream is of a shop: most orders go through; some are paid with a card network that the payment provider
reaches only at the third attempt; some are in a currency that nobody takes; some were cut off on their way;
and now and then an order is erased by a tombstone. What the example handler `handlers.orders` makes of them
is what their kind says.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

OPENING = datetime(2026, 3, 2, 7, tzinfo=UTC)
PRICES = {"mug-blue": 1190, "mug-red": 1190, "teapot": 3450, "kettle-steel": 5990, "tea-assam-250": 890,
          "tea-sencha-100": 1240, "filter-paper": 390, "spoon-set": 2100}  # fmt: skip
CURRENCIES, CARDS = ("EUR", "CHF", "GBP", "USD"), ("visa", "mastercard", "amex")


class Kind(StrEnum):
    """What an event is, and so what becomes of it."""

    PLAIN = "plain"
    """Acked at the first attempt."""
    FLAKY = "flaky"
    """The payment times out twice, then succeeds."""
    REFUSED = "refused"
    """An unknown currency: fails on every attempt."""
    MALFORMED = "malformed"
    """JSON that breaks off: fails on every attempt."""
    TOMBSTONE = "tombstone"
    """The order was erased: a key without a value."""


SHARES = {Kind.FLAKY: 0.01, Kind.TOMBSTONE: 0.01, Kind.REFUSED: 0.005, Kind.MALFORMED: 0.005}


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """A record to produce: the order's id as key, JSON of about 190 bytes or None as value."""

    key: bytes
    value: bytes | None
    kind: Kind


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records were produced, by kind; every kind is there."""

    by_kind: dict[Kind, int]

    @property
    def records(self) -> int:
        """All of them."""
        return sum(self.by_kind.values())

    @property
    def dead(self) -> int:
        """Those that end on the dead-letter topic."""
        return self.by_kind[Kind.REFUSED] + self.by_kind[Kind.MALFORMED]

    @property
    def skipped(self) -> int:
        """Those that the pipeline skips."""
        return self.by_kind[Kind.TOMBSTONE]

    @property
    def acked(self) -> int:
        """Those that are acked in the end."""
        return self.records - self.dead - self.skipped


def orders(count: int, seed: int = 0) -> Iterator[OrderEvent]:
    """`count` events, the same for the same seed; each kind has its share, rounded to whole events."""
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(count * share))]
    kinds += [Kind.PLAIN] * (count - len(kinds))
    rng.shuffle(kinds)
    recent: deque[str] = deque(maxlen=500)
    for number, kind in enumerate(kinds):
        order = _order(rng, number, kind)
        order_id = rng.choice(recent) if kind is Kind.TOMBSTONE and recent else order["order_id"]
        recent.append(order["order_id"])
        yield OrderEvent(order_id.encode(), _value(rng, order, kind), kind)


def _order(rng: random.Random, number: int, kind: Kind) -> dict[str, Any]:
    sku, quantity = rng.choice(sorted(PRICES)), rng.randint(1, 4)
    placed = OPENING + timedelta(seconds=3 * number + rng.randint(0, 2))
    return {
        "order_id": f"o-{number:08d}",
        "customer": f"c-{rng.randrange(40_000):05d}",
        "items": [{"sku": sku, "quantity": quantity, "price": PRICES[sku]}],
        "amount": quantity * PRICES[sku],
        "currency": "XTS" if kind is Kind.REFUSED else rng.choices(CURRENCIES, (6, 2, 1, 1))[0],
        "card": "diners" if kind is Kind.FLAKY else rng.choices(CARDS, (5, 4, 1))[0],
        "created_at": placed.isoformat(),
    }


def _value(rng: random.Random, order: dict[str, Any], kind: Kind) -> bytes | None:
    if kind is Kind.TOMBSTONE:
        return None
    value = json.dumps(order, separators=(",", ":")).encode()
    return value[: rng.randrange(20, len(value) - 20)] if kind is Kind.MALFORMED else value


def produce(
    bootstrap: str | dict[str, Any], topic: str, events: Iterable[OrderEvent], *, timeout: float = 60
) -> Counts:
    """Produce `events` to the partitions of `topic` by key, as Java's clients would, each once.

    `bootstrap` is an address or a whole producer configuration. Returns once the broker has acknowledged
    everything; raises KafkaException where it refused a record, TimeoutError where it did not answer for
    `timeout` seconds.
    """
    config = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else bootstrap
    producer = Producer({"partitioner": "murmur2_random", "linger.ms": 20, **config, "enable.idempotence": True})
    counts: Counter[Kind] = Counter()
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)

    for event in events:
        while True:
            try:
                producer.produce(topic, key=event.key, value=event.value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        counts[event.kind] += 1
    if left := producer.flush(timeout):
        raise TimeoutError(f"topic {topic}: {left} records were not acknowledged within {timeout:.0f} s")
    if refused:
        raise KafkaException(refused[0])
    return Counts({kind: counts[kind] for kind in Kind})
