"""Example handlers of a pipeline with steps: orders with line items, priced by product and summed by order.

`split` is the first step, named `source`: it gets a record and emits its items. `price` gets one item. `total` gets the
amounts of an order. A record is acked once every tuple that came of it is. If one item fails, the whole order fails,
and is read again: its items are emitted and priced once more. So the table `order_totals` has one row for each acked
order, and none for an order that is dead. An item that is sold out does not fail: it goes to the table
`rejected_items`, and is not in the sum.

Prices are in cents.
"""

import json
from collections.abc import Iterator, Sequence

from ackline import Emit, Record, Tuple

PRICES = {"mug-blue": 1190, "mug-red": 1190, "teapot": 3450, "tea-assam-250": 890, "tea-sencha-100": 1240}
IMPORTED = {"kettle-steel": 5990}
"""Products whose price comes from a supplier."""
SOLD_OUT = frozenset({"spoon-set"})


def split(record: Record) -> Iterator[Emit]:
    """Emits each item of an order, with the product as its key."""
    order = json.loads(record.value)
    for item in order["items"]:
        emitted = {"order_id": order["order_id"], "quantity": item["quantity"], "attempt": record.attempt}
        yield Emit(emitted, stream="items", key=item["product"])


def price(item: Tuple) -> Iterator[Emit]:
    """Emits the amount of an item, with the order as its key; an item that is sold out goes to the stream `rejected`.

    Raises ValueError for an unknown product: the order fails at every attempt and ends on the dead-letter topic. Raises
    TimeoutError if the supplier does not answer; a retry may succeed.
    """
    order_id = item.value["order_id"]
    if item.key in SOLD_OUT:
        yield Emit({"order_id": order_id, "product": item.key}, stream="rejected")
        return
    yield Emit(price_of(item.key, item.value["attempt"]) * item.value["quantity"], key=order_id)


def price_of(product: str, attempt: int) -> int:
    """Returns the price of a product. Stands for a request to the supplier, who answers at the second attempt only."""
    if product in IMPORTED:
        if attempt == 1:
            raise TimeoutError("supplier did not answer")
        return IMPORTED[product]
    if product not in PRICES:
        raise ValueError("unknown product")
    return PRICES[product]


def total(amounts: Sequence[Tuple]) -> Iterator[Emit]:
    """Emits the sum of an order, from the amounts of all its items."""
    yield Emit({"order_id": amounts[0].key, "items": len(amounts), "amount": sum(item.value for item in amounts)})
