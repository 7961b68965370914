"""An example handler: it checks the orders of a shop and has them paid.

A handler is a function of one record. It can end in four ways:

- It returns: the record is acked, and Ackline does not read it again.
- It raises an exception: the attempt failed. Ackline reads the record again from Kafka after the backoff of the
  pipeline file, with `attempt` one higher. When no retry is left, the record goes to the dead-letter topic.
- It raises `Skip(reason)`: the record is skipped and not read again.
- It raises `Dead(reason)`: the record goes to the dead-letter topic at once, because no retry can help.

A killed run is repeated, so a handler may get the same attempt twice. It must have the same effect then: write by
a key, or send an idempotency key with a request. Here the order id would be that key.

The value is what the producer sent, byte for byte. A value of None is a tombstone, which the handler does not get
under `tombstones: skip`. Ackline stores the texts of exceptions: put no customer data in them.
"""

import json
from typing import Any

from ackline import Record

CURRENCIES = frozenset({"CHF", "EUR", "GBP", "USD"})
"""The currencies that the shop's bank accepts."""


def handle(record: Record) -> None:
    """Checks an order and has it paid.

    Raises ValueError if the order is malformed, has an unknown currency, or has an amount that is not the sum of
    its items. Such an order fails at every attempt and ends on the dead-letter topic. Raises TimeoutError if the
    payment provider does not answer; a retry may succeed.
    """
    order = json.loads(record.value)
    if order["currency"] not in CURRENCIES:
        raise ValueError("unknown currency")
    if sum(item["quantity"] * item["price"] for item in order["items"]) != order["amount"]:
        raise ValueError("items and amount differ")
    pay(order, record.attempt)


def pay(order: dict[str, Any], attempt: int) -> None:
    """Stands for a request to the payment provider, which accepts cards of one network at the third attempt only."""
    if order["card"] == "diners" and attempt < 3:
        raise TimeoutError("payment provider did not answer")
