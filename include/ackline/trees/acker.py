"""The acker: finds which trees are complete, and stores the outcome of each record.

As Storm's Acker it XORs all edges of a root that were created and closed: the result is 0 when each edge was both. The
counts are a second check, because two edges with the same id would cancel each other: as many tuples must have been
closed at each step as were sent there. Both are sums over events without duplicates.
"""

from collections.abc import Callable, Iterable, Iterator
from time import time_ns
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from ackline.errors import FatalError
from ackline.handler import Durations
from ackline.ledger.offsets import Bools
from ackline.ledger.outcomes import ErrorClass
from ackline.trees.batch import read_manifest
from ackline.trees.events import NOT_BEGUN, Block, EventFormat, Sums, outcome_of_root, stories_of_acked
from ackline.trees.rows import MANIFEST
from ackline.worker.outcomes import Outcomes, RowOutcome
from ackline.worker.run import TaskRun
from ackline.worker.settings import TaskSettings
from ackline.worker.streams import CallHandler

Batches = Iterator[pa.RecordBatch]


def by_block(rows: DataFrame, parts: int) -> DataFrame:
    """Returns the rows of events and manifests. The rows of one block of offsets are in one part, one after the other,
    and the blocks of a topic-partition are in the order of its offsets. Spark sorts rows of many events each, on disk
    if need be. So a task of the acker holds the events of one block at a time, however many records its part has."""
    return rows.where("step IS NULL").repartition(parts, "key").sortWithinPartitions("tp", "offset")


def store_roots(settings: TaskSettings) -> Callable[[Batches], Batches]:
    """Returns the acker's task: it gets the rows of `by_block`, and stores the outcome of each attempt at a record."""

    def task(batches: Batches) -> Batches:
        with AckerRun(settings, "acker") as run:
            for batch in batches:
                yield from run.store(batch)
            yield from run.finish()

    return task


class AckerRun(TaskRun):
    """One task of the acker: it decides and stores the outcomes of the roots whose events it gets."""

    def __init__(self, settings: TaskSettings, source: str) -> None:
        super().__init__(settings, source)
        self._decided = 0
        self._unacked = 0
        self._latency = Durations()

    def _load_call(self) -> CallHandler | None:
        topology = self._settings.replay.topology
        assert topology is not None
        self._topology = topology
        self._format = EventFormat(len(topology.steps))
        self._block: Block | None = None
        self._payloads: list[bytes] = []
        return None

    def store(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Stores the outcomes of the roots of each block once the next block begins. Yields the manifests of other
        tasks, which are among the rows. Raises FatalError if a root has no event of its own record, or several."""
        columns = (batch.column(name).to_pylist() for name in ("tp", "offset", "payload"))
        for tp, number, payload in zip(*columns, strict=True):
            if tp == MANIFEST:
                yield from read_manifest(payload)
                continue
            block = Block(tp, number)
            if block != self._block:
                self._store_block()
                self._block = block
            self._payloads.append(payload)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Stores the last block, and closes the files. Returns the task's manifest."""
        self._store_block()
        return super().finish()

    def _store_block(self) -> None:
        if self._block is None:
            return
        tp, payloads, self._payloads = self._settings.topic_partitions[self._block.tp], self._payloads, []
        roots = self._format.sums(payloads)
        if (roots.sources != 1).any():
            raise FatalError("the acker got events of a record without its first one; nothing was stored")
        self._decided += len(roots.offsets)
        hashes = None if self._key_hash is None else pa.array(roots.key_hashes, pa.int64())
        has_note = np.array([note is not None for note in roots.notes], dtype=np.bool_)
        waits = np.array([due is not None for due in roots.dues], dtype=np.bool_)
        is_acked = (roots.xors == 0) & ~roots.open_tuples.any(axis=0) & ~has_note & ~waits
        begun = roots.begun[is_acked]
        # The clocks of two machines may differ, so no time is below 0.
        times = np.maximum(0, time_ns() - begun[begun != NOT_BEGUN])
        if len(times):
            self._latency.add(Durations(len(times), int(times.sum()), int(times.max())))
        trees = stories_of_acked(np.where(is_acked, roots.acked, 0), self._topology)
        outcomes = Outcomes(roots.times, self._not_acked(roots, is_acked), trees=trees)
        self._store(tp, roots.offsets, roots.timestamps, roots.attempts.astype(np.int32), outcomes, hashes)

    def _not_acked(self, roots: Sums, is_acked: Bools) -> list[RowOutcome]:
        not_acked = []
        for row in np.flatnonzero(~is_acked).tolist():
            of_row = roots.open_tuples[:, row].tolist(), roots.acked[:, row].tolist()
            time = int(roots.times[row])
            xor, due = int(roots.xors[row]), roots.dues[row]
            outcome = outcome_of_root(roots.notes[row], xor, *of_row, self._topology, time, due)
            if outcome is not None:
                not_acked.append(outcome.at_row(row))
                self._unacked += outcome.error_class == ErrorClass.UNACKED
        return not_acked

    def _manifest(self, **_: Any) -> pa.RecordBatch:
        return super()._manifest(trees=-self._decided, latency=self._latency, unacked=self._unacked)
