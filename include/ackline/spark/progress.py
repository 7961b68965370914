"""How far a Spark job is, for whoever waits for it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext

Progress = Callable[[int, int], None]
_EVERY = 0.5


@contextmanager
def watched(context: SparkContext, group: str, on_progress: Progress | None) -> Iterator[None]:
    """Run the block's Spark jobs as `group`, and tell `on_progress` the tasks (done, all) twice a second.

    It is called from another thread. When the block is left by an exception, its jobs are cancelled.
    """
    context.setJobGroup(group, "ackline replay", interruptOnCancel=True)
    ended = threading.Event()
    watcher = None
    if on_progress is not None:
        watcher = threading.Thread(target=_watch, args=(context, group, on_progress, ended), daemon=True)
        watcher.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        ended.set()
        if watcher is not None:
            watcher.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _watch(context: SparkContext, group: str, on_progress: Progress, ended: threading.Event) -> None:
    tracker = context.statusTracker()
    while not ended.wait(_EVERY):
        done = total = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                state = tracker.getStageInfo(stage)
                if state is not None:
                    done, total = done + state.numCompletedTasks, total + state.numTasks
        if total:
            on_progress(done, total)
