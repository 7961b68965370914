"""Handlers for fault tests: slow ones, some with invalid answers, and one that kills or hangs its process."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from ackline.handler import Record, arrow_handler
from tests.support import journal


def slow(record: Record) -> None:
    """Journals the call, at most five records a second."""
    journal.handle(record)
    time.sleep(0.2)


def gated(record: Record) -> None:
    """Journals the call, and waits until the gate file of its topic exists."""
    journal.handle(record)
    while not gate(record.topic).exists():
        time.sleep(0.02)


def gate(topic: str) -> Path:
    return Path(f"{os.environ[journal.JOURNAL]}.{topic}")


@arrow_handler
def one_too_few(batch: pa.RecordBatch) -> list[str]:
    return ["acked"] * (batch.num_rows - 1)


@arrow_handler
def one_too_many(batch: pa.RecordBatch) -> list[str]:
    return ["acked"] * (batch.num_rows + 1)


@arrow_handler
def nulls(batch: pa.RecordBatch) -> list[str | None]:
    return [None, *["acked"] * (batch.num_rows - 1)]


@arrow_handler
def foreign_offsets(batch: pa.RecordBatch) -> Any:
    """Returns outcomes for offsets that are not in the batch."""
    offsets = [offset + 1_000 for offset in batch.column("offset").to_pylist()]
    return pa.table({"offset": offsets, "outcome": ["acked"] * batch.num_rows})


def deadly(record: Record) -> None:
    """Journals the call; `{"kill": n}` and `{"hang": n}` kill or hang the process up to attempt n (−1: on all)."""
    journal.handle(record)
    orders = json.loads(record.value) if record.value else {}
    for name, strike in (("kill", _kill), ("hang", _hang)):
        times = orders.get(name, 0)
        if times < 0 or record.attempt <= times:
            strike()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(60)
