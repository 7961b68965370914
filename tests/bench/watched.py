"""settle in a process of its own, watched from outside: the files that it opens, and the memory that it takes."""

import ctypes
import multiprocessing
import os
import re
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ackline.audit.store import LedgerStore
from ackline.audit.turn_outcomes import TurnOutcomes
from ackline.steps.settle import settle
from ackline.turns import LIVE, TurnId
from tests.bench.injected import NAME, InjectedLane

_IN_OPEN = 0x20


@dataclass(frozen=True, slots=True)
class Seen:
    """What settle did: bytes at its peak are those beyond what the process had before."""

    records: int
    files: int
    opened: int
    rows: int
    seconds: float
    peak: int


class _Counting(LedgerStore):
    """Counts the rows that become values."""

    rows = 0

    def outcomes_of(self, turn: TurnId) -> TurnOutcomes:
        """Outcomes and decisions of a turn."""
        found = super().outcomes_of(turn)
        self.rows = max(self.rows, sum(map(len, found.rows.values())))
        return found


def settle_watched(lane: InjectedLane) -> Seen:
    """Settle the lane's open turn. Linux only: inotify, /proc."""
    folders = [path for path in Path(lane.root, "outcomes").glob("pipeline=*/plan_date=*") if path.is_dir()]
    files = [file for folder in folders for file in folder.iterdir()]
    watch = _Watch(folders)
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_settle, args=(lane, answers))
    child.start()
    child.join()
    opened = watch.close()
    if child.exitcode != 0:
        raise SystemExit("settle failed")
    records, rows, seconds, peak = answers.get()
    return Seen(records, len(files), len(opened & {file.name for file in files}), rows, seconds, peak)


def _settle(lane: InjectedLane, answers: "multiprocessing.SimpleQueue[tuple[int, int, float, int]]") -> None:
    parts = lane.parts()
    store = _Counting(lane.root, NAME, LIVE)
    object.__setattr__(parts, "store", store)
    assert store.newest() is not None  # what a first look loads is not settle's
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, begun = _memory("VmRSS"), time.perf_counter()
    settle(parts)
    seconds = time.perf_counter() - begun
    settled = store.newest()
    assert settled is not None
    records = sum(one.counts["acked"] + one.counts["failed"] for one in settled.partitions.values())
    answers.put((records, store.rows, seconds, _memory("VmHWM") - before))


def _memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


class _Watch:
    """Names of files opened in some folders, by whichever process, from now until it is closed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            if libc.inotify_add_watch(self._queue, os.fsencode(folder), _IN_OPEN) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))

    def close(self) -> set[str]:
        """What was opened."""
        found = set()
        try:
            while events := os.read(self._queue, 1 << 16):
                at = 0
                while at < len(events):
                    (length,) = struct.unpack_from("I", events, at + 12)
                    found.add(events[at + 16 : at + 16 + length].rstrip(b"\0").decode())
                    at += 16 + length
        except BlockingIOError:
            return found
        finally:
            os.close(self._queue)
        return found
