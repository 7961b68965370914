"""What a task sends to the tasks after it, gathered into Arrow batches."""

from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa

from ackline.worker.trees.batch import MAX_BYTES, MAX_ROWS
from ackline.worker.trees.calls import Ended
from ackline.worker.trees.events import PackedEvents
from ackline.worker.trees.rows import MANIFEST, rows_of

_MAX_EVENTS = 8 << 20
"""Bytes of events that wait here, at most. The more there are, the more of them share a row."""


class Outbox:
    """Rows of one task that are not sent yet. `trees` counts the trees whose first event the task has added."""

    def __init__(self) -> None:
        self._events = PackedEvents()
        self._ready: list[pa.RecordBatch] = []
        self._small: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.trees = 0

    def add(self, ended: Ended) -> None:
        """Adds what the calls of a batch leave."""
        if len(ended.events):
            self._events.add(ended.events)
            self.trees += int(ended.events.rows["sources"].sum())
        for rows in ended.rows:
            if self._rows + rows.num_rows > MAX_ROWS or self._bytes + rows.nbytes > MAX_BYTES:
                self._join_small()
            self._small.append(rows)
            self._rows += rows.num_rows
            self._bytes += rows.nbytes

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yields the rows that make a batch, and forgets them. The `last` time it yields all that are left."""
        if last or self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self._join_small()
        ready, self._ready = self._ready, []
        yield from ready
        if self._events.size and (last or self._events.size >= _MAX_EVENTS):
            yield self._event_batch()

    def manifest(self, manifest: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a task's manifest as a row that no other row is added up with."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, manifest.schema) as stream:
            stream.write_batch(manifest)
        columns = {"key": [uuid4().bytes], "tp": [MANIFEST], "payload": [content.getvalue().to_pybytes()]}
        return rows_of(columns, 1)

    def _join_small(self) -> None:
        small, self._small, self._rows, self._bytes = self._small, [], 0, 0
        if small:
            self._ready += pa.Table.from_batches(small).combine_chunks().to_batches()

    def _event_batch(self) -> pa.RecordBatch:
        blocks, payloads = zip(*self._events.take(), strict=True)
        columns = {
            "key": [block.key for block in blocks],
            "tp": [block.tp for block in blocks],
            "offset": [block.number for block in blocks],
            "payload": payloads,
        }
        return rows_of(columns, len(blocks))


def read_manifest(content: bytes) -> Iterator[pa.RecordBatch]:
    """Yields the manifest that `Outbox.manifest` has encoded."""
    with pa.ipc.open_stream(content) as stream:
        yield from stream
