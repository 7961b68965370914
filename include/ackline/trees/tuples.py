"""Tuples between two calls: packed for record handlers, or as Arrow columns for Arrow handlers.

Both have the same edges and streams beside their content, so one accounting serves both. Tuples go from packed to
columns and back where a step of one kind takes what a step of the other kind has emitted.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ackline.trees.columns import columns_of, joined, values_of
from ackline.trees.payload import Key, Payload, pack, pickled, unpack
from ackline.trees.rows import Edges, Int64s, Lists, runs_of_size

MAX_ROWS = 10_000
"""Rows of an Arrow batch, at most, and tuples of a batch of calls, about at most."""
MAX_BYTES = 16 << 20
"""Bytes of an Arrow batch, about at most: the JVM takes a batch whole."""
ROW_BYTES = 100
"""About how many bytes a tuple takes for each of its roots, at least once, beside its key and payload."""
LEAST_BYTES = -(-MAX_BYTES // MAX_ROWS)
"""Bytes that a packed tuple counts for at least, so that a batch of MAX_BYTES has no more than MAX_ROWS of them."""

_KEY_BYTES, _PAYLOAD = "key_bytes", "payload"


class Packed:
    """Packed keys and values of several tuples (`ackline.trees.payload`)."""

    __slots__ = ("keys", "payloads")

    def __init__(self, keys: list[Key], payloads: list[Payload]) -> None:
        self.keys, self.payloads = keys, payloads

    @classmethod
    def of_columns(cls, batch: pa.RecordBatch) -> "Packed":
        """Returns the tuples of a batch of columns, packed."""
        pairs = [pack(key, value) for key, value in values_of(batch)]
        return cls([key for key, _ in pairs], [payload for _, payload in pairs])

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch) -> "Packed":
        """Returns the tuples of one of the batches that `batches` has yielded."""
        # Several times faster than `to_pylist`.
        keys, payloads = (column.to_numpy(zero_copy_only=False).tolist() for column in batch.columns)
        return cls(keys, payloads)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        """About how many bytes keys and payloads have."""
        return sum(map(len, self.payloads)) + sum(map(len, filter(None, self.keys)))

    def sizes(self) -> list[int]:
        """Returns about how many bytes each tuple has."""
        return [len(key or "") + len(payload) for key, payload in zip(self.keys, self.payloads, strict=True)]

    def take(self, rows: Int64s) -> "Packed":
        """Returns the tuples with these numbers."""
        keys, payloads, numbers = self.keys, self.payloads, rows.tolist()
        return Packed([keys[number] for number in numbers], [payloads[number] for number in numbers])

    def slice(self, start: int, end: int) -> "Packed":
        """Returns the tuples from `start` up to `end`."""
        return Packed(self.keys[start:end], self.payloads[start:end])

    def values(self) -> list[tuple[Any, Any]]:
        """Returns key and value of each tuple."""
        return list(map(unpack, self.keys, self.payloads))

    def batches(self) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        """Yields the tuples as batches for another task, each with the numbers of its tuples. A batch holds tuples of
        one kind: texts, flat values, or pickles with the bytes of their keys. None has many more bytes than
        MAX_BYTES."""
        of_keys, of_payloads = set(map(type, self.keys)), set(map(type, self.payloads))
        if len(of_payloads) == 1 and bytes not in of_keys:  # usual
            kinds = np.full(len(self), str in of_payloads)
        else:
            pairs = zip(self.keys, self.payloads, strict=True)
            kinds = np.array([2 if type(key) is bytes else type(payload) is str for key, payload in pairs])
        for kind in (0, 1, 2):
            of_kind = np.flatnonzero(kinds == kind)
            if len(of_kind):
                packed = self if len(of_kind) == len(self) else self.take(of_kind)
                runs = ((0, len(packed)),) if packed.size < MAX_BYTES else runs_of_size(packed.sizes(), MAX_BYTES)
                for start, end in runs:
                    yield from packed.slice(start, end)._of_kind(kind, of_kind[start:end])

    def _of_kind(self, kind: int, rows: Int64s) -> Iterator[tuple[Int64s, pa.RecordBatch]]:
        key_type, payload_type = (pa.binary() if kind == 2 else pa.string()), pa.string() if kind == 1 else pa.binary()
        try:
            columns = [pa.array(self.keys, key_type), pa.array(self.payloads, payload_type)]
        except UnicodeEncodeError:  # half of a surrogate pair, which no column of texts holds
            pairs = [pickled(*unpack(key, payload)) for key, payload in zip(self.keys, self.payloads, strict=True)]
            columns, kind = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)], 2
        yield rows, pa.RecordBatch.from_arrays(columns, names=[_KEY_BYTES if kind == 2 else "key", _PAYLOAD])


def has_key_bytes(batch: pa.RecordBatch) -> bool:
    """Returns whether the first column of a batch of tuples holds the bytes of keys, and not the keys."""
    return list(batch.schema.names) == [_KEY_BYTES, _PAYLOAD] and bool(pa.types.is_binary(batch.schema.types[0]))


Content = Any
"""Keys and values of tuples: `Packed`, or a RecordBatch whose first column holds the keys."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Tuples with the number of the stream that each was emitted to, and the edges that lead to it."""

    streams: Int64s
    edges: Edges
    content: Content

    def __len__(self) -> int:
        return len(self.streams)

    @property
    def size(self) -> int:
        """About how many bytes the tuples count for in a batch."""
        size = size_of(self.content) + ROW_BYTES * max(len(self.edges.ids), len(self))
        return max(size, LEAST_BYTES * len(self)) if isinstance(self.content, Packed) else size

    def take(self, rows: Int64s) -> "Tuples":
        """Returns the tuples with these numbers."""
        return Tuples(self.streams[rows], self.edges.take(rows), taken(self.content, rows))

    def slice(self, start: int, end: int) -> "Tuples":
        """Returns the tuples from `start` up to `end`."""
        content = self.content
        part = content.slice(start, end if isinstance(content, Packed) else end - start)
        return Tuples(self.streams[start:end], self.edges.slice(start, end), part)


