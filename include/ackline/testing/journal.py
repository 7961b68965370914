"""A handler for tests: it writes down each call, then does what the record's value tells it to.

Named in a pipeline file as `ackline.testing.journal:handle`. The journal is the file named by the
environment variable ACKLINE_JOURNAL; a line is one call, appended in one write, so that calls of many
processes, some of which are killed, never mix. The value is JSON, or what was decoded from it:
`{"fail": n}` raises on attempts up to n (−1: on all), `{"skip": true}` and `{"dead": true}` raise Skip
and Dead, `{"exit": true}` leaves the interpreter; anything else is acked, and what is not JSON raises, as
it would in a real handler.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ackline.handler import Dead, Record, Skip

JOURNAL = "ACKLINE_JOURNAL"
"""The environment variable that names the journal."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler."""

    topic: str
    partition: int
    offset: int
    attempt: int
    pid: int


def handle(record: Record) -> None:
    """Write the call down, then obey the record. Raises KeyError where no journal is named."""
    note = f"{record.topic}\t{record.partition}\t{record.offset}\t{record.attempt}\t{os.getpid()}\n"
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, note.encode())
    finally:
        os.close(descriptor)
    if record.value is not None:
        decoded = not isinstance(record.value, str | bytes)
        _obey(record.value if decoded else json.loads(record.value), record.attempt)


def _obey(orders: object, attempt: int) -> None:
    if not isinstance(orders, dict):
        return
    if orders.get("exit"):
        sys.exit("the record asked for it")
    if orders.get("skip"):
        raise Skip("the record asked for it")
    if orders.get("dead"):
        raise Dead("the record asked for it")
    failures = orders.get("fail", 0)
    if failures < 0 or attempt <= failures:
        raise ValueError(f"attempt {attempt} fails, as the record asked")


def read(path: str | Path) -> list[Call]:
    """The calls so far, in the order in which they were made; none where there is no file yet."""
    if not Path(path).exists():
        return []
    calls = []
    for line in Path(path).read_text().splitlines():
        topic, *numbers = line.split("\t")
        partition, offset, attempt, pid = (int(number) for number in numbers)
        calls.append(Call(topic, partition, offset, attempt, pid))
    return calls
