"""How far a task is: the records, or the tuples of a step, that it has handled, in the name of an empty file.

Spark shows a driver which tasks have ended. A task of 250,000 records is one task for an hour, its accumulators arrive
when it ends, and the metrics of the source count what the JVM has read: a whole Arrow batch before the first call. So a
thread of the task writes the count, and the driver reads the names (`ackline.spark.progress`). Only the count of a
whole batch, or of a group of calls within it, is added by the task itself.

The files prove nothing, and no error of theirs reaches the task. They are in the folder of the turn's tasks, or on one
machine in a temporary folder.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from ackline.delta.folder import Folder
from ackline.delta.object_store import is_remote

COUNT = "done-"
"""How the name of a file with a count begins; then come the stage (0 reads records), the task, and the count."""
DISK_SECONDS, STORE_SECONDS = 1.0, 10.0
"""How often a task writes its count to a disk, and to an object store, where each request costs money."""

_under_way = 0
# Global, as the settings of handlers in flight are, because a process works on one task at a time.


def note_calls(number: int) -> None:
    """Notes that so many more calls of the batch under way have ended."""
    global _under_way
    _under_way += number


def calls_under_way() -> int:
    """Returns how many calls of the batch under way have ended."""
    return _under_way


def seconds_between(uri: str) -> float:
    """Returns how many seconds lie between two counts of a task in a folder."""
    return STORE_SECONDS if is_remote(uri) else DISK_SECONDS


class TaskProgress:
    """The count of one task. `task` names it among those of `step`, which is SOURCE_STEP for one that reads records.
    `uri` is the folder; with None nothing is written. `under_way` returns how many calls of the batch under way have
    ended."""

    def __init__(self, uri: str | None, step: int, task: str, under_way: Callable[[], int] = calls_under_way) -> None:
        self._uri, self._name, self._under_way = uri, f"{COUNT}{step + 1}-{task}-", under_way
        self._done = 0
        self._written: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, number: int) -> None:
        """Adds a batch, whose calls are no longer under way."""
        global _under_way
        _under_way = 0  # first: the thread may read in between, and no count may be too high
        self._done += number

    def start(self) -> None:
        """Begins to write the count."""
        if self._uri is not None:
            self._thread = threading.Thread(target=self._run, args=(self._uri,), name="ackline-progress", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Writes the count for the last time. Waits a few seconds at most for a storage that does not answer."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(DISK_SECONDS)
            self._thread = None

    def _run(self, uri: str) -> None:
        # An error here costs a picture alone: the task does not see it, and the next count is written again.
        with suppress(Exception):
            folder, seconds = Folder(uri), seconds_between(uri)
            while not self._ended.wait(seconds):
                with suppress(Exception):
                    self._write(folder, self._done + self._under_way())
            self._write(folder, self._done)

    def _write(self, folder: Folder, count: int) -> None:
        name = f"{self._name}{count}"
        if not count or name == self._written:
            return
        folder.create_exclusively(name)  # before the old name goes: the driver takes the highest count of a task
        if self._written is not None:
            folder.remove(self._written)
        self._written = name
