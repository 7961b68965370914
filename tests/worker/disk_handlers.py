"""Handlers that do for each record what a test has set for its offset."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ackline import Emit, Record, Tuple

ANSWERS: dict[int, Callable[[], Any]] = {}
"""What the handler of an offset does; without one it emits a plain row with the offset."""
TOKENS: dict[int, str] = {}
"""The newest token of each offset that `tells` has handled."""


def emit(record: Record) -> Iterator[Any]:
    """Emits what is set for the record, or a row of its own."""
    if record.offset in ANSWERS:
        yield from ANSWERS[record.offset]()
    else:
        yield Emit({"id": record.offset}, key="k")


def tells(record: Record) -> Iterator[Any]:
    """Does what `emit` does, and keeps the token of the record."""
    TOKENS[record.offset] = record.token
    yield from emit(record)


def answer(record: Record) -> Any:
    """Returns what is set for the record, or None."""
    return ANSWERS[record.offset]() if record.offset in ANSWERS else None


def step(item: Tuple) -> Iterator[Emit]:
    """Emits what it gets."""
    yield Emit(item.value, key=item.key)


def joined(items: Sequence[Tuple]) -> Iterator[Emit]:
    """Emits one row with the sum of the ids."""
    yield Emit({"id": sum(item.value["id"] for item in items)})
