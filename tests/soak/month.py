"""A month of a lane, simulated: what its tables, their logs and its staging folders occupy on the disk.

The tables, the tasks, the outputs and `ackline maintain` are the real ones; Kafka is in memory, and there is no Spark.
Each turn has records that are acked and have a row in an output table, one that fails once, and one in flight that is
acked in the next turn. The clock is passed in. It begins so many days ago that the last turn is now. Maintenance
compares the times of log entries and of removals with the clock of the machine, so both are dated by the lane's clock.
In the end all files have the age that they would have had, so what is left is what is left after a true month.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from ackline.actions.maintain import maintain
from ackline.delta import compaction
from tests.bench.injected import age_entries
from tests.chaos import drill_handlers
from tests.support.memory_lane import FAILS_ONCE
from tests.worker.disk_lane import DiskLane

WAITS = b'{"wait": true}'
OK = b"{}"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What is on the disk: `data` are files of rows, `log` are log entries and checkpoints, `staged` all files below
    the staging folders."""

    data: int
    data_bytes: int
    log: int
    log_bytes: int
    staged: int

    @property
    def files(self) -> int:
        return self.data + self.log

    @property
    def size(self) -> int:
        return self.data_bytes + self.log_bytes


FILES_A_TURN, KEPT_DAYS = 9, 8
"""Small files of a turn, and the days after which the ones that maintenance has merged are removed at the latest."""
LOG_DAYS, LEDGER_LOG_DAYS = 30, 3
"""Days for which an output table and a table of the ledger keep log entries: a checkpoint of one more day is kept."""
KIB = 1024


def most(days: int, turns: int, records: int) -> tuple[int, int]:
    """Returns the most files and bytes that a lane of one partition with one output table occupies after so many days
    of so many turns each, with `records` records a turn and daily maintenance; docs/settings.md states both."""
    kept, logged, ledger = min(days, KEPT_DAYS), min(days, LOG_DAYS), min(days, LEDGER_LOG_DAYS)
    files = 4 * days + FILES_A_TURN * turns * kept + (turns + 3) * (logged + 4 * ledger)
    size = days * 64 * KIB + turns * (kept * 80 + logged * 8) * KIB + 48 * days * turns * records
    return files, size


@contextmanager
def _dated_by(lane: DiskLane) -> Iterator[None]:
    """Dates the removals that maintenance commits by the clock of the lane."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # no power cut is simulated, and it would take a third of the time
        patch.setattr(compaction, "time", SimpleNamespace(time=lambda: lane.world.now.timestamp()))
        yield


def simulate(folder: Path, days: int, turns: int, records: int) -> Footprint:
    """Returns what a lane occupies after so many days of so many turns each, with daily maintenance."""
    lane = DiskLane(
        folder / "audit",
        handler="tests.chaos.drill_handlers:emit",
        outputs=[{"from": "source", "table": "totals"}],
        timeout="1h",
    )
    drill_handlers.TOKENS.clear()
    drill_handlers.CALLS.clear()
    lane.world.now = datetime.now(UTC) - timedelta(days=days)
    with _dated_by(lane):
        for n in range(1, days * turns + 1):
            began = time.time()
            lane.world.now += timedelta(days=1) / turns
            for token in drill_handlers.TOKENS.values():
                lane.answer_with(token, "ack")
            drill_handlers.TOKENS.clear()
            lane.produce(*[OK] * (records - 2), FAILS_ONCE, WAITS)
            lane.run()
            if n % turns == 0:
                maintain(str(lane.root))
            age_entries(lane.root, began, lane.world.now)
    return measure(lane.root)


def measure(root: Path) -> Footprint:
    data = data_bytes = log = log_bytes = staged = 0
    for path in root.rglob("*"):
        if path.is_dir():
            continue
        if ".staging" in path.parts:
            staged += 1
        elif "_delta_log" in path.parts:
            log, log_bytes = log + 1, log_bytes + path.stat().st_size
        elif path.suffix == ".parquet":
            data, data_bytes = data + 1, data_bytes + path.stat().st_size
    return Footprint(data, data_bytes, log, log_bytes, staged)
