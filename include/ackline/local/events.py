"""Realistic events for the demo's pipelines `orders` and `shop` and for `ackline dev produce`, and a producer for them.

Each event has a kind, which decides what becomes of its record with the example handler `handlers.orders`. Orders with
several line items are for `shop`. The rows that its output tables must have are computed here from the orders alone,
without the handlers of the pipeline and without what it has stored.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from ackline.errors import FatalError

OPENING = datetime(2026, 3, 2, 7, tzinfo=UTC)
PRICES = {"mug-blue": 1190, "mug-red": 1190, "teapot": 3450, "kettle-steel": 5990, "tea-assam-250": 890,
          "tea-sencha-100": 1240, "filter-paper": 390, "spoon-set": 2100}  # fmt: skip
CURRENCIES, CARDS = ("EUR", "CHF", "GBP", "USD"), ("visa", "mastercard", "amex")


class OrderKind(StrEnum):
    """What happens to the record of an event."""

    PLAIN = "plain"
    """The first attempt is acked."""
    FLAKY = "flaky"
    """The first attempts time out, then one succeeds."""
    REFUSED = "refused"
    """The currency is unknown: every attempt fails."""
    MALFORMED = "malformed"
    """The JSON is cut off: every attempt fails."""
    TOMBSTONE = "tombstone"
    """The order was erased: the record has a key and no value, and is skipped."""


SHARES = {OrderKind.FLAKY: 0.01, OrderKind.TOMBSTONE: 0.01, OrderKind.REFUSED: 0.005, OrderKind.MALFORMED: 0.005}


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """A record to produce. The key is the order's id; the value is JSON of about 190 bytes, or None."""

    key: bytes
    value: bytes | None
    kind: OrderKind


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """How many records were produced of each kind."""

    by_kind: dict[OrderKind, int]

    @property
    def records(self) -> int:
        """The number of all records."""
        return sum(self.by_kind.values())

    @property
    def dead(self) -> int:
        """How many records end on the dead-letter topic."""
        return self.by_kind[OrderKind.REFUSED] + self.by_kind[OrderKind.MALFORMED]

    @property
    def skipped(self) -> int:
        """How many records the pipeline skips."""
        return self.by_kind[OrderKind.TOMBSTONE]

    @property
    def acked(self) -> int:
        """How many records are acked in the end."""
        return self.records - self.dead - self.skipped


_DRAWN = 300
"""Added to the seed. So each kind is early in partition 0 among the first 1,000 orders, for the README."""


def orders(count: int, seed: int = 0) -> Iterator[OrderEvent]:
    """Yields `count` events, the same for the same seed. Each kind has its share, rounded to whole events."""
    rng = random.Random(seed + _DRAWN)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(count * share))]
    kinds += [OrderKind.PLAIN] * (count - len(kinds))
    rng.shuffle(kinds)
    recent: deque[str] = deque(maxlen=500)
    for number, kind in enumerate(kinds):
        order = _order(rng, number, kind)
        order_id = rng.choice(recent) if kind is OrderKind.TOMBSTONE and recent else order["order_id"]
        recent.append(order["order_id"])
        yield OrderEvent(order_id.encode(), _value(rng, order, kind), kind)


def _order(rng: random.Random, number: int, kind: OrderKind) -> dict[str, Any]:
    sku, quantity = rng.choice(sorted(PRICES)), rng.randint(1, 4)
    placed = OPENING + timedelta(seconds=3 * number + rng.randint(0, 2))
    return {
        "order_id": f"o-{number:08d}",
        "customer": f"c-{rng.randrange(40_000):05d}",
        "items": [{"sku": sku, "quantity": quantity, "price": PRICES[sku]}],
        "amount": quantity * PRICES[sku],
        "currency": "XTS" if kind is OrderKind.REFUSED else rng.choices(CURRENCIES, (6, 2, 1, 1))[0],
        "card": "diners" if kind is OrderKind.FLAKY else rng.choices(CARDS, (5, 4, 1))[0],
        "created_at": placed.isoformat(),
    }


def _value(rng: random.Random, order: dict[str, Any], kind: OrderKind) -> bytes | None:
    if kind is OrderKind.TOMBSTONE:
        return None
    value = json.dumps(order, separators=(",", ":")).encode()
    return value[: rng.randrange(20, len(value) - 20)] if kind is OrderKind.MALFORMED else value


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record to produce; `partition` of None lets the client choose it by the key."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None


