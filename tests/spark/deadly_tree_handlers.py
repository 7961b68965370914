"""Handlers of trees that kill, hang or disturb their process. A record's value has JSON `items`.

`do` of an item is what its steps do, by the name of the step. Each call is noted in the journal of the tests: partition
and offset are those of the record, and the attempt is 100 times the number of the step plus the number of the item.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ackline.handler import Emit, Record, Tuple
from tests.support import journal
from tests.worker.isolation.killers import DEEDS, spin


def split(record: Record) -> Iterator[Emit]:
    """Emits each item of the record."""
    content: Any = json.loads(record.value) if isinstance(record.value, bytes) else record.value
    journal.write(record.topic, record.partition, record.offset, 0)
    for number, item in enumerate(content["items"]):
        _do(item, "source")
        yield Emit({**item, "n": number}, key=item.get("key", "k"))
        _do(item, "source after a yield")


def first(given: Tuple) -> Iterator[Emit]:
    """Follows the item's `do`, and emits it."""
    yield from _step(given, 1)


def second(given: Tuple) -> None:
    """Follows the item's `do`."""
    for _ in _step(given, 2):
        pass


def meet(given: Sequence[Tuple]) -> Iterator[Emit]:
    """Follows the `do` of all items of a key, and emits how many there are."""
    for each in given:
        _note(each, 3)
    for each in given:
        _do(each.value, "meet")
    yield Emit({"count": len(given), "n": 0}, key=given[0].key)


def emits_token(record: Record) -> Emit:
    """Emits an item. Raises if the value is not the record's token."""
    if record.value != record.token.encode():
        raise ValueError("another token")
    return Emit({"n": 0})


def emits_offset(record: Record) -> Iterator[Emit]:
    """Emits the offset of the record, and follows the value's `do`."""
    assert isinstance(record.value, bytes)
    journal.write(record.topic, record.partition, record.offset, record.attempt)
    yield Emit({"offset": record.offset})
    _do(json.loads(record.value), "source")


def _step(given: Tuple, number: int) -> Iterator[Emit]:
    _note(given, number)
    name = ("source", "first", "second")[number]
    _do(given.value, name)
    yield Emit(given.value, key=given.key)
    _do(given.value, f"{name} after a yield")


def _note(given: Tuple, number: int) -> None:
    for origin in given.origins:
        journal.write(origin.topic, origin.partition, origin.offset, 100 * number + given.value["n"])


def _do(item: dict[str, Any], place: str) -> None:
    DEADLY[item.get("do", {}).get(place, "nothing")]()


def _fork() -> None:
    """Leaves a copy of the process, which goes on with the call as this process does."""
    os.fork()


def _show_secrets() -> None:
    """Raises if the process has a secret of its task in its memory: looks at all objects of the settings' class."""
    import gc

    from ackline.worker.settings import OutputTargets, ReplaySettings

    for settings in gc.get_objects():
        if isinstance(settings, OutputTargets):
            raise ValueError("the process has the producer's properties")
        if isinstance(settings, ReplaySettings) and (settings.store_options or settings.key_hash_secret):
            raise ValueError("the process has a secret of its task")


DEADLY: dict[str, Callable[[], object]] = {
    **DEEDS, "nothing": lambda: None, "hang": spin, "fork": _fork, "show secrets": _show_secrets,
}  # fmt: skip
