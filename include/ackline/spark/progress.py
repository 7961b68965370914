"""Reports the progress of a Spark job while it runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyspark import SparkContext

Progress = Callable[[int, int], None]
"""Takes the number of tasks that are done, and of all tasks."""

_INTERVAL = 0.5


@contextmanager
def report_progress(context: SparkContext, group: str, on_progress: Progress | None) -> Iterator[None]:
    """Runs the block's Spark jobs as job group `group`, and calls `on_progress` from another thread twice a second.

    An exception that leaves the block cancels its jobs.
    """
    context.setJobGroup(group, "ackline replay", interruptOnCancel=True)
    ended = threading.Event()
    reporter = None
    if on_progress is not None:
        reporter = threading.Thread(target=_report, args=(context, group, on_progress, ended), daemon=True)
        reporter.start()
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the connection to the JVM may be what Ctrl-C has interrupted
            context.cancelJobGroup(group)
        raise
    finally:
        ended.set()
        if reporter is not None:
            reporter.join()
        with suppress(Exception):
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _report(context: SparkContext, group: str, on_progress: Progress, ended: threading.Event) -> None:
    tracker = context.statusTracker()
    while not ended.wait(_INTERVAL):
        done = total = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                state = tracker.getStageInfo(stage)
                if state is not None:
                    done, total = done + state.numCompletedTasks, total + state.numTasks
        if total:
            on_progress(done, total)
