"""The rows that travel from step to step and to the acker, and the edges of a batch of calls as columns.

One schema serves all three kinds of rows:
- A parcel of tuples has a `step`, the number of the step that they are addressed to, and the number of the `stream`
  that they were emitted to (its place in `Topology.streams`). The other rows have none. `tp` is the bucket of the keys.
- A row of events holds what one task did for roots of one block of offsets (`EventFormat`). A root, which is one
  attempt at a record, is complete when the XOR of its events is 0, and each sum of `open[N]` is.
- A manifest is what a task did in all; it has the `tp` MANIFEST.

Spark partitions parcels by their bucket, and the other rows by `key`: the block of offsets of events, a random id of a
manifest.

The id of an edge is 64 bits that depend on the attempt and on the place in the tree, and on nothing else. A task that
is run again makes the same ids, and a retry makes new ones: its number is part of the seed. Storm draws its ids at
random; here a second execution of a task must not differ from the first.

One Python object for each edge would cost more than a small handler does. So edges are columns (`Edges`), and NumPy
computes the ids of thousands of edges at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId

MANIFEST = -2
"""The `tp` of a manifest."""
FAILED = 1 << 32
"""What a failed tuple adds to the number of acked ones of its step, so that one sum holds both numbers."""


class Root(NamedTuple):
    """An attempt at a record. `tp` is the index of the topic-partition among those of the job, in their order."""

    tp: int
    offset: int
    attempt: int


ROWS_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("stream", pa.int32()),
        ("tp", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)


def rows_of(columns: dict[str, Any], count: int) -> pa.RecordBatch:
    """Returns rows with these columns; the others are null."""
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in ROWS_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)


def changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it differs from the one before it; the first one does."""
    changed = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def runs_of_size(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yields first and end of each run of rows that have about `most` bytes together."""
    ends = np.cumsum(np.array(sizes, np.int64))
    numbers = (ends - sizes) // most
    return pairwise([*np.flatnonzero(np.diff(numbers, prepend=-1)).tolist(), len(sizes)])


_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 0xD1342543DE82EF95


def seed_of(turn: TurnId, tp: TopicPartition) -> int:
    """Returns the 64-bit seed of the edge ids of a topic-partition. It is the same in each turn of a lane's epoch."""
    text = f"{turn.pipeline}\0{turn.lane}\0{turn.epoch}\0{tp.topic}\0{tp.partition}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


UInt64s = npt.NDArray[np.uint64]


def root_ids(seeds: UInt64s, offsets: "Int64s", attempts: "Int64s") -> UInt64s:
    """Returns the id of the root edge of each of several attempts at records, given the seeds of their
    topic-partitions. The ids of all other edges follow from it."""
    return _mix(_mix(seeds ^ offsets.astype(np.uint64)) + attempts.astype(np.uint64))


def edge_ids(parents: UInt64s, positions: UInt64s) -> UInt64s:
    """Returns the id of each edge, given the id of its parent edge and its position."""
    return _mix(parents ^ (positions * np.uint64(_STRIDE)))


def _mix(numbers: UInt64s) -> UInt64s:
    """Returns SplitMix64's finalizer of each number: a bijection of 64 bits that spreads neighbours."""
    numbers = numbers + np.uint64(_GOLDEN)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Any = numbers ^ (numbers >> np.uint64(31))
    return mixed  # type: ignore[no-any-return]


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of numbers: those of the first list, then those of the next one, and so on. `counts` has how many numbers
    each list has."""

    numbers: Int64s
    counts: Int64s

    @classmethod
    def one_each(cls, numbers: Int64s) -> "Lists":
        """Returns lists of one number each."""
        return cls(numbers, np.ones(len(numbers), np.int64))

    @classmethod
    def ranges(cls, starts: Int64s, counts: Int64s) -> "Lists":
        """Returns for each start the list of this many numbers from there on."""
        ends = np.cumsum(counts)
        within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
        return cls(np.repeat(starts, counts) + within, counts)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> Int64s:
        """For each number, which list it is in."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def take(self, rows: Int64s) -> "Lists":
        """Returns the lists with these numbers."""
        places, counts = _places(self.counts, rows)
        return Lists(self.numbers[places], counts)


def _places(counts: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Returns where in columns the parts of some rows are, and how many parts each has."""
    chosen = counts[rows]
    if len(counts) and counts.min() == counts.max() == 1:  # usual
        return rows, chosen
    return Lists.ranges((np.cumsum(counts) - counts)[rows], chosen).numbers, chosen


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges that lead to each of several tuples: those of the first tuple, then those of the next one, and so on.
    Each has an id, and the number of the attempt at a record to whose tree it belongs, in the `Roots` of the batch.
    `counts` has how many edges each tuple has. The edges of one tuple are in the order of their roots."""

    ids: UInt64s
    roots: Int64s
    counts: Int64s
    _starts: list[Int64s] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def none(cls, tuples: int) -> "Edges":
        """Returns the edges of this many tuples that belong to no record."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.int64), np.zeros(tuples, np.int64))

    @classmethod
    def joined(cls, parts: "Sequence[Edges]") -> "Edges":
        """Returns the edges of the tuples of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.empty(0, np.uint64), *(part.ids for part in parts)])
        roots, counts = (
            np.concatenate([np.empty(0, np.int64), *columns])
            for columns in ((part.roots for part in parts), (part.counts for part in parts))
        )
        return cls(ids, roots, counts)

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, rows: Int64s) -> "Edges":
        """Returns the edges of the tuples with these numbers."""
        places, counts = _places(self.counts, rows)
        return Edges(self.ids[places], self.roots[places], counts)

    def slice(self, start: int, end: int) -> "Edges":
        """Returns the edges of the tuples from `start` up to `end`."""
        if not self._starts:  # once: a call may ask for one tuple after the other
            self._starts.append(np.append(0, np.cumsum(self.counts)))
        first, last = (int(self._starts[0][min(place, len(self))]) for place in (start, end))
        return Edges(self.ids[first:last], self.roots[first:last], self.counts[start:end])

    def behind(self, positions: Int64s) -> "Edges":
        """Returns an edge behind each edge, at the position of its tuple. The position is that of the new tuple among
        those of the call."""
        ids = edge_ids(self.ids, np.repeat(positions, self.counts).view(np.uint64))
        return Edges(ids, self.roots, self.counts)


