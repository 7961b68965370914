"""Handlers that answer as the value of a record says, and note when each of their calls begins and ends."""

import asyncio
import random
import time
from itertools import count
from typing import Any

import pyarrow as pa

from ackline import Dead, InFlight, Record, Skip, arrow_handler

CALLS: list[tuple[int, int, int]] = []
"""The offset of each call that has ended, and the ticks of its begin and end."""
_tick = count()


def _answer(value: bytes | None) -> Any:
    if value == b"fail":
        raise ValueError("can't digest it")
    if value == b"dead":
        raise Dead("it never will")
    if value == b"skip":
        raise Skip("not for us")
    return InFlight("5s") if value == b"flight" else None


def handle(record: Record) -> Any:
    """Answers, after other threads had a turn."""
    begin = next(_tick)
    for _ in range(random.randrange(3)):
        time.sleep(0)
    CALLS.append((record.offset, begin, next(_tick)))
    return _answer(record.value)


async def handle_later(record: Record) -> Any:
    """Answers, after other calls had a turn."""
    begin = next(_tick)
    for _ in range(random.randrange(4)):
        await asyncio.sleep(0)
    CALLS.append((record.offset, begin, next(_tick)))
    return _answer(record.value)


@arrow_handler
def handle_batch(batch: pa.RecordBatch) -> list[str]:
    """Answers for each row; nothing can be in flight here."""
    begin, end = next(_tick), next(_tick)
    CALLS.extend((offset, begin, end) for offset in batch.column("offset").to_pylist())
    words = {b"fail": "failed", b"dead": "dead", b"skip": "skipped", b"flight": "failed"}
    return [words.get(value, "acked") for value in batch.column("value").to_pylist()]


def wants_batch(record: Record) -> bool:
    """Takes half of the records. A broken one fails here."""
    if record.value == b"broken":
        raise ValueError("a broken record")
    return bool(record.offset % 2 == 0 and record.value != b"other")


def wants_one(record: Record) -> bool:
    """Takes what is not of other streams."""
    return bool(record.value != b"other")