def size_of(content: Content) -> int:
    """Returns about how many bytes keys and values have."""
    return content.size if isinstance(content, Packed) else int(content.nbytes)


def sizes_in(content: Content) -> Sequence[int]:
    """Returns about how many bytes each tuple has; of columns, each has the mean."""
    if isinstance(content, Packed):
        return content.sizes()
    return [int(content.nbytes) // max(1, content.num_rows)] * int(content.num_rows)


def values_in(content: Content) -> list[tuple[Any, Any]]:
    """Returns key and value of each tuple."""
    pairs: list[tuple[Any, Any]] = content.values() if isinstance(content, Packed) else values_of(content)
    return pairs


def taken(content: Content, rows: Int64s) -> Content:
    """Returns the content of the tuples with these numbers."""
    return content.take(rows) if isinstance(content, Packed) else content.take(pa.array(rows))


def packed(parts: Sequence[Tuples]) -> Tuples:
    """Returns the tuples of all parts as one, packed."""
    contents = [part.content if isinstance(part.content, Packed) else Packed.of_columns(part.content) for part in parts]
    if len(parts) == 1:
        return Tuples(parts[0].streams, parts[0].edges, contents[0])
    keys = list(chain.from_iterable(content.keys for content in contents))
    payloads = list(chain.from_iterable(content.payloads for content in contents))
    streams = np.concatenate([part.streams for part in parts])
    return Tuples(streams, Edges.joined([part.edges for part in parts]), Packed(keys, payloads))


@dataclass(frozen=True, slots=True)
class EmittedRows:
    """What calls of one step have emitted to one stream. `inputs` has for each tuple the inputs that it is anchored to,
    by their numbers among those of the calls. `calls` has the number of its call, and `places` its place among what the
    call has emitted. Of an Arrow handler a call is what is said about one input, or in a join about one key; the number
    is -1 for a row that came from no input. `hidden` has fields of a value that no message shows, by the number of
    the tuple."""

    stream: str
    inputs: Lists
    calls: Int64s
    places: Int64s
    content: Content
    hidden: Mapping[int, Collection[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.calls)

    def take(self, rows: Int64s) -> "EmittedRows":
        """Returns the tuples with these numbers."""
        hidden = {}
        if self.hidden:
            hidden = {place: self.hidden[row] for place, row in enumerate(rows.tolist()) if row in self.hidden}
        content = taken(self.content, rows)
        return EmittedRows(self.stream, self.inputs.take(rows), self.calls[rows], self.places[rows], content, hidden)


class Refused(NamedTuple):
    """A tuple that no Arrow column can hold: the edges that lead to it, and the reason."""

    edges: Edges
    reason: str


def as_columns(parts: Sequence[Tuples]) -> Iterator[Tuples | Refused]:
    """Yields the tuples of all parts as columns: as one, or as several where their columns do not fit together. A tuple
    that no column can hold is refused."""
    columns = [part for part in parts if not isinstance(part.content, Packed)]
    of_streams: dict[int, list[Tuples]] = {}
    for part in parts:
        if isinstance(part.content, Packed):
            of_streams.setdefault(int(part.streams[0]), []).append(part)
    for stream, of_stream in of_streams.items():
        whole = packed(of_stream)
        for start in range(0, len(whole), MAX_ROWS):
            some = whole.slice(start, min(len(whole), start + MAX_ROWS))
            assert isinstance(some.content, Packed)
            pairs = some.content.values()
            converted = columns_of([key for key, _ in pairs], [value for _, value in pairs])
            for numbers, batch in converted.batches:
                columns.append(Tuples(np.full(len(numbers), stream), some.edges.take(numbers), batch))
            for number, reason in converted.refused.items():
                yield Refused(some.edges.slice(number, number + 1), reason)
    if columns:
        yield from joined_columns(columns)


def joined_columns(parts: Sequence[Tuples]) -> Iterator[Tuples]:
    """Yields the tuples of all parts, which are columns, as one, or as several where they do not fit together."""
    for numbers, batch in joined([part.content for part in parts]):
        of = [parts[number] for number in numbers]
        yield Tuples(np.concatenate([part.streams for part in of]), Edges.joined([part.edges for part in of]), batch)
