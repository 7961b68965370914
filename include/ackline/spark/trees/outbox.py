"""What a task sends to the tasks after it, gathered into Arrow batches."""

import pickle
from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import pyarrow as pa

from ackline.spark.trees.calls import TreeCalls
from ackline.spark.trees.packed_events import EventFormat, PackedEvents
from ackline.spark.trees.rows import MANIFEST, UNTRACKED, Event, Root, TupleRows, rows_of

MAX_ROWS = 10_000
"""Rows of a batch, at most."""
_MAX_BYTES = 16 << 20
_MAX_EVENTS = 8 << 20
"""Bytes of events that wait here, at most. The more there are, the more of them share a row."""

_NO_EDGE = Root(UNTRACKED, 0, 0), 0


class Outbox:
    """Rows of one task that are not sent yet. `trees` counts the trees whose first event the task has added."""

    def __init__(self, steps: int) -> None:
        self._events = PackedEvents(EventFormat(steps))
        self._tuples = TupleRows()
        self.trees = 0

    def add_event(self, root: Root, event: Event, time: int) -> None:
        """Adds the event of a root; `time` is when its calls had returned, in microseconds since 1970."""
        self._events.add(root, event, time)
        self.trees += event.sources

    def add_tuples(self, calls: TreeCalls) -> None:
        """Moves the tuples that `calls` has emitted into the outbox."""
        if not len(self._tuples):
            self._tuples, calls.rows = calls.rows, TupleRows()
        elif len(calls.rows):
            self._tuples.extend(calls.rows)
            calls.rows = TupleRows()

    def take(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Yields the rows that make a batch, and forgets them. The `last` time it yields all that are left."""
        if last or make_a_batch(self._tuples):
            tuples, self._tuples = self._tuples, TupleRows()
            # By bytes, too: Arrow's column of payloads holds 2 GiB at most, and the JVM takes a batch whole.
            rows = min(MAX_ROWS, max(1, len(tuples) * _MAX_BYTES // max(1, tuples.size)))
            for start in range(0, len(tuples), rows):
                yield self._tuple_batch(tuples.slice(start, start + rows))
        if self._events.size and (last or self._events.size >= _MAX_EVENTS):
            yield self._event_batch()

    def manifest(self, manifest: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a task's manifest as a row that no other row is added up with."""
        place = uuid4().int >> 65
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, manifest.schema) as stream:
            stream.write_batch(manifest)
        columns = {"route": [place], "tp": [MANIFEST], "payload": [content.getvalue().to_pybytes()]}
        return rows_of(columns, 1)

    def _tuple_batch(self, tuples: TupleRows) -> pa.RecordBatch:
        first = [edges[0] if edges else _NO_EDGE for edges in tuples.edges]
        columns = {
            "route": tuples.routes,
            "step": tuples.steps,
            "tp": [root.tp for root, _ in first],
            "offset": [root.offset for root, _ in first],
            "attempt": [root.attempt for root, _ in first],
            # The same 64 bits in a signed column.
            "edge": np.array([edge for _, edge in first], np.uint64).view(np.int64),
            "edges": [pickle.dumps(edges) if len(edges) > 1 else None for edges in tuples.edges],
            "key": tuples.keys,
            "payload": tuples.payloads,
        }
        return rows_of(columns, len(tuples))

    def _event_batch(self) -> pa.RecordBatch:
        blocks, payloads = zip(*self._events.take(), strict=True)
        columns = {
            "route": [block.route for block in blocks],
            "tp": [block.tp for block in blocks],
            "offset": [block.number for block in blocks],
            "payload": payloads,
        }
        return rows_of(columns, len(blocks))


def make_a_batch(tuples: TupleRows) -> bool:
    """Returns whether tuples are so many, or so large, that they should not wait any longer."""
    return len(tuples) >= MAX_ROWS or tuples.size >= _MAX_BYTES


def read_manifest(content: bytes) -> Iterator[pa.RecordBatch]:
    """Yields the manifest that `Outbox.manifest` has encoded."""
    with pa.ipc.open_stream(content) as stream:
        yield from stream
