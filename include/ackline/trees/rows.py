"""The rows that travel from step to step and to the acker, and the edges of a batch of calls as columns.

One schema serves all three kinds of rows:
- A tuple has a `step`, the number of the step that it is addressed to, and the number of the `stream` that it was
  emitted to (its place in `Topology.streams`). The other rows have none.
- A row of events holds what one task did for roots of one block of offsets (`EventFormat`). A root, which is one
  attempt at a record, is complete when the XOR of its events is 0, and each sum of `open[N]` is.
- A manifest is what a task did in all; it has the `tp` MANIFEST.

Spark partitions rows by `key`: the bytes of a tuple's key, the block of offsets of events, a random id of a manifest.

The id of an edge is 64 bits that depend on the attempt and on the place in the tree, and on nothing else. A task that
is run again makes the same ids, and a retry makes new ones: its number is part of the seed. Storm draws its ids at
random; here a second execution of a task must not differ from the first.

One Python object for each edge would cost more than a small handler does. So a call only notes the numbers of edges,
and NumPy computes the ids of thousands of edges at the end of the batch.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId

UNTRACKED = -1
"""The `tp` of a tuple that belongs to no record."""
MANIFEST = -2
"""The `tp` of a manifest."""
FAILED = 1 << 32
"""What a failed tuple adds to the number of acked ones of its step, so that one sum holds both numbers."""


class Root(NamedTuple):
    """An attempt at a record. `tp` is the index of the topic-partition among those of the job, in their order."""

    tp: int
    offset: int
    attempt: int


Edges = tuple[tuple[Root, int], ...]
"""The roots of a tuple, each with the id of the edge that leads to the tuple."""

ROWS_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("stream", pa.int32()),
        ("tp", pa.int32()),
        ("offset", pa.int64()),
        ("attempt", pa.int32()),
        ("edge", pa.int64()),
        ("edges", pa.binary()),
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


MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 0xD1342543DE82EF95


def mix(number: int) -> int:
    """Returns SplitMix64's finalizer of a number: a bijection of 64 bits that spreads neighbours."""
    number = (number + _GOLDEN) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def seed_of(turn: TurnId, tp: TopicPartition) -> int:
    """Returns the 64-bit seed of the edge ids of a topic-partition. It is the same in each turn of a lane's epoch."""
    text = f"{turn.pipeline}\0{turn.lane}\0{turn.epoch}\0{tp.topic}\0{tp.partition}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def root_id(seed: int, offset: int, attempt: int) -> int:
    """Returns the id of the root edge of one attempt at a record. The ids of all its other edges follow from it."""
    return mix(mix(seed ^ offset) + attempt)


UInt64s = npt.NDArray[np.uint64]


def root_ids(seed: int, offsets: "Int64s", attempts: "Int64s") -> UInt64s:
    """Returns `root_id` of each of several attempts at records of one topic-partition."""
    return _mix(_mix(np.uint64(seed) ^ offsets.astype(np.uint64)) + attempts.astype(np.uint64))


def edge_ids(parents: UInt64s, positions: UInt64s) -> UInt64s:
    """Returns the id of each edge, given the id of its parent edge and its position."""
    return _mix(parents ^ (positions * np.uint64(_STRIDE)))


def _mix(numbers: UInt64s) -> UInt64s:
    """Returns `mix` of each number. Arrays of unsigned numbers wrap around, as `MASK` makes Python's do."""
    numbers = numbers + np.uint64(_GOLDEN)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Any = numbers ^ (numbers >> np.uint64(31))
    return mixed  # type: ignore[no-any-return]


EdgeNumbers = tuple[int, ...]
"""The edges that lead to a tuple, one for each of its roots, by their numbers in `EdgeColumns`."""

Int64s = npt.NDArray[np.int64]
GIVEN = -1
"""The parent of an edge that no call of the batch has made: it leads to a tuple that the batch got."""


