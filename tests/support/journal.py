"""A handler for tests. It writes each call to a journal, and then does what the value of the record orders.

A pipeline file names it as `tests.support.journal:handle`. The environment variable ACKLINE_JOURNAL names the journal,
a file with one call a line. Each line is appended in one write, so the calls of many processes never mix, even if some
are killed. The value is JSON, or was decoded from it: `{"fail": n}` raises on attempts up to n (−1: on all), `{"sleep":
s}` takes s seconds, `{"skip": true}` raises Skip, `{"dead": true}` raises Dead, and `{"exit": true}` leaves the
interpreter. Any other JSON is acked; a value that is not JSON raises, as it would in a real handler.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ackline.handler import Dead, Record, Skip

JOURNAL = "ACKLINE_JOURNAL"
"""The environment variable that names the journal."""
REASON = "as the record orders"


@dataclass(frozen=True, slots=True)
class Call:
    topic: str
    partition: int
    offset: int
    attempt: int
    pid: int


def handle(record: Record) -> None:
    """Writes the call to the journal and follows the record's orders. Raises KeyError if no journal is named."""
    write(record.topic, record.partition, record.offset, record.attempt)
    if record.value is not None:
        decoded = not isinstance(record.value, str | bytes)
        follow_orders(record.value if decoded else json.loads(record.value), record.attempt)


def write(topic: str, partition: int, offset: int, attempt: int) -> None:
    """Writes a call to the journal. Raises KeyError if no journal is named."""
    line = f"{topic}\t{partition}\t{offset}\t{attempt}\t{os.getpid()}\n"
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def follow_orders(orders: object, attempt: int) -> None:
    """Does what the decoded value of a record orders on this attempt; returns if it orders nothing."""
    if not isinstance(orders, dict):
        return
    if "sleep" in orders:  # a sleep of 0 s still gives the processor away, and there is one for each record
        time.sleep(orders["sleep"])
    if orders.get("exit"):
        sys.exit(REASON)
    if orders.get("skip"):
        raise Skip(REASON)
    if orders.get("dead"):
        raise Dead(REASON)
    failures = orders.get("fail", 0)
    if failures < 0 or attempt <= failures:
        raise ValueError(f"attempt {attempt} fails, {REASON}")


def read(path: str | Path) -> list[Call]:
    """Returns the calls in a journal, in the order in which they were made; none if the file does not exist yet."""
    if not Path(path).exists():
        return []
    calls = []
    for line in Path(path).read_text().splitlines():
        topic, *numbers = line.split("\t")
        partition, offset, attempt, pid = (int(number) for number in numbers)
        calls.append(Call(topic, partition, offset, attempt, pid))
    return calls
