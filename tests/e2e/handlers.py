"""Handlers of the end-to-end tests that do what the journal handler cannot."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from ackline import Emit, InFlight, arrow_handler
from ackline.handler import Record
from ackline.local.processes import wait_until
from tests.spark.output_handlers import hand_on
from tests.support import journal


def quotes_the_record(record: Record) -> None:
    """Quotes the record in its exception, as careless code does."""
    with suppress(ValueError):
        journal.handle(record)
    key, headers = (record.key or b"").decode(), dict(record.headers)
    raise RuntimeError(f"can't handle {record.value!r} with key {key} and {headers}: password={key}")


PRICED: dict[tuple[str, int], str] = {}
"""What `prices` has made of each record, by topic and offset."""


def prices(record: Record) -> None:
    """Prices a record by the code that ACKLINE_CODE names. The code `v1` is a bad deploy: it fails on 5 % of the
    records, and acks 1 % with a wrong price."""
    journal.handle(record)
    is_bad, n = os.environ.get("ACKLINE_CODE") == "v1", json.loads(record.value or b"{}")["n"]
    if is_bad and n % 20 == 0:
        raise KeyError("price")
    PRICED[record.topic, record.offset] = "wrong" if is_bad and n % 100 == 7 else "right"


def kills_the_driver(record: Record) -> None:
    """Kills the process that runs `ackline run` if the record orders `{"kill": true}`, as native code that exhausts
    the machine does."""
    journal.handle(record)
    if not json.loads(record.value or b"{}").get("kill"):
        return
    pid = os.getpid()
    while pid > 1:
        if b"/ackline\0run" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def waits_for_three_workers(record: Record) -> None:
    """Acks a record once three processes have called this function; fails if they do not come."""
    journal.handle(record)
    file = os.environ[journal.JOURNAL]

    def three() -> bool:
        return len({call.pid for call in journal.read(file) if call.topic == record.topic}) >= 3

    assert wait_until(three, 240), "three processes were to share the partitions"


def even(record: Record) -> bool:
    return bool(record.value["n"] % 2 == 0)


def hands_on(record: Record) -> InFlight | None:
    """Returns InFlight if the record orders `{"wait": FILE}`, and appends offset, attempt and token to the file.

    With `{"early": [BROKER, TOPIC]}` it sends an ack to the topic before it returns.
    """
    journal.handle(record)
    orders = record.value if isinstance(record.value, dict) else json.loads(record.value or b"{}")
    if not hand_on(record, orders):
        return None
    return InFlight(timedelta(seconds=orders["timeout"])) if "timeout" in orders else InFlight()


def hands_on_as_generator(record: Record) -> Iterator[InFlight]:
    in_flight = hands_on(record)
    if in_flight is not None:
        yield in_flight


def emit(record: Record) -> Iterator[Emit]:
    """Emits what the value holds."""
    journal.handle(record)
    yield Emit(json.loads(record.value or b"{}"))


def emit_mended(record: Record) -> Iterator[Emit]:
    """Emits what the value holds, with an amount that is one less."""
    row = json.loads(record.value or b"{}")
    yield Emit(row | {"amount": row["amount"] - 1})


@arrow_handler
def emit_rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Emits what each value holds."""
    yield pa.RecordBatch.from_pylist([json.loads(value) for value in batch.column("value").to_pylist()])