@dataclass(frozen=True, slots=True)
class EdgesOfRows:
    """The edges that lead to each of several tuples. `numbers` has those of the first tuple, then those of the next
    one, and so on; `counts` has how many each tuple has."""

    numbers: Int64s
    counts: Int64s

    @classmethod
    def one_each(cls, numbers: Int64s) -> "EdgesOfRows":
        """Returns the edges of tuples that have one edge each."""
        return cls(numbers, np.ones(len(numbers), np.int64))

    @classmethod
    def of(cls, edges: Sequence[EdgeNumbers]) -> "EdgesOfRows":
        """Returns the edges of several tuples, given those of each."""
        counts = np.fromiter(map(len, edges), np.int64, len(edges))
        return cls(np.fromiter(chain.from_iterable(edges), np.int64, int(counts.sum())), counts)

    @classmethod
    def joined(cls, parts: "Sequence[EdgesOfRows]") -> "EdgesOfRows":
        """Returns the edges of the tuples of all parts, one part after the other."""
        return cls(np.concatenate([part.numbers for part in parts]), np.concatenate([part.counts for part in parts]))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> Int64s:
        """For each edge, the number of its tuple."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def take(self, rows: Int64s) -> "EdgesOfRows":
        """Returns the edges of the tuples with these numbers."""
        counts = self.counts[rows]
        if (self.counts == 1).all():  # usual
            return EdgesOfRows(self.numbers[rows], counts)
        starts = np.cumsum(self.counts) - self.counts
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return EdgesOfRows(self.numbers[np.repeat(starts[rows], counts) + within], counts)

    def of_row(self, row: int) -> EdgeNumbers:
        """Returns the edges of one tuple."""
        end = int(self.counts[: row + 1].sum())
        return tuple(self.numbers[end - int(self.counts[row]) : end].tolist())

    def of_rows(self) -> list[EdgeNumbers]:
        """Returns the edges of each tuple."""
        numbers, ends = self.numbers.tolist(), np.cumsum(self.counts).tolist()
        return [tuple(numbers[start:end]) for start, end in pairwise([0, *ends])]


@dataclass(frozen=True, slots=True)
class RootColumns:
    """Different attempts at records, in the order of topic-partition, offset and attempt."""

    tps: Int64s
    offsets: Int64s
    attempts: Int64s

    def root(self, number: int) -> Root:
        """Returns the attempt at a record that has this number."""
        return Root(int(self.tps[number]), int(self.offsets[number]), int(self.attempts[number]))


@dataclass(frozen=True, slots=True)
class Resolved:
    """The ids of edges and the numbers of their roots, by the number of the edge."""

    ids: UInt64s
    root_of: Int64s
    roots: RootColumns

    def edges(self, numbers: EdgeNumbers) -> Edges:
        """Returns the root and the id of each of these edges."""
        return tuple([(self.roots.root(int(self.root_of[number])), int(self.ids[number])) for number in numbers])


def _joined(parts: Sequence[tuple[Int64s, ...]], count: int) -> tuple[Int64s, ...]:
    """Returns `count` columns: those of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate([np.empty(0, np.int64), *(part[n] for part in parts)]) for n in range(count))


