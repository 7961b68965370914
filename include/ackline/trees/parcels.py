"""Tuples on their way to other tasks: the rows between two Spark tasks, and what a task makes of those that arrive.

A row, a parcel, holds many tuples as Arrow columns: those whose keys are in one bucket. So the stages between two steps
copy a few rows instead of one for each tuple. Tuples of one key are in one bucket, whichever task sends them, so they
come to one task. A join gets the tuples of one bucket after those of another, and sorts them itself by key and origin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.offsets import Bools
from ackline.pipeline.topology import Step
from ackline.trees.columns import bytes_of_keys, joined, joined_batches, without_types_of_nulls
from ackline.trees.payload import Key, key_bytes
from ackline.trees.rows import Edges, Int64s, Roots, rows_of, runs_of_size
from ackline.trees.tuples import MAX_BYTES, Content, Packed, Tuples, has_key_bytes

_ROOT = pa.struct([("tp", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32()), ("edge", pa.uint64())])
_EDGES = "_edges"
"""The name of the first column of a parcel. Its other columns are those of the tuples, which may have this name, too:
columns are found by their places."""
_BUCKETS_A_PART, _LEAST_BUCKETS = 8, 32
"""Buckets of the keys of a join: for each part, and at least. A join holds the tuples of one bucket at once. Any other
step has one bucket a part, because each bucket of a batch is a stream of Arrow of its own."""


def parcel_rows(step: Step, tuples: Tuples, roots: Roots, parts: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows that hold the tuples for the `parts` tasks of a step, given the roots of their edges."""
    if not isinstance(tuples.content, Packed):
        yield from _rows_of_columns(step, tuples, roots, parts)
        return
    for rows, batch in tuples.content.batches():
        some = Tuples(tuples.streams[rows], tuples.edges.take(rows), batch)
        yield from _rows_of_columns(step, some, roots, parts)


def _rows_of_columns(step: Step, tuples: Tuples, roots: Roots, parts: int) -> Iterator[pa.RecordBatch]:
    buckets = max(_LEAST_BUCKETS, _BUCKETS_A_PART * parts) if step.join else parts
    of_rows, streams = _buckets(tuples.content, buckets), tuples.streams
    order = np.lexsort([streams, of_rows])
    sent, of_rows, streams = tuples.take(order), of_rows[order], streams[order]
    content: pa.RecordBatch = sent.content
    edges = _edge_column(sent.edges, roots)
    batch = pa.RecordBatch.from_arrays([edges, *content.columns], names=[_EDGES, *content.schema.names])
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


_OF_TEXT, _OF_NONE = crc32(key_bytes("")), crc32(key_bytes(None))


def _buckets(batch: pa.RecordBatch, buckets: int) -> Int64s:
    """Returns the bucket of the key of each tuple: the same for keys that are equal, whatever their types."""
    if buckets == 1:
        return np.zeros(batch.num_rows, np.int64)
    keys = batch.column(0)
    if pa.types.is_string(keys.type):  # the checksum of a mark and a text, without a copy of both
        texts = keys.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
        hashes = [_OF_NONE if text is None else crc32(text, _OF_TEXT) for text in texts]
    else:
        of_keys = keys if has_key_bytes(batch) else bytes_of_keys(keys)
        hashes = list(map(crc32, of_keys.to_numpy(zero_copy_only=False).tolist()))
    return np.array(hashes, np.int64) % buckets


def _edge_column(edges: Edges, roots: Roots) -> pa.ListArray:
    """Returns for each tuple its roots, each with the id of the edge that leads to the tuple."""
    tps, offsets, attempts = (column[edges.roots] for column in roots.columns())
    arrays = [pa.array(part) for part in (tps.astype(np.int32), offsets, attempts.astype(np.int32), edges.ids)]
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


