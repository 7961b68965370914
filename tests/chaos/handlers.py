"""Handlers for faults: two that take their time, some that answer rubbish, and one that kills or hangs its process."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from ackline.handler import Record, arrow_handler
from ackline.testing import journal


def slow(record: Record) -> None:
    """The journal handler, at most five records a second."""
    journal.handle(record)
    time.sleep(0.2)


def gated(record: Record) -> None:
    """The journal handler, which waits in its first call until the gate of its topic is open."""
    journal.handle(record)
    while not gate(record.topic).exists():
        time.sleep(0.02)


def gate(topic: str) -> Path:
    """The file that opens it."""
    return Path(f"{os.environ[journal.JOURNAL]}.{topic}")


@arrow_handler
def one_too_few(batch: pa.RecordBatch) -> list[str]:
    """An outcome for all rows but one."""
    return ["acked"] * (batch.num_rows - 1)


@arrow_handler
def one_too_many(batch: pa.RecordBatch) -> list[str]:
    """An outcome for a row that is not there."""
    return ["acked"] * (batch.num_rows + 1)


@arrow_handler
def nulls(batch: pa.RecordBatch) -> list[str | None]:
    """No outcome for the first row."""
    return [None, *["acked"] * (batch.num_rows - 1)]


@arrow_handler
def foreign_offsets(batch: pa.RecordBatch) -> Any:
    """Outcomes for offsets that it was not given."""
    offsets = [offset + 1_000 for offset in batch.column("offset").to_pylist()]
    return pa.table({"offset": offsets, "outcome": ["acked"] * batch.num_rows})


def deadly(record: Record) -> None:
    """The journal handler; `{"kill": n}` and `{"hang": n}` kill or hang its process up to attempt n (−1: always)."""
    journal.handle(record)
    orders = json.loads(record.value) if record.value else {}
    for order, deed in (("kill", _kill), ("hang", _hang)):
        times = orders.get(order, 0)
        if times < 0 or record.attempt <= times:
            deed()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(60)
