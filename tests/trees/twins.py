"""Handlers that follow the orders of `tests.trees.model`, in two forms that mean the same: one for a tuple, or
for the tuples of a key, and one for a batch of them.

Both emit rows of several kinds, in this order: plain ones, ones that fit no table, and ones without an anchor. A row
without an anchor is plain and goes to the stream that each topology here takes: where such a row can't be delivered,
all records of the call fail, and a batch is a larger call.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from ackline.handler import Emit, Fail, Hold, Record, Tuple, arrow_handler
from tests.trees.model import JOIN_WORDS, WORDS, act, order_of

COLUMNS = {"value": "string", "path": "string", "number": "long", "half": "double", "at": "timestamp", "tags": "string"}
"""The table of the default streams."""
_TYPES: Mapping[str, pa.DataType] = {
    "path": pa.string(), "number": pa.int64(), "half": pa.float64(), "at": pa.timestamp("us", "UTC"),
    "tags": pa.list_(pa.string()),
}  # fmt: skip
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[Any, str, str, bool]
"""A value, its stream and key, and whether it is anchored."""


def path_of(value: Any) -> str:
    """The path of a tuple, which decides what a step does with it."""
    return str(value["path"] if isinstance(value, dict) else value)


class Rows(NamedTuple):
    texts: list[Row]
    mappings: list[Row]
    odd: list[Row]
    loose: list[Row]

    @property
    def all(self) -> list[Row]:
        return [row for kind in self for row in kind]


def order(value: Any, step: str, words: Sequence[str]) -> tuple[str, Rows]:
    """What a step does with a tuple: a word, and the rows that it emits."""
    word, items = order_of(path_of(value), step, words)
    rows = Rows([], [], [], [])
    for path, stream, key, anchored in items:
        kind = crc32(path.encode()) % 8
        if not anchored:
            rows.loose.append((path, "default", key, False))
        elif kind < 4:
            rows.texts.append((path, stream, key, True))
        elif kind < 7:
            rows.mappings.append((_mapping(path, kind), stream, key, True))
        else:
            rows.odd.append(({"path": path, "extra": 1}, stream, key, True))
    return word, rows


def _mapping(path: str, kind: int) -> dict[str, Any]:
    number = crc32(path.encode())
    half = None if kind == 4 else number / 2
    at = _BEGIN + timedelta(seconds=number)
    return {"path": path, "number": number, "half": half, "at": at, "tags": [path, "odd"][: kind - 4]}


def emits(rows: Rows) -> Iterator[Emit]:
    for value, stream, key, anchored in rows.all:
        yield Emit(value, stream, key) if anchored else Emit(value, stream, key, anchors=())


def source(record: Record) -> Iterator[Emit]:
    """The handler of the records."""
    yield from emits(order(record.value, "source", ("ack",))[1])


def step_handler(name: str, join: bool) -> Any:
    """The handler of a step, called with a tuple, or with those of a key."""

    def one(given: Tuple) -> Iterator[Emit]:
        word, rows = order(given.value, name, WORDS)
        yield from emits(rows)
        act(word)

    def several(given: Sequence[Tuple]) -> Iterator[Any]:
        first = min(given, key=lambda each: path_of(each.value))
        orders = [order(each.value, name, JOIN_WORDS) for each in given]
        if any(word == "fail all" for word, _ in orders):
            raise ValueError("broken")
        for each, (word, _) in zip(given, orders, strict=True):
            if word != "ack":
                yield Hold(each) if word == "hold" else Fail(each)
        for kind in range(len(Rows._fields)):
            for each, (_, rows) in zip(given, orders, strict=True):
                for value, stream, key, anchored in rows[kind]:
                    yield Emit(value, stream, key, anchors=(each, first) if anchored else ())

    return several if join else one


Anchored = tuple[list[int], Row]
"""A row with the numbers of the rows that it belongs to."""


def batches_of(rows: Sequence[Sequence[Anchored]]) -> Iterator[pa.RecordBatch]:
    texts, mappings, odd, loose = rows
    for of_kind, types in (
        (texts, None), (mappings, _TYPES), (odd, {"path": pa.string(), "extra": pa.int64()}), (loose, None),
    ):  # fmt: skip
        if not of_kind:
            continue
        values = [row[0] for _, row in of_kind]
        fields = (
            {"value": pa.array(values)}
            if types is None
            else {name: pa.array([value.get(name) for value in values], kind) for name, kind in types.items()}
        )
        yield pa.record_batch({
            **fields,
            "_input": pa.array([inputs for inputs, _ in of_kind], pa.list_(pa.int64())),
            "stream": [row[1] for _, row in of_kind],
            "key": [row[2] for _, row in of_kind],
        })  # fmt: skip


def rows_by_kind(orders: Sequence[tuple[list[int], Rows]]) -> list[list[Anchored]]:
    """The rows of all tuples, by kind; each tuple has the numbers that its anchored rows belong to."""
    return [
        [(inputs if row[3] else [], row) for inputs, rows in orders for row in rows[kind]]
        for kind in range(len(Rows._fields))
    ]


@arrow_handler
def source_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The handler of a batch of records."""
    values = batch.column("value").to_pylist()
    yield from batches_of(rows_by_kind([([n], order(value, "source", ("ack",))[1]) for n, value in enumerate(values)]))


