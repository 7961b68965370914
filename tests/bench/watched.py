"""Measures settle in a process of its own: its time, the files that it opens, and its memory."""

import ctypes
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ackline.ledger.turns import LIVE, TurnId
from ackline.steps.settle import settle
from ackline.tables.store import LedgerStore
from ackline.tables.turn_outcomes import Singles, TurnOutcomes
from tests.bench.figures import in_a_process, memory, reset_peak
from tests.bench.injected import NAME, InjectedLane

_IN_OPEN = 0x20


@dataclass(frozen=True, slots=True)
class SettleCost:
    """The cost of settle. `peak` is its highest memory in bytes, beyond the memory of the process before it."""

    records: int
    failed: int
    files: int
    opened: int
    rows: int
    seconds: float
    peak: int


class _Counting(LedgerStore):
    """Counts the rows that the store reads from outcome files."""

    rows = 0

    def outcomes_of(self, turn: TurnId, singles: Singles = MappingProxyType({}), keys: bool = False) -> TurnOutcomes:
        outcomes = super().outcomes_of(turn, singles, keys)
        self.rows = max(self.rows, sum(map(len, outcomes.rows.values())))
        return outcomes


def measure_settle(lane: InjectedLane) -> SettleCost:
    """Settles the open turn of a lane. Works on Linux only, because it needs inotify and /proc."""
    folders = [path for path in Path(lane.root, NAME, "outcomes").glob("plan_date=*") if path.is_dir()]
    files = [file for folder in folders for file in folder.iterdir()]
    watch = _Watch(folders)
    try:
        records, failed, rows, seconds, peak = in_a_process(_settle, lane)
    finally:
        opened = watch.close()
    return SettleCost(records, failed, len(files), len(opened & {file.name for file in files}), rows, seconds, peak)


def _settle(lane: InjectedLane) -> tuple[int, int, int, float, int]:
    adapters = lane.adapters()
    store = _Counting(lane.root, NAME, LIVE)
    object.__setattr__(adapters, "store", store)
    assert store.newest() is not None  # the first read loads modules, which is no cost of settle
    reset_peak()
    before, begun = memory("VmRSS"), time.perf_counter()
    settle(adapters)
    seconds = time.perf_counter() - begun
    settled = store.newest()
    assert settled is not None
    records = sum(row.counts.get("acked", 0) + row.counts.get("failed", 0) for row in settled.partitions.values())
    failed = sum(row.counts.get("failed", 0) for row in settled.partitions.values())
    return records, failed, store.rows, seconds, memory("VmHWM") - before


class _Watch:
    """Collects the names of the files that any process opens in some folders, until it is closed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            if libc.inotify_add_watch(self._queue, os.fsencode(folder), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))

    def close(self) -> set[str]:
        """Stops collecting, and returns the names."""
        names = set()
        try:
            while events := os.read(self._queue, 1 << 16):
                position = 0
                while position < len(events):
                    (length,) = struct.unpack_from("I", events, position + 12)
                    names.add(events[position + 16 : position + 16 + length].rstrip(b"\0").decode())
                    position += 16 + length
        except BlockingIOError:
            return names
        finally:
            os.close(self._queue)
        return names
