"""The functions that Spark's Python workers run: a task gets records, and returns the manifest of its outcomes files.

Spark's Kafka source reads fresh records; a task reads its retries itself, with exact reads. The same handler gets both,
and the same files take their outcomes. No manifest names the files of a task that failed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.ledger.metrics import FetchTimes, timed_fetches
from ackline.ledger.offsets import TopicPartition
from ackline.worker.records import OUT_OF_RANGE, RECORD_COLUMNS, Records, from_spark
from ackline.worker.retries import GoneOffsets, Retries, UnreadableRecords, read_retries_exactly
from ackline.worker.run import FETCHED, UNREADABLE, TaskRun
from ackline.worker.settings import KafkaSettings, TaskSettings
from ackline.worker.trees.calls import rarer_collection
from ackline.worker.trees.stages import SourceRun

NOTED_COLUMNS = RECORD_COLUMNS.append(pa.field("note", pa.string())).append(pa.field("out_of_range", pa.bool_()))
"""The columns of retries in the column tier. A row with a `note` is about something else than a record to handle. The
timestamp of a row that is `out_of_range` is no time, so it is null."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


def handle_fresh(settings: TaskSettings) -> Task:
    """Returns the task that handles records of Spark's Kafka source."""

    def task(batches: Batches) -> Batches:
        with _collection(settings), _run(settings) as run:
            for batch, wait in timed_fetches(batches, perf_counter):
                for tp, part in _by_topic_partition(batch, settings.topic):
                    run.count_wait(tp, wait)
                    for portion in run.portions(from_spark(tp, part)):
                        run.handle(portion)
                        yield from run.rows()
                    wait = FetchTimes()  # the task waited once for the whole batch: its first topic-partition counts it
            yield from run.finish()

    return task


def handle_retries(settings: TaskSettings, kafka: KafkaSettings, parts: Any) -> Task:
    """Returns the task that reads and handles retries. `parts` is a broadcast list; the task's rows hold its indexes in
    the column `id`."""

    def task(batches: Batches) -> Batches:
        with _collection(settings), _run(settings, "exact") as run:
            for retries in _retries_of_task(batches, parts):
                read = read_retries_exactly(retries, kafka.properties, kafka.isolation_level, run.count_fetched)
                for batch, wait in timed_fetches(read, perf_counter):
                    run.count_wait(batch.tp, wait)
                    if isinstance(batch, GoneOffsets):
                        run.store_gone(batch)
                    elif isinstance(batch, UnreadableRecords):
                        run.store_unreadable(batch.records)
                    else:
                        for portion in run.portions(batch):
                            run.handle(portion)
                            yield from run.rows()
            yield from run.finish()

    return task


def read_retries(kafka: KafkaSettings, parts: Any) -> Task:
    """Returns the task that only reads retries, as rows of NOTED_COLUMNS: a column handler runs in the JVM. `parts` is
    a broadcast list; the task's rows hold its indexes in the column `id`."""

    def task(batches: Batches) -> Batches:
        fetched: list[int] = []
        for retries in _retries_of_task(batches, parts):
            for batch in read_retries_exactly(retries, kafka.properties, kafka.isolation_level, fetched.append):
                if isinstance(batch, GoneOffsets):
                    yield _note_rows(batch.tp, batch.offsets, batch.outcome)
                elif isinstance(batch, UnreadableRecords):
                    yield _with_note(batch.records, UNREADABLE)
                else:
                    yield _with_note(batch)
        yield _note_rows(TopicPartition("", -1), [sum(fetched)], FETCHED)

    return task


def store_column(settings: TaskSettings) -> Task:
    """Returns the task that stores rows whose outcome a column handler has computed in the JVM."""

    def task(batches: Batches) -> Batches:
        with TaskRun(settings) as run:
            for batch, wait in timed_fetches(batches, perf_counter):
                for tp, part in _by_topic_partition(batch, settings.topic):
                    run.count_wait(tp, wait)
                    run.store_column(tp, part)
                    wait = FetchTimes()  # as in `handle_fresh`
            yield from run.finish()

    return task


def _run(settings: TaskSettings, source: str = "fresh") -> TaskRun:
    return TaskRun(settings, source) if settings.replay.topology is None else SourceRun(settings, source)


def _collection(settings: TaskSettings) -> AbstractContextManager[None]:
    return nullcontext() if settings.replay.topology is None else rarer_collection()


def _retries_of_task(batches: Batches, parts: Any) -> Iterator[Retries]:
    for batch in batches:
        for index in batch.column("id").to_pylist():
            yield parts.value[index]


def _by_topic_partition(batch: pa.RecordBatch, topic: str | None) -> Iterable[tuple[TopicPartition, pa.RecordBatch]]:
    """Yields the consecutive rows of each topic-partition as a batch of their own."""
    if not batch.num_rows:
        return
    partitions = batch.column("partition").to_numpy()
    changes = partitions[1:] != partitions[:-1]
    topics = None
    if topic is None:
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(bounds):
        name = topic if topics is None else topics[start].as_py()
        yield TopicPartition(str(name), int(partitions[start])), batch.slice(start, end - start)


def _with_note(records: Records, note: str | None = None) -> pa.RecordBatch:
    out_of_range = pa.array(records.timestamps == OUT_OF_RANGE)
    columns = [*records.to_arrow().columns, pa.array([note] * len(records), pa.string()), out_of_range]
    return pa.RecordBatch.from_arrays(columns, schema=NOTED_COLUMNS)


def _note_rows(tp: TopicPartition, offsets: Sequence[int], note: str) -> pa.RecordBatch:
    row = {"topic": tp.topic, "partition": tp.partition, "attempt": 0, "note": str(note), "out_of_range": False}
    return pa.RecordBatch.from_pylist([{**row, "offset": offset} for offset in offsets], schema=NOTED_COLUMNS)
