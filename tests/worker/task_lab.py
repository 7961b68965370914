"""Runs the tasks of a replay job in this process, over logs in memory, and commits their files to a real Delta table.

A `TaskLab` takes the jobs of `tests.spark.lab.Lab`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from ackline.ledger.offsets import TopicPartition
from ackline.spark.job import ReplayResult
from ackline.spark.progress import Progress
from ackline.tables.audit_table import AuditTable
from ackline.worker.settings import ReplayJob
from tests.spark.lab import Lab
from tests.support.memory import World
from tests.worker.disk_lane import run_over

KeyValue = tuple[bytes | None, bytes | None]
STAMP = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
"""The timestamp of each record."""


class TaskLab(Lab):
    """One outcomes table; each job is a turn of its own."""

    def __init__(self, root: Path, journal_file: Path) -> None:
        self.broker = SimpleNamespace(bootstrap="in memory")  # type: ignore[assignment]
        self.world = World(STAMP)
        self.table = AuditTable(str(root), "outcomes")
        self.table.create()
        self._journal = journal_file
        self._turn = 0

    def new_topic(self, partitions: int = 1) -> str:
        name = f"topic-{len(self.world.topics) + 1}"
        self.world.create_topic(name, partitions)
        return name

    def put_records(self, tp: TopicPartition, records: Iterable[KeyValue]) -> None:
        log = self.world.log(tp)
        assert log is not None
        for key, value in records:
            log.append(value, STAMP, key=key)

    def put(self, *values: bytes | None, key: bytes | None = None) -> TopicPartition:
        """Partition 0 of a new topic that holds these values."""
        tp = TopicPartition(self.new_topic(), 0)
        self.put_records(tp, [(key, value) for value in values])
        return tp

    def replayed(self, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
        return run_over(self.world, job)
