"""Handlers that do for each record what a test has set for its offset, and something plain for every other record."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ackline import Emit, Record, Tuple
from ackline.handler import arrow_handler, column_handler


def _nothing(*_: Any) -> Any:
    return None


@dataclass(slots=True)
class Act:
    """What the handlers of a pipeline do for one record. Each may raise anything."""

    source: Callable[[], Any] = _nothing
    """Returns what the handler of the record answers: for `emit` an iterator."""
    step: Callable[[Sequence[Tuple]], Any] = _nothing
    """Returns what a step answers for a tuple of the record."""
    join: Callable[[Sequence[Tuple]], Any] = _nothing
    """Returns what a join answers for tuples of the record and of others."""
    wants: Callable[[], Any] = _nothing
    """Returns what a filter answers."""
    batch: Callable[[int], Any] = _nothing
    """Returns what an Arrow handler answers for so many rows."""
    word: str | None = None
    """What a column handler has for the record."""


ACTS: dict[int, Act] = {}
"""By offset."""
TOKENS: dict[int, str] = {}
"""By offset, the newest token of a record with an act; empty without an ack topic."""
EMITTED: dict[int, Counter[str]] = {}
"""By offset, how many rows with an anchor its newest call has emitted to each stream."""

STREAMS = ("default", "typed", "parts", "sent")
"""What a plain record is emitted to."""


def answer(record: Record) -> Any:
    """Returns what is set for the record, or None."""
    if record.offset not in ACTS:
        return None
    _read_token(record)
    return ACTS[record.offset].source()


async def answer_later(record: Record) -> Any:
    """Answers as `answer` does, while other calls are under way."""
    await asyncio.sleep(0)
    return answer(record)


async def emit_later(record: Record) -> AsyncIterator[Any]:
    """Emits as `emit` does."""
    for item in emit(record):
        await asyncio.sleep(0)
        yield item


def emit(record: Record) -> Iterator[Any]:
    """Emits what is set for the record, or a plain row to each stream."""
    emitted = EMITTED[record.offset] = Counter[str]()
    if record.offset not in ACTS:
        for stream in STREAMS:
            emitted[stream] += 1
            yield Emit({"plain": record.offset}, stream, key=f"plain {record.offset}")  # no other row has this field
        return
    _read_token(record)
    for item in ACTS[record.offset].source():
        if type(item) is Emit and type(item.stream) is str and item.anchors is None:
            emitted[item.stream] += 1
        yield item


def _read_token(record: Record) -> None:
    with suppress(RuntimeError):
        TOKENS[record.offset] = record.token


def wants(record: Record) -> Any:
    """Returns what is set for the record, or True."""
    return ACTS[record.offset].wants() if record.offset in ACTS else True


def is_plain(record: Record) -> bool:
    """Returns whether nothing is set for the record."""
    return record.offset not in ACTS


@arrow_handler
def batch_of(batch: pa.RecordBatch) -> Any:
    """Returns what is set for the first record, or acks all."""
    offset = batch.column("offset")[0].as_py()
    return ACTS[offset].batch(batch.num_rows) if offset in ACTS else ["acked"] * batch.num_rows


@column_handler
def column(records: Any) -> Any:
    """Is not called: the tasks of a test take the words of `ACTS` in place of a column."""
    raise AssertionError


def step(given: Tuple) -> Iterator[Any]:
    """Emits what it gets, or what is set for a record of the tuple."""
    act = _act_of((given,))
    yield from (Emit(given.value, key=given.key),) if act is None else act.step((given,))


def join(given: Sequence[Tuple]) -> Iterator[Any]:
    """Emits one row for all that it gets, or what is set for a record of a tuple."""
    act = _act_of(given)
    yield from (Emit(given[0].value, key=given[0].key),) if act is None else act.join(given)


@arrow_handler
def pass_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Emits what it gets: with steps, a batch of tuples."""
    return batch


@arrow_handler
def join_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Emits for each key the first of its tuples, anchored to all of them."""
    of_keys: list[list[int]] = []
    keys = batch.column("key").to_pylist()
    for number, key in enumerate(keys):
        if number and key == keys[number - 1]:
            of_keys[-1].append(number)
        else:
            of_keys.append([number])
    firsts = batch.take(pa.array([numbers[0] for numbers in of_keys]))
    return firsts.append_column("_input", pa.array(of_keys))


def _act_of(given: Sequence[Tuple]) -> Act | None:
    offsets = [origin.offset for each in given for origin in each.origins]
    return next((ACTS[offset] for offset in offsets if offset in ACTS), None)
