"""The Spark driver's life ends with the task's: it watches the Airflow task's process and its own JVM.

Airflow's `on_kill` ends the JVM, but a task that is killed outright calls nothing, and a Python driver does not end
with its JVM by itself. A replay that nobody waits for would do no harm (turns are fenced), but hold the machine.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process beyond doubt: its number, and when it started, in the kernel's ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Who has this number now; None if nobody has, or only one that has ended already."""
        try:
            # The name, in parentheses, is free text; behind it the state comes first and the start twentieth.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def decode(cls, text: str) -> "ProcessId":
        """From `str()` of one. Raises ValueError."""
        pid, started = text.split(":")
        return cls(int(pid), int(started))

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self


def end_with(task: ProcessId | None, end: Callable[[int], object] = os._exit) -> threading.Thread:
    """Watch, from a thread: once the task's process or this one's parent is gone, end the parent and this process."""
    parent = ProcessId.of(os.getppid())

    def watch() -> None:
        while _lives(task) and _lives(parent):
            time.sleep(POLL_SECONDS)
        if parent is not None:
            _end(parent)
        end(1)

    thread = threading.Thread(target=watch, name="ackline-watch", daemon=True)
    thread.start()
    return thread


def _lives(process: ProcessId | None) -> bool:
    return process is None or process.alive()


def _end(process: ProcessId) -> None:
    """SIGTERM, so that Spark removes its scratch folders; SIGKILL where that takes too long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while process.alive() and time.monotonic() < deadline:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                return
            time.sleep(0.1)
