"""Handlers of steps for tests of isolated trees: the value of a tuple names what they do, and in which step.

Each call is noted in the file `calls` of the folder of `tests.worker.isolation.killers`.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ackline.handler import Emit, Fail, Hold, Record, Tuple
from tests.worker.isolation.killers import do, note


def source(record: Record) -> Iterator[Emit]:
    """Emits each item of the value; an item is a key and what the steps do."""
    for key, deed in record.value:
        yield Emit(deed, key=key)


def near(given: Tuple) -> Iterator[Any]:
    """Does what the value names, and emits the value."""
    yield from work(given, "near")


def far(given: Tuple) -> Iterator[Any]:
    """Does what the value names, and emits the value to `ends`."""
    yield from work(given, "far")


def work(given: Tuple, name: str) -> Iterator[Any]:
    """Does what the value names, if it is for the step `name`."""
    note("calls", f"{name} {given.key} {given.value} {os.getpid()}")
    deed, _, place = str(given.value).partition(" in ")
    if place == name:
        match deed:
            case "fork":
                os.fork()
            case "much":
                yield Emit(bytes(5_000_000), key=given.key)
            case "endless":
                yield from endless(given)
            case "soon":
                threading.Timer(0.1, os._exit, [4]).start()
            case "nowhere":
                yield Emit("lost", stream="nowhere")
            case "free":
                yield Emit("free", anchors=())
            case _:
                do(deed)
    yield Emit(given.value, key=given.key)


def endless(given: Tuple) -> Iterator[Emit]:
    """Emits without an end."""
    while True:
        yield Emit("much", key=given.key)


def meet(given: Sequence[Tuple]) -> Iterator[Any]:
    """Does what the values name: holds a tuple, fails it, emits one with some anchors, or what `work` does."""
    note("calls", f"meet {given[0].key} {len(given)} {os.getpid()}")
    for place, each in enumerate(given):
        deed, _, step = str(each.value).partition(" in ")
        if step != "meet":
            continue
        if deed == "hold":
            yield Hold(each)
        elif deed == "reject":
            yield Fail(each, f"reason {each.value}")
        elif deed == "some":
            yield Emit("some", key=each.key, anchors=given[: place + 1])
        else:
            do(deed)
    yield Emit("all", key=given[0].key)


def end(given: Tuple) -> None:
    """Does what the value names."""
    for _ in work(given, "end"):
        pass
