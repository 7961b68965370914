"""Handlers of a shop: orders with line items, priced per product and summed per order."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from ackline import Emit, InFlight, Record, Tuple


def split(record: Record) -> Iterator[Emit]:
    """Emits the items of an order; `count` goes to an output of its own."""
    assert isinstance(record.value, bytes)
    order = json.loads(record.value)
    yield Emit({"order": order["id"], "items": len(order["items"])}, stream="counts")
    for item in order["items"]:
        yield Emit({"order": order["id"], **item}, stream="items", key=item["product"])


def split_and_hand_on(record: Record) -> Iterator[Emit | InFlight]:
    """Emits the items of an order; with `{"wait": FILE}` it appends offset, attempt and token to the file, and answers
    InFlight. With `{"early": [BROKER, TOPIC]}` it sends an ack to the topic before it answers."""
    yield from split(record)
    if hand_on(record, json.loads(record.value or b"{}")):
        yield InFlight()


def hand_on(record: Record, order: Mapping[str, Any]) -> bool:
    """Hands a record on, as `split_and_hand_on` says. Returns whether the order has `wait`."""
    if not order.get("wait"):
        return False
    with Path(order["wait"]).open("a") as file:
        file.write(f"{record.offset} {record.attempt} {record.token}\n")
    if order.get("early"):
        broker, topic = order["early"]
        producer = Producer({"bootstrap.servers": broker})
        producer.produce(topic, b"ack", record.token.encode())
        assert producer.flush(30) == 0
    return True


def price(item: Tuple) -> Iterator[Emit]:
    """Prices an item; a product without a price fails."""
    if item.value.get("fail"):
        raise ValueError("no price")
    if "bad" in item.value:
        yield Emit({"order": item.value["order"], "product": item.value["bad"], "amount": 1}, stream="rejected")
        return
    yield Emit({**item.value, "amount": 2.5 * item.value["pieces"]}, key=item.value["order"])


def total(items: Sequence[Tuple]) -> Iterator[Emit]:
    """Sums the items of an order."""
    yield Emit({"order": items[0].key, "sum": sum(item.value["amount"] for item in items)}, key=items[0].key)
