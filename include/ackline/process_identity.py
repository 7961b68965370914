"""Identifies a process by its number and its start, because the system gives the number to another process later.

The Spark driver uses it to watch its Airflow task, and `ackline.local` to find and end the broker and Airflow.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import psutil

_TICKS = 100
"""Linux counts the start of a process in hundredths of a second since boot."""


def own_children() -> "set[ProcessIdentity]":
    """Returns the processes that this one has started and that still run."""
    identities = (ProcessIdentity.of(child.pid) for child in psutil.Process().children())
    return {identity for identity in identities if identity is not None}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process number, and the start of that process in hundredths of a second since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Returns the identity of the process that has this number now; None if none has, or if it has ended."""
        try:
            process = psutil.Process(pid)
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            return cls(pid, _started(process))
        except (psutil.Error, ValueError, OverflowError):
            return None

    @classmethod
    def decode(cls, text: str) -> "ProcessIdentity":
        """Returns the identity that `str()` wrote as PID:STARTED. Raises ValueError for any other text."""
        pid, started = text.split(":")
        return cls(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    def alive(self) -> bool:
        """Returns whether this process still runs; False if another process has its number now."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Sends the signal to this process; does nothing if it no longer runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _started(process: psutil.Process) -> int:
    """Returns the start of a process, counted from boot, so that setting the system clock does not change it.

    psutil adds the boot time, which changes with the system clock. Two equal readings of it prove which one it added.
    """
    while True:
        boot = psutil.boot_time()
        created = process.create_time()
        if psutil.boot_time() == boot:
            return round((created - boot) * _TICKS)
        process = psutil.Process(process.pid)
