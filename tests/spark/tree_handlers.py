"""Handlers of the tests of tuple trees. Values are JSON: what a record splits into, and what each part shall do."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ackline.handler import Dead, Record, Skip
from ackline.testing import journal
from ackline.tuples import Emit, Fail, Hold, Tuple


def split(record: Record) -> Iterator[Emit]:
    """Emits each item of the record."""
    journal.handle(record)
    for item in json.loads(record.value or b"[]"):
        yield Emit(item, stream=item.get("stream", "default"), key=item.get("key"))


def work(given: Tuple) -> Iterator[Emit]:
    """Does what the item says, and passes it on."""
    do(given.value)
    yield Emit(given.value, key=given.key)


def end(given: Tuple) -> None:
    """Does what the item says, and emits nothing."""
    do(given.value)


def total(given: Sequence[Tuple]) -> Iterator[Any]:
    """Fails and holds the items that say so."""
    for each in given:
        if each.value.get("do") == "hold":
            yield Hold(each)
        if each.value.get("do") == "fail in join":
            yield Fail(each, "unwanted")
        if each.value.get("do") == "raise in join":
            raise ValueError("the join broke")


def do(item: dict[str, Any]) -> None:
    """Raises what the item says."""
    match item.get("do"):
        case "fail":
            raise ValueError("broken")
        case "skip":
            raise Skip("unwanted")
        case "dead":
            raise Dead("hopeless")