class Roots:
    """The attempts at records to whose trees the edges of a batch belong, by number. An attempt has several numbers if
    the batch got several of its tuples."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int64s, Int64s, Int64s]] = []
        self._count = 0

    def add(self, tps: Int64s, offsets: Int64s, attempts: Int64s) -> Int64s:
        """Adds attempts. Returns their numbers."""
        first, self._count = self._count, self._count + len(tps)
        self._parts.append((tps, offsets, attempts))
        return np.arange(first, self._count)

    def columns(self) -> tuple[Int64s, Int64s, Int64s]:
        """Returns topic-partitions, offsets and attempts, by number."""
        if len(self._parts) != 1:
            none = np.empty(0, np.int64)
            tps, offsets, attempts = (np.concatenate([none, *(part[n] for part in self._parts)]) for n in range(3))
            self._parts = [(tps, offsets, attempts)]
        return self._parts[0]

    def root(self, number: int) -> Root:
        """Returns the attempt at a record that has this number."""
        tps, offsets, attempts = self.columns()
        return Root(int(tps[number]), int(offsets[number]), int(attempts[number]))

    def distinct(self) -> tuple[Int64s, Int64s]:
        """Returns for each number the place of its attempt among the different ones, which are in the order of
        topic-partition, offset and attempt; and for each place one number of its attempt."""
        columns = self.columns()
        order = np.lexsort(columns[::-1])
        begins = np.logical_or.reduce([changes(column[order]) for column in columns])
        places = np.empty(len(order), np.int64)
        places[order] = np.cumsum(begins) - 1
        return places, order[begins]


def merged(inputs: Lists, given: Edges, roots: Roots) -> Edges:
    """Returns the edges that lead to each of several new tuples from the roots of its inputs, which are numbers of
    tuples that have the edges `given`: the first edge of each root, in the order of the roots."""
    of_inputs = given.take(inputs.numbers)
    rows = np.repeat(inputs.rows, of_inputs.counts)
    ids, of_roots = of_inputs.ids, of_inputs.roots
    if (inputs.counts > 1).any():
        places = roots.distinct()[0][of_roots]
        order = np.lexsort([np.arange(len(ids)), places, rows])
        rows, places = rows[order], places[order]
        first = changes(rows) | changes(places)
        chosen = order[first]
        ids, of_roots, rows = ids[chosen], of_roots[chosen], rows[first]
    return Edges(ids, of_roots, np.bincount(rows, minlength=len(inputs)))