_WORDS = {
    "fail": ("failed", "ValueError", "broken"), "fail all": ("failed", "ValueError", "broken"),
    "skip": ("skipped", None, None), "dead": ("dead", None, None), "hold": ("held", None, None),
    "fail one": ("failed", None, None),
}  # fmt: skip


def _said(words: Mapping[int, str]) -> pa.RecordBatch:
    said = [_WORDS[word] for word in words.values()]
    return pa.record_batch({
        "_input": pa.array(list(words), pa.int32()), "outcome": pa.array([word for word, _, _ in said], pa.string()),
        "error_class": pa.array([name for _, name, _ in said], pa.string()),
        "error_message": pa.array([text for _, _, text in said], pa.string()),
    })  # fmt: skip


def batch_handler(name: str, join: bool) -> Any:
    """The handler of a step, called with a batch of tuples; of a join, with all of several keys."""

    @arrow_handler
    def one(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        orders = [order(value, name, WORDS) for value in _values(batch)]
        for word, rows in orders:
            if word != "ack":
                rows.loose.clear()  # nothing says which tuple such a row came from, so it would be delivered
        yield _said({number: word for number, (word, _) in enumerate(orders) if word != "ack"})
        yield from batches_of(rows_by_kind([([number], rows) for number, (_, rows) in enumerate(orders)]))

    @arrow_handler
    def several(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        values, keys = _values(batch), batch.column("key").to_pylist()
        orders = [order(value, name, JOIN_WORDS) for value in values]
        words: dict[int, str] = {}
        kept: list[tuple[list[int], Rows]] = []
        for key in dict.fromkeys(keys):
            numbers = [number for number, other in enumerate(keys) if other == key]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "the tuples of a key come one after the other"
            first = min(numbers, key=lambda number: path_of(values[number]))
            fails = any(orders[number][0] == "fail all" for number in numbers)
            for number in numbers:
                word = "fail all" if fails else orders[number][0]
                if word != "ack":
                    words[number] = word
                if not fails:
                    kept.append(([number, first], orders[number][1]))
        yield _said(words)
        yield from batches_of(rows_by_kind(kept))

    return several if join else one


def _values(batch: pa.RecordBatch) -> list[Any]:
    """The values of the tuples of a batch: texts, and mappings of which only the path matters."""
    assert batch.column("_tuple").to_pylist() == list(range(batch.num_rows))
    nothing = [None] * batch.num_rows
    texts, paths = (
        batch.column(name).to_pylist() if name in batch.schema.names else nothing for name in ("value", "path")
    )
    return [path if text is None else text for text, path in zip(texts, paths, strict=True)]
