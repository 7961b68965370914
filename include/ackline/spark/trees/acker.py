"""The acker: finds which trees are complete, in Spark, and stores the outcome of each record.

As Storm's Acker it XORs all edges of a root that were created and closed: the result is 0 when each edge was both. XOR
has a second witness, because two edges with the same id would cancel each other: as many tuples must have been closed
at each step as were sent there. Both are sums over events without duplicates, and Spark makes them.
"""

from collections.abc import Callable, Iterator
from time import time_ns

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.errors import FatalError
from ackline.spark.handlers.load import CallHandler
from ackline.spark.handlers.outcomes import Outcomes
from ackline.spark.output.manifest import manifest
from ackline.spark.settings import TaskSettings
from ackline.spark.task_run import TaskRun
from ackline.spark.trees.notes import outcome_of_root
from ackline.spark.trees.outbox import read_manifest
from ackline.spark.trees.rows import MANIFEST
from ackline.tuples import Durations

Batches = Iterator[pa.RecordBatch]
_ROOT = ("tp", "offset", "attempt", "route")


def by_root(rows: DataFrame, steps: int, parts: int) -> DataFrame:
    """Returns a row for each root, from the events of all tasks, in the order of offsets within a part.

    Repeated events change nothing: those of one root with the same `edge` and step are one. One exchange brings the
    events of a block of offsets together; nothing after it moves rows.
    """
    counts = [name for n in range(steps) for name in (f"open_{n}", f"acked_{n}")]
    return (
        rows.where("step IS NULL")
        .select(*_ROOT, "edge", "by", "xor", "sources", "time", "timestamp", "begun", "key_hash", "note", *counts)
        .repartition(parts, "route")
        .dropDuplicates([*_ROOT, "edge", "by"])
        .groupBy(*_ROOT)
        .agg(
            F.bit_xor("xor").alias("xor"),
            F.sum("sources").alias("sources"),
            F.max("time").alias("time"),
            F.max("timestamp").alias("timestamp"),
            F.max("begun").alias("begun"),
            F.max("key_hash").alias("key_hash"),
            F.min("note").alias("note"),
            *(F.sum(name).alias(name) for name in counts),
        )
        .sortWithinPartitions("tp", "offset")
    )


def store_roots(settings: TaskSettings) -> Callable[[Batches], Batches]:
    """Returns the task that stores the outcomes of roots, given the rows of `by_root`."""

    def task(batches: Batches) -> Batches:
        with AckerRun(settings, "acker") as run:
            for batch in batches:
                yield from run.store(batch)
            yield from run.finish()

    return task


class AckerRun(TaskRun):
    """One task of the acker: it decides and stores the outcomes of the roots that it is given."""

    def __init__(self, settings: TaskSettings, source: str) -> None:
        super().__init__(settings, source)
        self._decided = 0
        self._latency = Durations()

    def _load_call(self) -> CallHandler | None:
        return None

    def store(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Stores the outcomes of roots. Yields the manifests of other tasks, which travel with the events.

        Raises FatalError if a root has no event of its own record, or several.
        """
        tps = batch.column("tp").to_numpy()
        for note in batch.column("note").filter(pa.array(tps == MANIFEST)).to_pylist():
            yield from read_manifest(note)
        for tp in np.unique(tps[tps != MANIFEST]).tolist():
            self._store_roots(tp, batch.filter(pa.array(tps == tp)))

    def _store_roots(self, tp: int, roots: pa.RecordBatch) -> None:
        topology = self._settings.replay.topology
        assert topology is not None
        sources = roots.column("sources").to_numpy()
        if (sources != 1).any():
            raise FatalError("the acker got events of a record without its first one; nothing was stored")
        times, xors = roots.column("time").to_numpy(), roots.column("xor").to_numpy()
        steps = range(len(topology.steps))
        open_tuples = np.array([roots.column(f"open_{number}").to_numpy() for number in steps])
        acked = np.array([roots.column(f"acked_{number}").to_numpy() for number in steps])
        notes = roots.column("note")
        is_acked = (xors == 0) & ~open_tuples.any(axis=0) & notes.is_null().to_numpy(zero_copy_only=False)
        not_acked = []
        for row in np.flatnonzero(~is_acked).tolist():
            of_row = open_tuples[:, row].tolist(), acked[:, row].tolist()
            outcome = outcome_of_root(notes[row].as_py(), int(xors[row]), *of_row, topology, int(times[row]))
            if outcome is not None:
                not_acked.append(outcome.at_row(row))
        self._measure_latency(roots.filter(pa.array(is_acked)).column("begun"))
        hashes = None if self._key_hash is None else roots.column("key_hash")
        self._decided += len(roots)
        self._store(
            self._settings.topic_partitions[tp],
            roots.column("offset").to_numpy(),
            roots.column("timestamp").to_numpy(),
            roots.column("attempt").to_numpy(),
            Outcomes(times, not_acked),
            hashes,
        )

    def _measure_latency(self, begun: pa.Array) -> None:
        """Measures how long acked trees took. The clocks of two machines may differ, so no time is below 0."""
        times = np.maximum(0, time_ns() - begun.drop_null().to_numpy(zero_copy_only=False))
        if len(times):
            self._latency.add(Durations(len(times), int(times.sum()), int(times.max())))

    def _manifest(self) -> pa.RecordBatch:
        counts = self._files.counts
        of_trees = -self._decided, self._latency
        return manifest(self._files.close(), counts, {}, 0, 0, self._out_of_range, *of_trees)
