"""Tuples on their way to Arrow steps: what waits for the end of a batch, and the rows between two Spark tasks.

A row holds many tuples, as Arrow columns: those whose keys are in one bucket. So the stages between two steps copy a
few rows instead of one for each tuple. Tuples of one key are in one bucket, whichever task sends them, so they come to
one task. A join gets the tuples of one bucket after those of another, and sorts them itself by key and origin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.offsets import Bools
from ackline.pipeline.topology import Step
from ackline.trees.batch import MAX_BYTES, MAX_ROWS, ROW_BYTES, SentTuples
from ackline.trees.calls import next_portion
from ackline.trees.columns import (
    TupleColumns,
    bytes_of_keys,
    columns_of,
    joined,
    joined_batches,
    without_types_of_nulls,
)
from ackline.trees.payload import unpack
from ackline.trees.rows import UNTRACKED, EdgeColumns, EdgeNumbers, EdgesOfRows, Int64s, Resolved, rows_of, runs_of_size


class Refused(NamedTuple):
    """A tuple that no Arrow column can hold: the edges that lead to it, and the reason."""

    edges: EdgeNumbers
    reason: str


class WaitingTuples:
    """Tuples that the calls of a batch have emitted to Arrow steps."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], SentTuples] = {}
        self._columns: dict[int, list[TupleColumns]] = {}
        self._size = 0

    @property
    def fill(self) -> float:
        """How much waits: 1 is what a batch should hold."""
        return self._size / MAX_BYTES

    def add(self, step: int, stream: int, edges: EdgeNumbers, key: bytes, payload: bytes) -> None:
        """Adds a tuple for a step, with key and value packed."""
        rows = self._rows.setdefault((step, stream), SentTuples())
        before = rows.size
        rows.add(step, stream, edges, key, payload)
        self._size += rows.size - before

    def add_columns(self, step: int, tuples: TupleColumns) -> None:
        """Adds tuples for a step as columns."""
        self._columns.setdefault(step, []).append(tuples)
        self._size += tuples.batch.nbytes + ROW_BYTES * len(tuples)

    def take(self, step: int) -> Iterator[TupleColumns | Refused]:
        """Yields the tuples for a step, and forgets them: as columns, or refused where no column can hold them."""
        columns = self._columns.pop(step, [])
        for of, stream in [place for place in self._rows if place[0] == step]:
            rows = self._rows.pop((of, stream))
            for edges, keys, payloads in rows.portions():
                pairs = [unpack(*packed) for packed in zip(keys, payloads, strict=True)]
                converted = columns_of([key for key, _ in pairs], [value for _, value in pairs])
                for numbers, batch in converted.batches:
                    of_batch = EdgesOfRows.of([edges[number] for number in numbers])
                    columns.append(TupleColumns(np.full(len(numbers), stream), of_batch, batch))
                for number, reason in converted.refused.items():
                    yield Refused(edges[number], reason)
        if columns:
            yield from TupleColumns.joined(columns)


# ---- between two tasks ----------------------------------------------------------------------------------------------

_ROOT = pa.struct([("tp", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32()), ("edge", pa.uint64())])
_EDGES = "_edges"
"""The name of the first column of a parcel. Its other columns are those of the tuples, which may have this name, too:
columns are found by their places."""
_BUCKETS_A_PART, _LEAST_BUCKETS = 8, 32
"""Buckets of the keys of a join: for each part, and at least. A join holds the tuples of one bucket at once. Any other
step has one bucket a part, because each bucket of a batch is a stream of Arrow of its own."""