# ---- in the task of the step ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """Tuples that have come from other tasks. The roots of their edges are numbers of `origins`: topic-partitions,
    offsets and attempts."""

    content: Tuples
    origins: tuple[Int64s, Int64s, Int64s]

    @classmethod
    def of_row(cls, payload: pa.Buffer, stream: int) -> "Arrived":
        """Returns the tuples of one row, as columns."""
        with pa.ipc.open_stream(payload) as reader:
            batch = reader.read_next_batch()
        flat, counts = batch.column(0).flatten(), pc.list_value_length(batch.column(0)).to_numpy().astype(np.int64)
        tps, offsets, attempts = (flat.field(name).to_numpy().astype(np.int64) for name in ("tp", "offset", "attempt"))
        edges = Edges(flat.field("edge").to_numpy(), np.arange(len(tps)), counts)
        columns = pa.RecordBatch.from_arrays(batch.columns[1:], names=batch.schema.names[1:])
        return cls(Tuples(np.full(batch.num_rows, stream), edges, columns), (tps, offsets, attempts))

    @classmethod
    def joined(cls, parts: "Sequence[Arrived]", content: Content) -> "Arrived":
        """Returns the tuples of all parts, given their content as one."""
        firsts = np.cumsum([0, *(len(part.origins[0]) for part in parts[:-1])])
        edges = Edges.joined([
            Edges(part.content.edges.ids, part.content.edges.roots + first, part.content.edges.counts)
            for part, first in zip(parts, firsts.tolist(), strict=True)
        ])  # fmt: skip
        tps, offsets, attempts = (np.concatenate([part.origins[n] for part in parts]) for n in range(3))
        streams = np.concatenate([part.content.streams for part in parts])
        return cls(Tuples(streams, edges, content), (tps, offsets, attempts))

    def __len__(self) -> int:
        return len(self.content)

    @property
    def batch(self) -> pa.RecordBatch:
        """The tuples as columns."""
        assert not isinstance(self.content.content, Packed)
        return self.content.content

    def packed(self) -> "Arrived":
        """Returns the tuples packed, which have come as columns for a record handler."""
        tuples = self.content
        return Arrived(Tuples(tuples.streams, tuples.edges, Packed.of_batch(self.batch)), self.origins)

    def take(self, rows: Int64s) -> "Arrived":
        """Returns the tuples with these numbers."""
        return Arrived(self.content.take(rows), self.origins)

    def slice(self, start: int, end: int) -> "Arrived":
        """Returns the tuples from `start` up to `end`."""
        return Arrived(self.content.slice(start, end), self.origins)

    @property
    def keys(self) -> pa.Array:
        """The bytes of the keys, which are equal for equal keys. Only for columns."""
        return bytes_of_keys(self.batch.column(0))

    def by_key(self, keys: pa.Array) -> Int64s:
        """Returns the numbers of the tuples in the order of their `keys` and origins; within a key, those of no record
        come first."""
        edges = self.content.edges
        has_root = edges.counts > 0
        first = (np.cumsum(edges.counts) - edges.counts)[has_root]
        of_edges = [*(column[edges.roots] for column in self.origins), edges.ids.view(np.int64)]
        columns = {"key": keys}
        for name, values, otherwise in zip(("tp", "offset", "attempt", "edge"), of_edges, (-1, 0, 0, 0), strict=True):
            of_rows = np.full(len(edges), otherwise, np.int64)
            of_rows[has_root] = values[first]
            columns[name] = pa.array(of_rows)
        order = pc.sort_indices(pa.table(columns), [(name, "ascending") for name in columns])
        return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]

    def tuples(self, roots: Roots) -> Tuples:
        """Returns the tuples with their edges, whose roots are added to those of the batch."""
        edges = self.content.edges
        tps, offsets, attempts = (column[edges.roots] for column in self.origins)
        numbered = Edges(edges.ids, roots.add(tps, offsets, attempts), edges.counts)
        return Tuples(self.content.streams, numbered, self.content.content)


class Unfit(NamedTuple):
    """The tuples of one key of a join whose columns do not fit into one batch."""

    parts: Sequence[Arrived]


FIRST_TUPLES = 500
"""Tuples that the first call of a task gets. Each later call gets as many as should fill a batch (`next_portion`)."""


class Arrivals:
    """Collects the tuples that come to the task of a step, until they make a call of an Arrow handler, or calls of a
    record handler."""

    def __init__(self, step: Step, batches: bool) -> None:
        self._join, self._batches = step.join, batches
        self._bucket: bytes | None = None
        self._parts: list[Arrived] = []
        self._rows = self._size = 0
        self._most = FIRST_TUPLES

    def adapt(self, tuples: int, fill: float) -> None:
        """Sets how many tuples the next call gets, given that this many `tuples` filled a batch to `fill` (1 is
        full)."""
        self._most = next_portion(tuples, fill, self._most, MAX_CALL)

    def add(self, rows: pa.RecordBatch) -> Iterator[Arrived | Unfit]:
        """Adds rows. Yields what makes a call: for a join with all tuples of a key, in the order of their origins."""
        columns = [rows.column(name) for name in ("key", "stream", "payload")]
        for number in range(rows.num_rows):
            bucket, stream, payload = (column[number] for column in columns)
            if self._join and bucket.as_py() != self._bucket:
                yield from self.take()
                self._bucket = bucket.as_py()
            self._parts.append(Arrived.of_row(payload.as_buffer(), stream.as_py()))
            self._rows += len(self._parts[-1])
            self._size += len(payload.as_buffer())
            if not self._join and (not self._batches or self._rows >= self._most or self._size >= MAX_BYTES):
                yield from self.take()

    def take(self) -> Iterator[Arrived | Unfit]:
        """Yields the tuples that are left, as they make calls, and forgets them."""
        parts, self._parts, self._rows, self._size = self._parts, [], 0, 0
        if not parts:
            return
        if not self._batches:
            yield from self._packed([part.packed() for part in parts])
        elif self._join:
            yield from self._joined(parts)
        else:
            for numbers, batch in joined([part.batch for part in parts]):
                arrived, begin = Arrived.joined([parts[number] for number in numbers], batch), 0
                while begin < len(arrived):
                    yield arrived.slice(begin, end := min(len(arrived), begin + self._most))
                    begin = end

    def _packed(self, parts: Sequence[Arrived]) -> Iterator[Arrived]:
        """Yields tuples for a record handler. Those of a join are lists, because the tuples of a bucket may have more
        than Arrow holds in one batch."""
        if not self._join:
            yield from parts
            return
        contents = [part.content.content for part in parts]
        keys, payloads = (
            list(chain.from_iterable(getattr(content, name) for content in contents)) for name in ("keys", "payloads")
        )
        whole = Arrived.joined(parts, Packed(keys, payloads))
        yield whole.take(whole.by_key(pa.array(numbers_of_keys(keys))))

    def _joined(self, parts: Sequence[Arrived]) -> Iterator[Arrived | Unfit]:
        whole = joined_batches([part.batch for part in parts])
        if whole is None:
            yield from _key_by_key(parts)
            return
        of_bucket = _sorted(Arrived.joined(parts, whole))
        starts = np.flatnonzero(starts_of(of_bucket.keys))
        begin = 0
        for start in [*starts[1:].tolist(), len(of_bucket)]:
            if start - begin >= self._most or start == len(of_bucket):
                yield of_bucket.slice(begin, start)
                begin = start


def _sorted(arrived: Arrived) -> Arrived:
    return arrived.take(arrived.by_key(arrived.keys))


def _key_by_key(parts: Sequence[Arrived]) -> Iterator[Arrived | Unfit]:
    """Yields the tuples of one key after the other: keys whose columns do not fit together are calls of their own."""
    by_key: dict[bytes, list[Arrived]] = {}
    for part in parts:
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(part.keys.to_pylist()):
            rows.setdefault(key, []).append(row)
        for key, numbers in rows.items():
            by_key.setdefault(key, []).append(part.take(np.array(numbers, np.int64)))
    for _, of_key in sorted(by_key.items()):
        # A column of nulls alone may have its type from tuples of other keys, which must not part tuples of this key.
        batch = joined_batches([without_types_of_nulls(part.batch) for part in of_key])
        yield Unfit(of_key) if batch is None else _sorted(Arrived.joined(of_key, batch))


def numbers_of_keys(keys: Sequence[Key]) -> Int64s:
    """Returns a number for each key of packed tuples: the same for equal keys, in the order of their first places."""
    numbers: dict[bytes, int] = {}
    return np.array([
        numbers.setdefault(key if type(key) is bytes else key_bytes(key), len(numbers)) for key in keys
    ], np.int64)  # fmt: skip


def starts_of(keys: pa.Array) -> Bools:
    """Returns for each key whether it differs from the one before it; the first one does."""
    starts = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        starts[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return starts


MAX_CALL = 10_000
"""Tuples of one call of an Arrow handler, at most."""


def next_portion(handled: int, fill: float, before: int, most: int) -> int:
    """Returns how many records or tuples the next call gets: as many as fill a batch, if they emit what the last ones
    did. The last call got `handled`, which filled a batch to `fill` (1 is full), and could have got `before`. The
    number is at most `most`, and at most twice `before`: a few that emit little do not make the next call large."""
    return max(1, min(int(handled / max(fill, 1e-9)), 2 * before, most))