class EdgeColumns:
    """Edges with the numbers 0, 1, …: those that lead to the tuples of a batch, and those that its calls make.

    An edge that a call makes has a parent, the edge that led to the call, and a position among the edges of the call.
    The parent has a lower number. The id follows from the parent's id and the position alone.

    The edges of an Arrow handler's call come as arrays, and stay arrays: to make lists of them and arrays again took a
    tenth of a task's time. The single edges after the last array are kept in lists.
    """

    def __init__(self) -> None:
        self._count = self._count_given = 0
        """How many edges, and how many given edges, are in arrays."""
        self._starts: list[int] = []
        """The number of the first edge of each array."""
        self._arrays: list[tuple[Int64s, ...]] = []
        """Parents and positions of edges."""
        self._given: list[tuple[Int64s, ...]] = []
        """Topic-partitions, offsets, attempts and ids of given edges."""
        self.parents: list[int] = []
        self.positions: list[int] = []
        self._tps: list[int] = []
        self._offsets: list[int] = []
        self._attempts: list[int] = []
        self._ids: list[int] = []

    def add_input_edges(
        self, tps: Sequence[int], offsets: Sequence[int], attempts: Sequence[int], ids: Sequence[int]
    ) -> int:
        """Adds edges that lead to tuples of the batch. Returns the number of the first; the others follow."""
        first, number = self._count_given + len(self._tps), self._count + len(self.parents)
        self._tps += tps
        self._offsets += offsets
        self._attempts += attempts
        self._ids += ids
        self.parents += [GIVEN] * len(tps)
        self.positions += range(first, first + len(tps))
        return number

    def add_input_edge(self, tp: int, offset: int, attempt: int, edge: int) -> int:
        """Adds an edge that leads to a tuple of the batch. Returns its number."""
        self.parents.append(GIVEN)
        self.positions.append(self._count_given + len(self._tps))
        self._tps.append(tp)
        self._offsets.append(offset)
        self._attempts.append(attempt)
        self._ids.append(edge)
        return self._count + len(self.parents) - 1

    def add_given(self, tps: Int64s, offsets: Int64s, attempts: Int64s, ids: Int64s) -> Int64s:
        """Adds edges that lead to tuples of the batch, with the 64 bits of their ids. Returns their numbers."""
        self._seal()
        self._given.append((tps, offsets, attempts, ids))
        places = np.arange(self._count_given, self._count_given + len(tps))
        self._count_given += len(tps)
        return self._add(np.full(len(tps), GIVEN, np.int64), places)

    def add_edges_of_rows(self, parents: EdgesOfRows, positions: Int64s) -> EdgesOfRows:
        """Adds an edge behind each of `parents`, at the position of its row. Returns their numbers."""
        self._seal()
        return EdgesOfRows(self._add(parents.numbers, np.repeat(positions, parents.counts)), parents.counts)

    def _add(self, parents: Int64s, positions: Int64s) -> Int64s:
        first = self._count
        self._starts.append(first)
        self._arrays.append((parents, positions))
        self._count += len(parents)
        return np.arange(first, self._count)

    def add_emitted_edges(self, parents: EdgeNumbers, position: int) -> EdgeNumbers:
        """Adds an edge behind each of `parents`, at a position among the call's edges. Returns their numbers."""
        number = self._count + len(self.parents)
        if len(parents) == 1:  # usual
            self.parents.append(parents[0])
            self.positions.append(position)
            return (number,)
        self.parents += parents
        self.positions += [position] * len(parents)
        return tuple(range(number, number + len(parents)))

    def root(self, number: int) -> Root:
        """Returns the attempt at a record to whose tree an edge belongs."""
        parent, position = self._edge(number)
        while parent != GIVEN:
            parent, position = self._edge(parent)
        if position >= self._count_given:
            place = position - self._count_given
            return Root(self._tps[place], self._offsets[place], self._attempts[place])
        return Root(*(int(column[position]) for column in self._given_edges()[:3]))

    def _edge(self, number: int) -> tuple[int, int]:
        """Returns parent and position of an edge."""
        if number >= self._count:
            return self.parents[number - self._count], self.positions[number - self._count]
        place = bisect_right(self._starts, number) - 1
        parents, positions = self._arrays[place]
        return int(parents[number - self._starts[place]]), int(positions[number - self._starts[place]])

    def roots_of_given(self, numbers: Int64s) -> Int64s:
        """Returns a number for the root of each of these edges, which lead to tuples of the batch. The numbers are in
        the order of the roots."""
        roots, _ = self._distinct_roots()
        return roots[self._edges()[1][numbers]]

    def _seal(self) -> None:
        """Moves the edges in the lists to the end of the arrays, so that another array can follow them."""
        if self._tps:
            columns = self._tps, self._offsets, self._attempts, np.array(self._ids, np.uint64).view(np.int64)
            self._given.append(tuple(np.asarray(column, np.int64) for column in columns))
            self._count_given += len(self._tps)
            self._tps, self._offsets, self._attempts, self._ids = [], [], [], []
        if self.parents:
            self._add(np.array(self.parents, np.int64), np.array(self.positions, np.int64))
            self.parents, self.positions = [], []

    def _edges(self) -> Sequence[Int64s]:
        """Returns parent and position of each edge."""
        self._seal()
        return _joined(self._arrays, 2)

    def _given_edges(self) -> Sequence[Int64s]:
        """Returns topic-partitions, offsets, attempts and ids of the edges that lead to tuples of the batch."""
        self._seal()
        self._given = [_joined(self._given, 4)]
        return self._given[0]

    def resolve(self) -> Resolved:
        """Returns the ids and the roots of all edges that were added."""
        parents, positions = self._edges()
        given_ids = self._given_edges()[3].view(np.uint64)
        root_numbers, roots = self._distinct_roots()
        ids, root_of = np.empty(len(parents), np.uint64), np.empty(len(parents), np.int64)
        known = parents == GIVEN
        given, left = np.flatnonzero(known), np.flatnonzero(~known)
        ids[given], root_of[given] = given_ids, root_numbers
        while len(left):  # once for each step in a row that runs in this task
            ready = known[parents[left]]
            now, left = left[ready], left[~ready]
            ids[now] = edge_ids(ids[parents[now]], positions[now].view(np.uint64))
            root_of[now] = root_of[parents[now]]
            known[now] = True
        return Resolved(ids, root_of, roots)

    def _distinct_roots(self) -> tuple[Int64s, RootColumns]:
        """Returns for each given edge the number of its root, and the roots."""
        columns = self._given_edges()[:3]
        order = np.lexsort(columns[::-1])
        begins = np.logical_or.reduce([changes(column[order]) for column in columns])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        return numbers, RootColumns(*(column[order[begins]] for column in columns))