def parcel_rows(step: Step, tuples: TupleColumns, resolved: Resolved, parts: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows that hold the tuples for the `parts` tasks of a step, given the ids of their edges."""
    buckets = max(_LEAST_BUCKETS, _BUCKETS_A_PART * parts) if step.join else parts
    of_rows, streams = _buckets(tuples.batch.column(0), buckets), tuples.streams
    order = np.lexsort([streams, of_rows])
    sent, of_rows, streams = tuples.take(order), of_rows[order], streams[order]
    edges = _edge_column(sent.edges, resolved)
    batch = pa.RecordBatch.from_arrays([edges, *sent.batch.columns], names=[_EDGES, *sent.batch.schema.names])
    changes = np.flatnonzero((np.diff(of_rows) != 0) | (np.diff(streams) != 0)) + 1
    most = max(1, int(MAX_BYTES * len(order) / max(1, batch.nbytes)))  # a row of Spark holds 2 GiB at most
    starts = [
        first
        for start, end in pairwise([0, *changes.tolist(), len(order)])
        for first in range(start, end, most)
    ]  # fmt: skip
    ends = [*starts[1:], len(order)]
    slices = [batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
    columns_of_rows: dict[str, Any] = {
        "step": np.full(len(starts), step.number, np.int32),
        "stream": streams[starts].astype(np.int32),
        "tp": of_rows[starts].astype(np.int32),
        "key": [b"%d" % bucket for bucket in of_rows[starts].tolist()],
    }
    for start, end in runs_of_size([of_row.nbytes for of_row in slices], MAX_BYTES):
        columns_of_run = {name: values[start:end] for name, values in columns_of_rows.items()}
        yield rows_of({**columns_of_run, "payload": _encoded(slices[start:end])}, end - start)


def _buckets(keys: pa.Array, buckets: int) -> Int64s:
    """Returns the bucket of each key: the same for keys that are equal, whatever their types."""
    if pa.types.is_nested(keys.type) or keys.null_count:
        distinct = bytes_of_keys(keys).dictionary_encode()
        values = distinct.dictionary
    else:
        distinct = keys.dictionary_encode()
        values = bytes_of_keys(distinct.dictionary)
    hashes = np.fromiter(map(crc32, values.to_pylist()), np.int64, len(values))
    of_keys: Int64s = (hashes % buckets)[distinct.indices.to_numpy()]
    return of_keys


def _edge_column(edges: EdgesOfRows, resolved: Resolved) -> pa.ListArray:
    """Returns for each tuple its roots, each with the id of the edge that leads to the tuple."""
    roots, root_of = resolved.roots, resolved.root_of[edges.numbers]
    parts = [roots.tps[root_of].astype(np.int32), roots.offsets[root_of], roots.attempts[root_of].astype(np.int32)]
    arrays = [pa.array(part) for part in (*parts, resolved.ids[edges.numbers])]
    ends = np.cumsum(edges.counts)
    flat = pa.StructArray.from_arrays(arrays, fields=list(_ROOT))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int32)), flat)


def _encoded(batches: Sequence[pa.RecordBatch]) -> pa.Array:
    """Returns a stream of Arrow for each batch. All are written into one buffer, because each copy counts."""
    content, ends = pa.BufferOutputStream(), [0]
    for batch in batches:
        with pa.ipc.new_stream(content, batch.schema) as stream:
            stream.write_batch(batch)
        ends.append(content.tell())
    offsets = pa.py_buffer(np.array(ends, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(batches), [None, offsets, content.getvalue()])


@dataclass(frozen=True, slots=True)
class ArrivedTuples:
    """Tuples that have come from other tasks: the roots of each with the ids of its edges, the numbers of their
    streams, and their columns."""

    roots: pa.ListArray
    streams: Int64s
    batch: pa.RecordBatch

    @classmethod
    def of_row(cls, payload: bytes, stream: int) -> "ArrivedTuples":
        """Returns the tuples of one row."""
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        columns = pa.RecordBatch.from_arrays(batch.columns[1:], names=batch.schema.names[1:])
        return cls(batch.column(0), np.full(batch.num_rows, stream), columns)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def take(self, rows: Int64s) -> "ArrivedTuples":
        """Returns the tuples with these numbers."""
        chosen = pa.array(rows)
        return ArrivedTuples(self.roots.take(chosen), self.streams[rows], self.batch.take(chosen))

    def slice(self, start: int, end: int) -> "ArrivedTuples":
        """Returns the tuples from `start` up to `end`."""
        count = end - start
        return ArrivedTuples(self.roots.slice(start, count), self.streams[start:end], self.batch.slice(start, count))

    @property
    def keys(self) -> pa.Array:
        """The bytes of the keys, which are equal for equal keys."""
        return bytes_of_keys(self.batch.column(0))

    def by_key(self) -> "ArrivedTuples":
        """Returns the tuples in the order of key and origin; within a key, those of no record come first."""
        counts = pc.list_value_length(self.roots).to_numpy()
        first = (np.cumsum(counts) - counts)[counts > 0]
        flat = self.roots.flatten()
        columns = {"key": self.keys}
        for name, otherwise in (("tp", UNTRACKED), ("offset", 0), ("attempt", 0), ("edge", 0)):
            of_rows = np.full(len(counts), otherwise, np.int64)
            of_rows[counts > 0] = flat.field(name).to_numpy().astype(np.int64, casting="unsafe")[first]
            columns[name] = pa.array(of_rows)
        order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
        return self.take(order.to_numpy().astype(np.int64))

    def tuples(self, edges: EdgeColumns) -> TupleColumns:
        """Returns the tuples with the numbers of their edges, which are added to `edges`."""
        flat, counts = self.roots.flatten(), pc.list_value_length(self.roots).to_numpy().astype(np.int64)
        tps, offsets, attempts, ids = (flat.field(name).to_numpy() for name in ("tp", "offset", "attempt", "edge"))
        numbers = edges.add_given(tps.astype(np.int64), offsets, attempts.astype(np.int64), ids.view(np.int64))
        return TupleColumns(self.streams, EdgesOfRows(numbers, counts), self.batch)


def _joined(parts: Sequence[ArrivedTuples], batch: pa.RecordBatch) -> ArrivedTuples:
    """Returns the tuples of all parts, given their columns as one batch."""
    roots, streams = pa.concat_arrays([part.roots for part in parts]), np.concatenate([part.streams for part in parts])
    return ArrivedTuples(roots, streams, batch)


class Unfit(NamedTuple):
    """The tuples of one key of a join whose columns do not fit into one batch."""

    parts: Sequence[ArrivedTuples]


FIRST_TUPLES = 500
"""Tuples that the first call of a task gets. Each later call gets as many as should fill a batch (`next_portion`)."""


class Arrivals:
    """Collects the tuples that come to the task of an Arrow step, until they make a call."""

    def __init__(self, join: bool) -> None:
        self._join = join
        self._bucket: bytes | None = None
        self._parts: list[ArrivedTuples] = []
        self._rows = self._size = 0
        self._most = FIRST_TUPLES

    def adapt(self, tuples: int, fill: float) -> None:
        """Sets how many tuples the next call gets, given that this many `tuples` filled a batch to `fill` (1 is
        full)."""
        self._most = next_portion(tuples, fill, self._most, MAX_ROWS)

    def add(self, rows: pa.RecordBatch) -> Iterator[ArrivedTuples | Unfit]:
        """Adds rows. Yields what makes a call: for a join with all tuples of a key, in the order of their origins."""
        columns = [rows.column(name) for name in ("key", "stream", "payload")]
        for number in range(rows.num_rows):
            bucket, stream, payload = (column[number] for column in columns)
            if self._join and bucket.as_py() != self._bucket:
                yield from self.take()
                self._bucket = bucket.as_py()
            self._parts.append(ArrivedTuples.of_row(payload.as_buffer(), stream.as_py()))
            self._rows += len(self._parts[-1])
            self._size += len(payload.as_buffer())
            if not self._join and (self._rows >= self._most or self._size >= MAX_BYTES):
                yield from self.take()

    def take(self) -> Iterator[ArrivedTuples | Unfit]:
        """Yields the tuples that are left, as they make calls, and forgets them."""
        parts, self._parts, self._rows, self._size = self._parts, [], 0, 0
        if not parts:
            return
        if not self._join:
            for numbers, batch in joined([part.batch for part in parts]):
                tuples, begin = _joined([parts[number] for number in numbers], batch), 0
                while begin < len(tuples):
                    yield tuples.slice(begin, end := min(len(tuples), begin + self._most))
                    begin = end
            return
        whole = joined_batches([part.batch for part in parts])
        if whole is None:
            yield from _key_by_key(parts)
            return
        of_bucket = _joined(parts, whole).by_key()
        starts = np.flatnonzero(starts_of(of_bucket.keys))
        begin = 0
        for start in [*starts[1:].tolist(), len(of_bucket)]:
            if start - begin >= self._most or start == len(of_bucket):
                yield of_bucket.slice(begin, start)
                begin = start


def _key_by_key(parts: Sequence[ArrivedTuples]) -> Iterator[ArrivedTuples | Unfit]:
    """Yields the tuples of one key after the other: keys whose columns do not fit together are calls of their own."""
    by_key: dict[bytes, list[ArrivedTuples]] = {}
    for part in parts:
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(part.keys.to_pylist()):
            rows.setdefault(key, []).append(row)
        for key, numbers in rows.items():
            by_key.setdefault(key, []).append(part.take(np.array(numbers, np.int64)))
    for _, of_key in sorted(by_key.items()):
        # A column of nulls alone may have its type from tuples of other keys, which must not part tuples of this key.
        batch = joined_batches([without_types_of_nulls(part.batch) for part in of_key])
        yield Unfit(of_key) if batch is None else _joined(of_key, batch).by_key()


def starts_of(keys: pa.Array) -> Bools:
    """Returns for each key whether it differs from the one before it; the first one does."""
    starts = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        starts[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return starts
