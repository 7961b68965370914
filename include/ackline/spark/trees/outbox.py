"""What a task sends to the tasks after it, gathered into Arrow batches."""

import pickle
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa

from ackline.spark.trees.calls import TreeCalls
from ackline.spark.trees.edges import as_signed
from ackline.spark.trees.rows import MANIFEST, UNTRACKED, Event, Root, RowFormat, TupleRows, block_of

MAX_ROWS = 10_000
"""Rows of a batch, at most."""
_MAX_BYTES = 16 << 20


class Outbox:
    """Rows of one task that are not sent yet. `trees` counts the trees whose first event the task has added."""

    def __init__(self, steps: int) -> None:
        self._format = RowFormat(steps)
        self._events: list[tuple[Root, Event, int]] = []
        self._tuples = TupleRows()
        self.trees = 0

    def add_event(self, root: Root, event: Event, time: int) -> None:
        """Adds the event of a root; `time` is when its calls had returned, in microseconds since 1970."""
        self._events.append((root, event, time))
        self.trees += event.sources

    def add_tuples(self, calls: TreeCalls) -> None:
        """Moves the tuples that `calls` has emitted into the outbox."""
        if not len(self._tuples):
            self._tuples, calls.rows = calls.rows, TupleRows()
        elif len(calls.rows):
            self._tuples.extend(calls.rows)
            calls.rows = TupleRows()

    @property
    def full(self) -> bool:
        """Whether the rows make a batch."""
        return len(self._events) + len(self._tuples) >= MAX_ROWS or self._tuples.size >= _MAX_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows as batches, and forgets them."""
        events, self._events = self._events, []
        tuples, self._tuples = self._tuples, TupleRows()
        # By bytes, too: Arrow's column of payloads holds 2 GiB at most, and the JVM takes a batch whole.
        rows = min(MAX_ROWS, max(1, len(tuples) * _MAX_BYTES // max(1, tuples.size)))
        for start in range(0, len(tuples), rows):
            part = tuples.slice(start, start + rows)
            yield self._tuple_batch(part)
        for start in range(0, len(events), MAX_ROWS):
            yield self._event_batch(events[start : start + MAX_ROWS])

    def manifest(self, manifest: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a task's manifest as a row that no other row is added up with."""
        place = uuid4().int >> 65
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, manifest.schema) as stream:
            stream.write_batch(manifest)
        columns = {"route": [place], "tp": [MANIFEST], "offset": [place], "note": [content.getvalue().to_pybytes()]}
        return self._format.batch(columns, 1)

    def _tuple_batch(self, tuples: TupleRows) -> pa.RecordBatch:
        first = [edges[0] if edges else (Root(UNTRACKED, 0, 0), 0) for edges in tuples.edges]
        columns = {
            "route": tuples.routes,
            "step": tuples.steps,
            "tp": [root.tp for root, _ in first],
            "offset": [root.offset for root, _ in first],
            "attempt": [root.attempt for root, _ in first],
            "edge": [as_signed(edge) for _, edge in first],
            "edges": [pickle.dumps(edges) if len(edges) > 1 else None for edges in tuples.edges],
            "key": tuples.keys,
            "payload": tuples.payloads,
        }
        return self._format.batch(columns, len(tuples))

    def _event_batch(self, events: Sequence[tuple[Root, Event, int]]) -> pa.RecordBatch:
        columns = {
            "route": [block_of(root) for root, _, _ in events],
            "tp": [root.tp for root, _, _ in events],
            "offset": [root.offset for root, _, _ in events],
            "attempt": [root.attempt for root, _, _ in events],
            "edge": [as_signed(event.edge) for _, event, _ in events],
            "by": [event.by for _, event, _ in events],
            "xor": [as_signed(event.xor) for _, event, _ in events],
            "sources": [event.sources for _, event, _ in events],
            "time": [time for _, _, time in events],
            "timestamp": [event.timestamp for _, event, _ in events],
            "begun": [event.begun for _, event, _ in events],
            "key_hash": [event.key_hash for _, event, _ in events],
            "note": [event.note for _, event, _ in events],
        }
        for step in range(self._format.steps):
            columns[f"open_{step}"] = [event.open[step] for _, event, _ in events]
            columns[f"acked_{step}"] = [event.acked[step] for _, event, _ in events]
        return self._format.batch(columns, len(events))


def read_manifest(content: bytes) -> Iterator[pa.RecordBatch]:
    """Yields the manifest that `Outbox.manifest` has encoded."""
    with pa.ipc.open_stream(content) as stream:
        yield from stream