def produce(bootstrap: str, topic: str, records: Iterable[RecordLine], *, timeout: float = 60) -> int:
    """Produces each record once, to the partition that Java's clients choose for its key. Returns how many they were.

    Returns when the broker has acknowledged all records. Raises FatalError if it refuses one, or does not acknowledge
    all within `timeout` seconds after the last one.
    """
    producer = Producer({
        "bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 20, "enable.idempotence": True,
        "log_level": 3,  # a broker whose coordinator is still loading is not worth a message: the client tries again
    })  # fmt: skip
    refused: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error.str())

    number = 0
    for number, record in enumerate(records, 1):  # noqa: B007
        partition = -1 if record.partition is None else record.partition  # -1: the client chooses
        headers: list[Any] = list(record.headers)
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition, headers=headers, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(timeout)
    if refused or left:
        raise FatalError(
            f"{topic} at {bootstrap}: {len(refused) + left} of {number} records were not acknowledged"
            + (f": {refused[0]}" if refused else ""),
        )
    return number


def produce_orders(bootstrap: str, topic: str, events: Iterable[OrderEvent]) -> OrderCounts:
    """Produces each event once, and returns the counts. Raises what `produce` raises."""
    counts: Counter[OrderKind] = Counter()

    def counted() -> Iterator[RecordLine]:
        for event in events:
            counts[event.kind] += 1
            yield RecordLine(event.value, event.key)

    produce(bootstrap, topic, counted())
    return OrderCounts({kind: counts[kind] for kind in OrderKind})


SOLD_OUT, IMPORTED, UNKNOWN = "spoon-set", "kettle-steel", "teapot-glass"
PRICED = ("mug-blue", "mug-red", "teapot", "tea-assam-250", "tea-sencha-100")
SHOP_SHARES = {OrderKind.FLAKY: 0.05, OrderKind.REFUSED: 0.01}
_SOLD_OUT_SHARE = 0.1


def shop_orders(count: int, seed: int = 0) -> Iterator[OrderEvent]:
    """Yields `count` orders of one to six items, the same for the same seed.

    An order is FLAKY if it has an item whose price comes at the second attempt, and REFUSED if it has an unknown
    product. Any order may have an item that is sold out. Each order has at least one item with a price.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHOP_SHARES.items() for _ in range(round(count * share))]
    kinds += [OrderKind.PLAIN] * (count - len(kinds))
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        products = rng.choices(PRICED, k=rng.randint(1, 4))
        products += [SOLD_OUT] if rng.random() < _SOLD_OUT_SHARE else []
        products += {OrderKind.FLAKY: [IMPORTED], OrderKind.REFUSED: [UNKNOWN]}.get(kind, [])
        rng.shuffle(products)
        order_id = f"s-{number:06d}"
        items = [{"product": product, "quantity": rng.randint(1, 4)} for product in products]
        value = json.dumps({"order_id": order_id, "items": items}, separators=(",", ":")).encode()
        yield OrderEvent(order_id.encode(), value, kind)


TOTALS, REJECTED = "order_totals", "rejected_items"
OUTPUTS = {TOTALS: ("order_id", "items", "amount"), REJECTED: ("order_id", "product")}
"""The output tables of `shop`, with their columns besides those that Ackline adds. An amount is in cents."""


def expected_rows(orders: Iterable[OrderEvent]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Returns how often each table must have each row once all `orders` are settled: no row of a REFUSED order."""
    expected: dict[str, Counter[tuple[Any, ...]]] = {table: Counter() for table in OUTPUTS}
    for event in orders:
        if event.kind is OrderKind.REFUSED or event.value is None:
            continue
        order = json.loads(event.value)
        priced = [item for item in order["items"] if item["product"] != SOLD_OUT]
        amount = sum(PRICES[item["product"]] * item["quantity"] for item in priced)
        expected[TOTALS][order["order_id"], len(priced), amount] += 1
        rejected = (item["product"] for item in order["items"] if item["product"] == SOLD_OUT)
        expected[REJECTED].update((order["order_id"], product) for product in rejected)
    return expected
