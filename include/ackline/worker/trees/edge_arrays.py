"""The edges of a batch of calls of which some are calls for batches of tuples: arrays of edges, and single ones.

The edges of a call for a batch come as arrays, and stay arrays: to make lists of them and arrays again took a tenth of
a task's time. The single edges between two arrays are kept in lists, as `EdgeColumns` does.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from ackline.worker.trees.rows import GIVEN, EdgeColumns, EdgeNumbers, EdgesOfRows, Int64s, Root

Columns = tuple[Int64s, ...]


class EdgeArrays(EdgeColumns):
    """Edges with the numbers 0, 1, …, as `EdgeColumns` has them."""

    def __init__(self) -> None:
        super().__init__()
        self._count = self._count_given = 0
        """Edges, and edges that lead to tuples of the batch, before those in the lists."""
        self._starts: list[int] = []
        self._arrays: list[Columns] = []
        """Parents and positions of the edges before those in the lists, and the number of each array's first edge."""
        self._given: list[Columns] = []
        """Topic-partitions, offsets, attempts and ids of the given edges before those in the lists."""

    def add_given(self, tps: Int64s, offsets: Int64s, attempts: Int64s, ids: Int64s) -> Int64s:
        """Adds edges that lead to tuples of the batch; `ids` are the ids' 64 bits. Returns their numbers."""
        self._seal()
        self._given.append((tps, offsets, attempts, ids))
        places = np.arange(self._count_given, self._count_given + len(tps))
        self._count_given += len(tps)
        return self._add(np.full(len(tps), GIVEN, np.int64), places)

    def add_edges_of_rows(self, parents: EdgesOfRows, positions: Int64s) -> EdgesOfRows:
        """Adds the edges that leave `parents`, those of each row at the position of the row. Returns their numbers."""
        self._seal()
        return EdgesOfRows(self._add(parents.numbers, np.repeat(positions, parents.counts)), parents.counts)

    def add_input_edge(self, tp: int, offset: int, attempt: int, edge: int) -> int:
        """Adds an edge that leads to a tuple of the batch. Returns its number."""
        number = super().add_input_edge(tp, offset, attempt, edge)
        self.positions[-1] += self._count_given
        return self._count + number

    def add_input_edges(
        self, tps: Sequence[int], offsets: Sequence[int], attempts: Sequence[int], ids: Sequence[int]
    ) -> int:
        """Adds edges that lead to tuples of the batch. Returns the number of the first; the others follow."""
        tp, offset, attempt = (np.asarray(column, np.int64) for column in (tps, offsets, attempts))
        given = self.add_given(tp, offset, attempt, np.asarray(ids, np.uint64).view(np.int64))
        return int(given[0]) if len(given) else self._count

    def add_emitted_edges(self, parents: EdgeNumbers, position: int) -> EdgeNumbers:
        """Adds the edges that leave `parents` at a position. Returns their numbers."""
        return tuple([self._count + number for number in super().add_emitted_edges(parents, position)])

    def root(self, number: int) -> Root:
        """Returns the root of an edge."""
        parent, position = self._edge(number)
        while parent != GIVEN:
            parent, position = self._edge(parent)
        return Root(*(int(column[position]) for column in self._given_edges()[:3]))

    def _edge(self, number: int) -> tuple[int, int]:
        """Returns parent and position of an edge."""
        if number >= self._count:
            return self.parents[number - self._count], self.positions[number - self._count]
        place = bisect_right(self._starts, number) - 1
        parents, positions = self._arrays[place]
        return int(parents[number - self._starts[place]]), int(positions[number - self._starts[place]])

    def _add(self, parents: Int64s, positions: Int64s) -> Int64s:
        first = self._count
        self._starts.append(first)
        self._arrays.append((parents, positions))
        self._count += len(parents)
        return np.arange(first, self._count)

    def _seal(self) -> None:
        """Makes arrays of the lists, so that the edges that come next are behind them."""
        if self._tps:
            columns = tuple(super()._given_edges())
            self._given.append(columns)
            self._count_given += len(columns[0])
            self._tps, self._offsets, self._attempts, self._ids = [], [], [], []
        if self.parents:
            self._add(*super()._edges())
            self.parents, self.positions = [], []

    def _edges(self) -> tuple[Int64s, Int64s]:
        self._seal()
        if not self._arrays:
            return super()._edges()
        parents, positions = (np.concatenate(columns) for columns in zip(*self._arrays, strict=True))
        return parents, positions

    def _given_edges(self) -> Sequence[Int64s]:
        self._seal()
        if len(self._given) > 1:
            self._given = [tuple(np.concatenate(columns) for columns in zip(*self._given, strict=True))]
        return self._given[0] if self._given else super()._given_edges()
