"""An example handler: it books the orders of a shop.

A handler is a function of one record, and has four ways to end:

- it returns: the record is acked, and never comes again;
- it raises: the attempt failed. The record is read again from Kafka after the backoff of the pipeline file,
  with `attempt` one higher, until it succeeds or its retries are used up; then it is dead, and goes to the
  dead-letter topic;
- it raises `Skip(reason)`: there is nothing to do for this record, now or ever;
- it raises `Dead(reason)`: no further attempt can help; the dead-letter topic at once.

A run may stop anywhere and is then done again, so a handler may see an attempt twice: do what is harmless
when done twice (a write by key, a request with an idempotency key). Here the order id would be that key.

The value is what was produced, byte for byte; None is a tombstone, which the pipeline file's `tombstones:
skip` keeps from the handler. Messages of exceptions end in the audit table: put no customer data in them.
"""

import json
from typing import Any

from ackline import Record

CURRENCIES = frozenset({"CHF", "EUR", "GBP", "USD"})
"""What the shop's bank takes."""


def handle(record: Record) -> None:
    """Check an order and have it paid.

    Raises ValueError for one that is malformed, does not add up, or is in a currency that nobody takes:
    these fail on every attempt, and end on the dead-letter topic. Raises TimeoutError while the payment
    provider is away.
    """
    order = json.loads(record.value)
    if order["currency"] not in CURRENCIES:
        raise ValueError("unknown currency")
    if sum(item["quantity"] * item["price"] for item in order["items"]) != order["amount"]:
        raise ValueError("items and amount differ")
    pay(order, record.attempt)


def pay(order: dict[str, Any], attempt: int) -> None:
    """Stands for a request to the payment provider, whose way to one card network works at the third try."""
    if order["card"] == "diners" and attempt < 3:
        raise TimeoutError("payment provider did not answer")
