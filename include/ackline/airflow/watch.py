"""Ends the Spark driver when its Airflow task ends: the driver watches the process of the task and its own JVM.

Airflow's `on_kill` ends the JVM. But a task that is killed with SIGKILL runs no `on_kill`, and a Python driver does not
end with its JVM by itself. Turns are fenced, so a replay without its task would do no harm, but it would use the
machine.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from ackline.process_identity import ProcessIdentity

POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0


def end_with_task(task: ProcessIdentity | None, end: Callable[[int], object] = os._exit) -> threading.Thread:
    """Start a thread that ends the parent and this process once the process of the task or the parent is gone."""
    parent = ProcessIdentity.of(os.getppid())

    def watch() -> None:
        while _runs(task) and _runs(parent):
            time.sleep(POLL_SECONDS)
        if parent is not None:
            _end(parent)
        end(1)

    thread = threading.Thread(target=watch, name="ackline-watch", daemon=True)
    thread.start()
    return thread


def _runs(process: ProcessIdentity | None) -> bool:
    return process is None or process.alive()


def _end(process: ProcessIdentity) -> None:
    """Send SIGTERM, so that Spark removes its scratch folders, and SIGKILL after GRACE_SECONDS."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while process.alive() and time.monotonic() < deadline:
            process.send(number)
            time.sleep(0.1)
