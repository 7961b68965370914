"""Handlers of the tests of tuple trees. A record's value is a JSON list of items. `do` of an item is what the steps do
with it, on the attempts up to `until`. Each call is noted in the journal of the tests."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ackline.handler import Dead, Emit, Fail, Hold, InFlight, Record, Skip, Tuple, arrow_handler
from tests.spark.output_handlers import hand_on
from tests.support import journal


def split(record: Record) -> Iterator[Emit]:
    """Emits each item of the record."""
    items = record.value if isinstance(record.value, list) else json.loads(record.value or b"[]")
    for item in items:
        if record.attempt <= item.get("until", 9):
            yield Emit(item, stream=item.get("stream", "default"), key=item.get("key"))
        else:
            yield Emit({"key": item.get("key")}, stream=item.get("stream", "default"), key=item.get("key"))


def split_and_hand_on(record: Record) -> Iterator[Emit | InFlight]:
    """Emits the items of the record; with `{"wait": FILE}` it appends offset, attempt and token to the file, and
    answers InFlight before the last items."""
    content = json.loads(record.value or b"{}")
    items = [Emit(item, stream=item.get("stream", "default"), key=item.get("key")) for item in content["items"]]
    yield from items[:1]
    if hand_on(record, content):
        yield InFlight()
    yield from items[1:]


def work(given: Tuple) -> Iterator[Emit]:
    """Follows the item's `do`, and emits the item."""
    note(given)
    do(given.value)
    yield Emit(given.value, key=given.key)


def spread(given: Tuple) -> Iterator[Emit]:
    """Emits the item three times, with three keys. The first one keeps the item's `do`."""
    note(given)
    for number in range(3):
        do_of_item = given.value.get("do") if number == 0 else None
        yield Emit({"do": do_of_item}, key=f"{given.key}{number}")


def end(given: Tuple) -> None:
    """Follows the item's `do`, and emits nothing."""
    note(given)
    do(given.value)


def join(given: Sequence[Tuple]) -> Iterator[Any]:
    """Fails and holds the items by their `do`, and emits how many items there are."""
    for each in given:
        note(each)
        if each.value.get("do") == "hold":
            yield Hold(each)
        if each.value.get("do") == "fail in join":
            yield Fail(each, "unwanted")
    if any(each.value.get("do") == "raise in join" for each in given):
        raise ValueError("the join broke")
    yield Emit({"count": len(given)}, stream="sums", key=given[0].key)


def hold(given: Sequence[Tuple]) -> Iterator[Hold]:
    """Holds the items whose `do` is `hold`, acks the others, and emits nothing."""
    for each in given:
        note(each)
        if each.value.get("do") == "hold":
            yield Hold(each)


def hold_less_than_four(given: Sequence[Tuple]) -> Iterator[Hold]:
    """Acks the items if there are four of them, otherwise holds them all. Emits nothing."""
    if len(given) < 4:
        yield from map(Hold, given)


WORDS = {"fail": "failed", "skip": "skipped", "dead": "dead", "hold": "held", "fail in join": "failed"}
"""What a batch says of the items, by their `do`."""


@arrow_handler
def split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Emits the items of each record, and fails those of which one item's `do` is `fail at once`."""
    items = [json.loads(value or b"[]") for value in batch.column("value").to_pylist()]
    fails = [any(item.get("do") == "fail at once" for item in of_record) for of_record in items]
    yield pa.record_batch({"outcome": ["failed" if failed else "acked" for failed in fails]})
    if rows := [(number, item) for number, of_record in enumerate(items) for item in of_record]:
        yield pa.record_batch({
            "_input": [number for number, _ in rows], "key": [item["key"] for _, item in rows],
            "do": pa.array([item.get("do") for _, item in rows], pa.string()),
            "stream": pa.array([item.get("stream") for _, item in rows], pa.string()),
        })  # fmt: skip


@arrow_handler
def work_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Follows the items' `do`, and emits the others."""
    return batch.append_column("outcome", _words(batch, "hold", "fail in join"))


@arrow_handler
def end_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Follows the items' `do`, and emits nothing."""
    return pa.record_batch({"outcome": _words(batch)})


@arrow_handler
def join_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Fails and holds items by their `do`, and emits for each key how many items there are."""
    yield pa.record_batch({"outcome": _words(batch)})
    keys = batch.column("key").to_pylist()
    for key in dict.fromkeys(keys):
        numbers = [number for number, other in enumerate(keys) if other == key]
        yield pa.record_batch({"count": [len(numbers)], "_input": [numbers], "stream": ["sums"], "key": [key]})


def _words(batch: pa.RecordBatch, *acked: str) -> pa.Array:
    items: list[Any] = batch.column("do").to_pylist() if "do" in batch.schema.names else [None] * batch.num_rows
    return pa.array(["acked" if item in acked else WORDS.get(item, "acked") for item in items], pa.string())


def note(given: Tuple) -> None:
    """Writes a line for each record of the tuple: the name of the step comes from the tuple's value."""
    for origin in given.origins:
        journal.write(origin.topic, origin.partition, origin.offset, 0)


def do(item: dict[str, Any]) -> None:
    """Follows the item's `do`: raises its error, ends the process, or returns."""
    match item.get("do"):
        case "fail":
            raise ValueError("broken")
        case "skip":
            raise Skip("unwanted")
        case "dead":
            raise Dead("hopeless")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
