"""Runs the tasks of a job in this process, in place of Spark: the same functions of tasks, one task a stage.

They cost milliseconds, and no session. They leave the rows and counts that Spark's tasks leave. What Spark does between
the tasks is to bring the tuples of a key together, those of a join sorted, and the rows of a record to the acker. A
handler that kills its process ends this one.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc

from ackline.errors import ConfigError
from ackline.handler import Tier
from ackline.pipeline.topology import Step
from ackline.trees.acker import store_roots
from ackline.trees.rows import ROWS_SCHEMA
from ackline.trees.stages import handle_step, open_run
from ackline.worker.settings import ReplayJob, TaskSettings
from ackline.worker.tasks import Batch, handle_batches, handle_fresh, handle_retries, split_ranges, with_fresh

Fresh = Iterable[Iterator[pa.RecordBatch]]
"""The fresh records of each task, as `ackline.spark.lineage.for_python` selects them."""


def manifests_of_tasks(job: ReplayJob, task: TaskSettings, fresh: Fresh | None = None) -> Sequence[pa.RecordBatch]:
    """Returns the manifests of all tasks. Without `fresh`, one task reads the fresh ranges exactly, like the retries.

    Raises ConfigError for a column handler, and what the tasks raise.
    """
    _refuse_columns(task)
    retries = job.retries if fresh is not None else with_fresh(job.retries, split_ranges(job.fresh, {})[0])
    rows = [row for batches in fresh or () for row in handle_fresh(task, open_run)(batches)]
    if retries:
        parts, indexes = SimpleNamespace(value=[retries]), pa.RecordBatch.from_pydict({"id": [0]})
        rows += handle_retries(task, job.kafka, parts, open_run)(iter([indexes]))
    return _manifests(task, rows)


def manifests_of_batches(task: TaskSettings, batches: Iterable[Batch]) -> Sequence[pa.RecordBatch]:
    """Returns the manifests of all tasks for what an exact read has found. Raises as `manifests_of_tasks` does."""
    _refuse_columns(task)
    with open_run(task, "exact") as run:
        rows = [*handle_batches(run, batches), *run.finish()]
    return _manifests(task, rows)


def _refuse_columns(task: TaskSettings) -> None:
    if task.tier is Tier.COLUMN:
        raise ConfigError("a column handler runs in Spark's JVM, so it needs Spark", key="handler")


def _manifests(task: TaskSettings, rows: list[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Runs the steps and the acker on the rows of the tasks that read records."""
    topology = task.replay.topology
    if topology is None:
        return rows
    for step in topology.steps:
        if step.grouped:
            rows = list(handle_step(task, step)(_exchanged(rows, step)))
    of_acker = pa.Table.from_batches(rows, ROWS_SCHEMA).filter(pc.field("step").is_null())
    by_root = of_acker.sort_by([("tp", "ascending"), ("offset", "ascending")])
    return list(store_roots(task)(iter(by_root.to_batches())))


def _exchanged(rows: Sequence[pa.RecordBatch], step: Step) -> Iterator[pa.RecordBatch]:
    """Returns the rows as the step's task gets them: those of a join by their buckets, behind all other rows."""
    table = pa.Table.from_batches(rows, ROWS_SCHEMA)
    if step.join:
        is_mine = pc.fill_null(pc.equal(table["step"], step.number), False)
        bucket = pc.if_else(is_mine, table["tp"], -1)
        table = table.take(pc.sort_indices(bucket))
    return iter(table.combine_chunks().to_batches())
