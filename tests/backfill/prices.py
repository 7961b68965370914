"""Two versions of a handler that makes a row of each order: the second one rounds another way."""

import json
from collections.abc import Iterator
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Any

from ackline import Dead, Emit, InFlight, Record, Skip


def _row(record: Record, rounding: str) -> dict[str, Any]:
    order = json.loads(record.value)
    price = Decimal(order["price"]).quantize(Decimal("0.01"), rounding)
    return {"id": order["id"], "price": price, "note": order.get("note")}


def first(record: Record) -> Iterator[Any]:
    """Emits a row for each order, and nothing for an empty record."""
    if record.value != b"{}":
        yield Emit(_row(record, ROUND_DOWN))


def second(record: Record) -> Iterator[Any]:
    """Rounds half up, emits to a topic, gives one order up and passes over another."""
    order = json.loads(record.value)
    if order.get("note") == "bad":
        raise Dead("a bad order")
    if order.get("note") == "old":
        raise Skip("an old order")
    yield Emit({"seen": record.offset}, stream="seen")
    yield Emit(_row(record, ROUND_HALF_UP))


def waits(record: Record) -> Iterator[Any]:
    """Emits a row, and hands the record on."""
    yield Emit(_row(record, ROUND_HALF_UP))
    yield InFlight()


def quiet(record: Record) -> Iterator[Any]:
    """Does what the second handler does, but for its topic: the tests have no broker to send to."""
    yield from (emit for emit in second(record) if emit.stream != "seen")


def charges_more(record: Record) -> Iterator[Any]:
    """Emits a price that is 10 too high."""
    row = _row(record, ROUND_DOWN)
    yield Emit(row | {"price": row["price"] + 10})


mended = first
"""The handler of the documents, without the mistake of `charges_more`."""
