"""A lane on real Delta tables: it plans, replays, stages, settles, publishes and commits as in production.

Kafka is in memory, and the functions of Spark's tasks run in this process.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from ackline.tables.store import LedgerStore
from ackline.worker import tasks
from ackline.worker.records import TIMESTAMP
from ackline.worker.settings import ReplayJob
from tests.support.memory import LogRecord
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_kafka import MemoryReader
from tests.support.memory_lane import AnsweredLane, MemoryLane
from tests.worker import disk_handlers
from tests.worker.task_lab import TaskLab


class WorldTasks(TaskLab):
    """The tasks of jobs over the logs of a world."""

    def __init__(self, lane: MemoryLane) -> None:
        self._lane = lane

    def _fresh(self, job: ReplayJob) -> Iterator[pa.RecordBatch]:
        for tp, offsets in sorted(job.fresh.items()):
            records = [self._lane.log(tp).written[offset] for offset in range(offsets.start, offsets.end)]
            yield as_spark_reads(tp, records)


def as_spark_reads(tp: TopicPartition, records: Sequence[LogRecord]) -> pa.RecordBatch:
    """Records of a log in the columns of Spark's Kafka source."""
    return pa.RecordBatch.from_pydict({
        "topic": pa.array([tp.topic] * len(records)),
        "partition": pa.array([tp.partition] * len(records), pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": pa.array([record.timestamp * 1000 for record in records], TIMESTAMP),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array([_as_json(record.headers) for record in records], pa.string()),
    })  # fmt: skip


def _as_json(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """The headers as Spark's `to_json` writes them, which leaves out what is null."""
    pairs = [{"key": key} | ({} if value is None else {"value": b64encode(value).decode()}) for key, value in headers]
    return json.dumps(pairs) if pairs else None


class DiskLane(AnsweredLane):
    """A lane whose tables are on disk and whose handlers are called by the tasks of jobs."""

    def __init__(self, root: Path, **of_file: Any) -> None:
        self.root = root
        super().__init__(**of_file)

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        return super().adapters(*arguments, **(self._on_disk(LIVE) | changes))

    def adapters_of(self, pipeline: Pipeline, lane: str) -> MemoryAdapters:
        return replace(super().adapters_of(pipeline, lane), **self._on_disk(lane))

    def _on_disk(self, lane: str) -> dict[str, Any]:
        tasks_of_lane = WorldTasks(self)
        return {
            "store": LedgerStore(str(self.root), "lane", lane),
            "run_job": lambda _, job, __: tasks_of_lane.replayed(job),
            "fixed_now": self.world.now,
        }


@contextmanager
def lane_of(file: dict[str, Any]) -> Iterator[DiskLane]:
    """A lane on tables of its own, with the handlers of `disk_handlers`."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_handlers, "ANSWERS", {})
        lane = DiskLane(Path(folder), **file)
        isolation = lane.adapters().pipeline.kafka.isolation
        patch.setattr(tasks, "ExactReader", lambda *_: MemoryReader(lane.world, isolation))
        yield lane
