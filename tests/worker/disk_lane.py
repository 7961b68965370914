"""A lane on real Delta tables: it plans, replays, stages, settles, publishes and commits as in production.

Kafka is in memory, and the functions of Spark's tasks run in this process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from ackline.spark.job import ReplayResult
from ackline.tables.store import LedgerStore
from ackline.worker import tasks
from ackline.worker.settings import ReplayJob
from tests.support.in_process import run_in_process
from tests.support.memory import World
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_kafka import MemoryReader
from tests.support.memory_lane import AnsweredLane, MemoryBackfill
from tests.worker import disk_handlers


def run_over(world: World, job: ReplayJob) -> ReplayResult:
    """Runs a job in this process, over the logs of a world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "ExactReader", lambda *_: MemoryReader(world, job.kafka.isolation_level))
        return run_in_process(job)


def translated(adapters: MemoryAdapters) -> MemoryAdapters:
    """Lets the tasks decode, filter and choose records by `--where`, as the pipeline file says."""
    return replace(adapters, translation=adapters.pipeline.translation)


class DiskLane(AnsweredLane):
    """A lane whose tables are on disk and whose handlers are called by the tasks of jobs."""

    def __init__(self, root: Path, **of_file: Any) -> None:
        self.root = root
        super().__init__(**of_file)

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        return translated(super().adapters(*arguments, **(self.on_disk(LIVE) | changes)))

    def adapters_of(self, pipeline: Pipeline, lane: str) -> MemoryAdapters:
        return translated(replace(super().adapters_of(pipeline, lane), **self.on_disk(lane)))

    def on_disk(self, lane: str) -> dict[str, Any]:
        return {
            "store": LedgerStore(str(self.root), "lane", lane),
            "run_job": lambda _, job, __: run_over(self.world, job),
            "fixed_now": self.world.now,
        }


class DiskBackfill(MemoryBackfill):
    """A backfill of a lane on disk."""

    live: DiskLane

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        return translated(replace(super().adapters(*arguments), **(self.live.on_disk(self.lane) | changes)))


@contextmanager
def lane_of(file: dict[str, Any]) -> Iterator[DiskLane]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_handlers, "ANSWERS", {})
        lane = DiskLane(Path(folder), **file)
        yield lane
