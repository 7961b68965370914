"""Handlers of a shop: orders with line items, priced per product and summed per order."""

import json
from collections.abc import Iterator, Sequence

from ackline import Emit, Record, Tuple


def split(record: Record) -> Iterator[Emit]:
    """Emits the items of an order; `count` goes to an output of its own."""
    assert isinstance(record.value, bytes)
    order = json.loads(record.value)
    yield Emit({"order": order["id"], "items": len(order["items"])}, stream="counts")
    for item in order["items"]:
        yield Emit({"order": order["id"], **item}, stream="items", key=item["product"])


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
