"""Runs the tasks of a replay job in this process, over logs in memory, and commits their files to a real Delta table.

A `TaskLab` takes the jobs of `tests.spark.lab.Lab`. In place of Spark it has one task a stage, which gets all rows in
the order of the exchange. So a rule about what tasks do with records needs no Spark; a test on Spark is for what Spark
does between them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Message

from ackline.handler import Tier, tier_of
from ackline.kafka.exact import Found, Gone
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.pipeline.topology import Step
from ackline.spark.application import Progress
from ackline.spark.job import ReplayResult, check_counts, result_of
from ackline.tables.table import AuditTable
from ackline.worker import tasks
from ackline.worker.records import TIMESTAMP
from ackline.worker.settings import ReplayJob, TaskSettings, open_task_folder
from ackline.worker.streams import Streams, load_functions_of_job
from ackline.worker.tasks import handle_fresh, handle_retries
from ackline.worker.trees.acker import store_roots
from ackline.worker.trees.rows import ROWS_SCHEMA
from ackline.worker.trees.stages import handle_step
from tests.spark.lab import Lab

STAMP = 1_700_000_000_123
"""The timestamp of each record, in milliseconds since 1970."""
KeyValue = tuple[bytes | None, bytes | None]


class TaskLab(Lab):
    """One outcomes table; each job is a turn of its own."""

    def __init__(self, root: Path, journal_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker: Any = SimpleNamespace(bootstrap="in memory")
        self.logs: dict[TopicPartition, list[KeyValue]] = {}
        self.starts: dict[TopicPartition, int] = {}
        """Where retention has moved the start of a log to."""
        self.table = AuditTable(str(root), "outcomes")
        self.table.create()
        self._journal = journal_file
        self._turn = self._topics = 0
        monkeypatch.setattr(tasks, "ExactReader", lambda *_: _Reader(self))

    def new_topic(self, partitions: int = 1) -> str:
        """The name of a new topic."""
        self._topics += 1
        return f"topic-{self._topics}"

    def put_records(self, tp: TopicPartition, records: Iterable[KeyValue]) -> None:
        """Appends keys with values to a log."""
        self.logs.setdefault(tp, []).extend(records)

    def put(self, *values: bytes | None, key: bytes | None = None) -> TopicPartition:
        """Partition 0 of a new topic that holds these values."""
        tp = TopicPartition(self.new_topic(), 0)
        self.put_records(tp, [(key, value) for value in values])
        return tp

    def run(self, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
        """Runs the tasks of a job, and commits its files as the replay step does."""
        result = self.replayed(job)
        self.commit(job, result)
        return result

    def replayed(self, job: ReplayJob) -> ReplayResult:
        """Runs the tasks of a job, and commits nothing."""
        once, turn = job.settings.once, job.target.turn
        opens = once and job.folder is None
        with open_task_folder(job.target.root, turn, once) if opens else nullcontext(job.folder) as folder:
            handler = load_functions_of_job(job.settings)
            tps = tuple(sorted({*job.fresh, *job.retries}))
            topics = {tp.topic for tp in tps}
            tier = Tier.RECORD if isinstance(handler, Streams) else tier_of(handler)
            topic = topics.pop() if len(topics) == 1 else None
            rows = self._rows(job, TaskSettings(job.target, job.settings, tier, topic, None, folder, tps))
            result = result_of(rows, job.settings.topology)
        check_counts(result, job)
        return result

    def _rows(self, job: ReplayJob, task: TaskSettings) -> list[SimpleNamespace]:
        """The rows of the manifests of all tasks."""
        rows = [row for batches in self._fresh_of_tasks(job) for row in handle_fresh(task)(batches)]
        if job.retries:
            parts, indexes = SimpleNamespace(value=[job.retries]), pa.RecordBatch.from_pydict({"id": [0]})
            rows += handle_retries(task, job.kafka, parts)(iter([indexes]))
        topology = job.settings.topology
        if topology is not None:
            for step in topology.steps:
                if step.grouped:
                    rows = list(handle_step(task, step)(_exchanged(rows, step)))
            of_acker = pa.Table.from_batches(rows, ROWS_SCHEMA).filter(pc.field("step").is_null())
            rows = list(
                store_roots(task)(iter(of_acker.sort_by([("tp", "ascending"), ("offset", "ascending")]).to_batches()))
            )
        return [SimpleNamespace(**row) for batch in rows for row in batch.to_pylist()]

    def _fresh_of_tasks(self, job: ReplayJob) -> Iterable[Iterator[pa.RecordBatch]]:
        """The fresh records of each task that reads some."""
        return (self._fresh(job),)

    def _fresh(self, job: ReplayJob) -> Iterator[pa.RecordBatch]:
        """The fresh records as `ackline.spark.lineage.for_python` selects them."""
        for tp, offsets in sorted(job.fresh.items()):
            keys, values = zip(*self.logs[tp][offsets.start : offsets.end], strict=True)
            count = len(keys)
            yield pa.RecordBatch.from_pydict({
                "topic": pa.array([tp.topic] * count),
                "partition": pa.array([tp.partition] * count, pa.int32()),
                "offset": pa.array(range(offsets.start, offsets.end), pa.int64()),
                "timestamp": pa.array([STAMP * 1000] * count, TIMESTAMP),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "headers": pa.nulls(count, pa.string()),
            })  # fmt: skip


def _exchanged(rows: Sequence[pa.RecordBatch], step: Step) -> Iterator[pa.RecordBatch]:
    """The rows as the step's task gets them: those of a join sorted, behind all other rows."""
    table = pa.Table.from_batches(rows, ROWS_SCHEMA)
    if step.join:
        is_mine = pc.fill_null(pc.equal(table["step"], step.number), False)
        key = pc.if_else(is_mine, table["key"], b"")  # sorts before each key
        order = [(name, "ascending") for name in ("mine", "tp", "offset", "attempt", "edge")]
        table = table.take(pc.sort_indices(table.append_column("mine", key), order))
    return iter(table.combine_chunks().to_batches())


class _Reader:
    """An exact reader of the logs of a lab."""

    def __init__(self, lab: TaskLab) -> None:
        self._lab = lab
        self.delivered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Iterator[Found | Gone]:
        for tp, offsets in wanted.items():
            for offset in offsets:
                if offset < self._lab.starts.get(tp, 0):
                    yield Gone(tp, offset, Outcome.EXPIRED)
                    continue
                self.delivered += 1
                key, value = self._lab.logs[tp][offset]
                message = Message(
                    topic=tp.topic, partition=tp.partition, offset=offset, key=key, value=value, headers=[],
                    timestamp=(1, STAMP),
                )  # fmt: skip
                yield Found(message, tp, offset)
