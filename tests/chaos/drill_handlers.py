"""The handler of the restore drills. What it was called for, and the tokens that it got, outlive each lane."""

import json
from collections.abc import Iterator

from ackline import Emit, InFlight, Record
from tests.support.journal import follow_orders

CALLS: list[tuple[str, int, int]] = []
"""Topic, offset and attempt of each call, in order."""
TOKENS: dict[int, str] = {}
"""The token of the last attempt at each offset that is handed on."""


def emit(record: Record) -> Iterator[Emit | InFlight]:
    """Does what the record orders, hands it on if that is ordered, and emits one row."""
    orders = json.loads(record.value or b"{}")
    CALLS.append((record.topic, record.offset, record.attempt))
    follow_orders(orders, record.attempt)
    if orders.get("wait"):
        TOKENS[record.offset] = record.token
        yield InFlight()
    yield Emit({"id": record.offset}, key="k")
