"""Orders with several line items for the demo's pipeline `shop`, and the rows that its output tables must have.

The rows are computed here from the orders alone, without the handlers of the pipeline and without what it has stored.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ackline.local.order_events import PRICES, OrderEvent, OrderKind

SOLD_OUT, IMPORTED, UNKNOWN = "spoon-set", "kettle-steel", "teapot-glass"
PRICED = ("mug-blue", "mug-red", "teapot", "tea-assam-250", "tea-sencha-100")
SHARES = {OrderKind.FLAKY: 0.05, OrderKind.REFUSED: 0.01}
_SOLD_OUT_SHARE = 0.1


def shop_orders(count: int, seed: int = 0) -> Iterator[OrderEvent]:
    """Yields `count` orders of one to six items, the same for the same seed.

    An order is FLAKY if it has an item whose price comes at the second attempt, and REFUSED if it has an unknown
    product. Any order may have an item that is sold out. Each order has at least one item with a price.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(count * share))]
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


@dataclass(frozen=True, slots=True)
class OutputRows:
    """The rows of the two output tables, without the columns that Ackline adds; how often each row is there.

    `totals` counts (order, items, amount in cents), `rejected` counts (order, product).
    """

    totals: Counter[tuple[Any, ...]]
    rejected: Counter[tuple[Any, ...]]


def expected_rows(orders: Iterable[OrderEvent]) -> OutputRows:
    """Returns the rows that the tables must have once all `orders` are settled: none of a REFUSED order."""
    expected = OutputRows(Counter(), Counter())
    for event in orders:
        if event.kind is OrderKind.REFUSED or event.value is None:
            continue
        order = json.loads(event.value)
        priced = [item for item in order["items"] if item["product"] != SOLD_OUT]
        amount = sum(PRICES[item["product"]] * item["quantity"] for item in priced)
        expected.totals[order["order_id"], len(priced), amount] += 1
        expected.rejected.update(
            (order["order_id"], item["product"]) for item in order["items"] if item["product"] == SOLD_OUT
        )
    return expected
