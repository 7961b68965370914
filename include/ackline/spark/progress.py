"""What a run shows while its Spark job works: how many records are handled, how many a second, and how long it takes.

The counts are those that the tasks write (`ackline.worker.progress`), so they are right for each kind of handler, for
retries, and with a Spark Connect server, which shows a client nothing of its tasks' records. The time left is that of
the offsets that are left, at the rate of the last half minute. Gaps of the log count among the offsets.
"""

import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from tempfile import mkdtemp

from ackline.delta.errors import IgnoredStorageErrors
from ackline.delta.folder import Folder
from ackline.errors import counted
from ackline.handler import SOURCE
from ackline.ledger.offsets import count
from ackline.pipeline.topology import SOURCE_STEP
from ackline.worker.progress import COUNT, seconds_between
from ackline.worker.settings import ReplayJob, TaskFolder

_WINDOW_SECONDS = 30.0
_POLLS = 2
"""How often the driver looks in the time between two counts of a task."""


@dataclass(frozen=True, slots=True)
class Handled:
    """How far a turn is: `done` of `total` offsets, or the tuples that a step has `done`, of an unknown number."""

    done: int
    total: int | None
    rate: float | None = None
    """Records or tuples a second; None before there are two counts."""
    step: str | None = None
    """The step that works now; None in a pipeline without steps that have stages of their own."""

    @property
    def left(self) -> float | None:
        """Seconds until all is done at this rate; None if the rate or the total is not known, or nothing moves."""
        return None if self.total is None or not self.rate else max(0, self.total - self.done) / self.rate

    def text(self) -> str:
        """Returns the figures in one line, such as "1,200 of 4,000 records · 400/s · 7 s left"."""
        what = counted(self.done, "tuple")
        if self.total is not None:
            what = f"{self.done:,} of {counted(self.total, 'record')}"
        parts = [what if self.step is None else f"step {self.step}: {what}"]
        if self.rate is not None:
            parts.append(f"{self.rate:,.0f}/s" if self.rate >= 10 or not self.rate else f"{self.rate:.2g}/s")
        if (left := self.left) is not None:
            parts.append(f"{_duration(left)} left" + " in this step" * (self.step is not None))
        return " · ".join(parts)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


Progress = Callable[[Handled], None]
"""Called from another thread while a job works."""


class Pace:
    """The rate of a count that grows, over the last half minute, or over its last step if that took longer."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def rate(self, now: float, done: int) -> float | None:
        """Takes the count at a time in seconds, and returns how much it grows a second; None before it has grown. The
        time without any is not part of the rate: Spark starts its workers then."""
        counts = self._counts
        if done and (not counts or done > counts[-1][1]):
            counts.append((now, done))
        while len(counts) > 2 and counts[1][0] <= now - _WINDOW_SECONDS:
            counts.popleft()
        if len(counts) < 2 or now <= counts[0][0]:
            return None
        return (counts[-1][1] - counts[0][1]) / (now - counts[0][0])


_NAME = re.compile(rf"{COUNT}(?P<stage>\d+)-(?P<task>.+)-(?P<done>\d+)")


def read_counts(names: Iterable[str]) -> dict[int, int]:
    """Returns how much the tasks of each step have handled, by the number of the step, given the names in their folder.
    A task may have several names for a moment, or after a second attempt: the highest count is its own."""
    of_tasks: dict[tuple[int, str], int] = {}
    for name in names:
        if (match := _NAME.fullmatch(name)) is not None:
            task = int(match["stage"]) - 1, match["task"]
            of_tasks[task] = max(of_tasks.get(task, 0), int(match["done"]))
    counts: dict[int, int] = {}
    for (step, _), done in of_tasks.items():
        counts[step] = counts.get(step, 0) + done
    return counts


class _Reporter:
    """Reads the counts of one job, and reports them."""

    def __init__(self, job: ReplayJob, on_progress: Progress) -> None:
        self._total = sum(map(len, job.fresh.values())) + sum(map(count, job.retries.values()))
        topology = job.settings.topology
        self._steps = tuple(step for step in topology.steps if step.grouped) if topology is not None else ()
        self._on_progress = on_progress
        self._paces: dict[int, Pace] = {}

    def report(self, counts: Mapping[int, int], now: float) -> None:
        """Reports the counts of the last step that has any. Steps work one after the other."""
        step = next((step for step in reversed(self._steps) if counts.get(step.number)), None)
        number = SOURCE_STEP if step is None else step.number
        done, pace = counts.get(number, 0), self._paces.setdefault(number, Pace())
        name = None if not self._steps else SOURCE if step is None else step.name
        self._on_progress(Handled(done, self._total if step is None else None, pace.rate(now, done), name))

    def run(self, uri: str, ended: threading.Event) -> None:
        """Reports until the job has ended. A folder that can't be read for a while leaves what is shown as it was."""
        folder, seconds = Folder(uri), seconds_between(uri) / _POLLS
        while not ended.wait(seconds):
            with suppress(OSError):
                self.report(read_counts(folder.names()), time.monotonic())


@contextmanager
def reporting(job: ReplayJob, folder: TaskFolder | None, on_progress: Progress | None) -> Iterator[ReplayJob]:
    """Yields the job whose tasks write their counts, and calls `on_progress` from another thread while the block runs.
    The counts are in the folder of the tasks or, where that is None, in a folder of this machine. With `on_progress`
    None, or if that folder can't be made, nothing is written. No error of the counts ends the block: the job is worth
    more than its picture."""
    local = None if on_progress is None or folder is not None else _local_folder()
    uri = folder.uri if folder is not None else local
    if on_progress is None or uri is None:
        yield job
        return
    ended = threading.Event()
    reporter = threading.Thread(target=_Reporter(job, on_progress).run, args=(uri, ended), daemon=True)
    reporter.start()
    try:
        yield replace(job, progress=uri)
    finally:
        ended.set()
        reporter.join()
        remove_counts(uri)
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)  # a task that was cancelled may still write into it


def _local_folder() -> str | None:
    try:
        return mkdtemp(prefix="ackline-progress-")
    except OSError:
        return None


def remove_counts(uri: str) -> None:
    """Removes the counts of tasks. What can't be removed goes with the folder, after the settlement."""
    folder = Folder(uri)
    with IgnoredStorageErrors(), suppress(OSError):
        for name in folder.names():
            if name.startswith(COUNT):
                folder.remove(name)
