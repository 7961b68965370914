"""Handlers of which three calls are under way when one of them kills their process, the first time and each time."""

import asyncio
import os
import signal
import threading
from pathlib import Path

from ackline import Record
from tests.worker.isolation.killers import FOLDER, note

TOGETHER = 3
_SECONDS = 20
_threads = threading.Barrier(TOGETHER)


def _goes_on(record: Record) -> bool:
    """Notes the call. Returns whether it waits for others, as it does in the first process."""
    note("calls", f"{record.offset} {os.getpid()}")
    if record.value == b"fail":
        raise ValueError("can't digest it")
    return record.value in (b"meet", b"kill") and not Path(os.environ[FOLDER], "met").exists()


def _end(record: Record) -> None:
    if record.value == b"kill":
        note("met", record.offset)
        os.kill(os.getpid(), signal.SIGKILL)


def meet(record: Record) -> None:
    """Waits in a thread until three calls are under way."""
    waits = _goes_on(record)
    if waits:
        _threads.wait(_SECONDS)
    _end(record)
    if waits:
        threading.Event().wait(_SECONDS)


class Meet:
    """The same on an event loop."""

    async def open(self) -> None:
        """Makes what belongs to the loop."""
        self.barrier = asyncio.Barrier(TOGETHER)

    async def __call__(self, record: Record) -> None:
        """Waits until three calls are under way."""
        waits = _goes_on(record)
        if waits:
            await asyncio.wait_for(self.barrier.wait(), _SECONDS)
        _end(record)
        if waits:
            await asyncio.Event().wait()


def hang(record: Record) -> None:
    """Hangs where the value says so."""
    if record.value == b"hang":
        threading.Event().wait()


class Buffers:
    """Writes what it has got when it is closed."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, record: Record) -> None:
        """Keeps the record, or kills the process."""
        if record.value == b"kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if record.value == b"fail":
            raise ValueError("can't digest it")
        self.rows.append(record.offset)

    def close(self) -> None:
        """Writes."""
        for offset in self.rows:
            note("written", offset)
        self.rows.clear()


def choose(record: Record) -> bool:
    """A filter that does what the value says."""
    if record.value == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if record.value == b"hang":
        threading.Event().wait()
    return bool(record.value != b"other")


async def block(record: Record) -> None:
    """Blocks the event loop where the value says so, once the first call waits there."""
    if record.value == b"block":
        threading.Event().wait()
    if record.value == b"first":
        await asyncio.sleep(0.05)


class OnceKept(Buffers):
    """As `Buffers`. Fails for the first record when it gets it again."""

    def __call__(self, record: Record) -> None:
        """Notes the call."""
        note("calls", record.offset)
        super().__call__(record)


def leave(record: Record) -> None:
    """Has the process end soon after its last call."""
    note("process", os.getpid())
    threading.Timer(0.05, os._exit, (1,)).start()
