"""The edges of a batch of calls as columns.

One Python object for each edge would cost more than a small handler does. So a call only notes the numbers of edges in
lists, and NumPy computes the ids of thousands of edges at the end of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ackline.spark.trees.edges import UInt64s, edge_ids
from ackline.spark.trees.rows import Edges, Root

EdgeNumbers = tuple[int, ...]
"""The edges that lead to a tuple, one for each of its roots, by their numbers in `EdgeColumns`."""

Int64s = npt.NDArray[np.int64]
_GIVEN = -1


@dataclass(frozen=True, slots=True)
class RootColumns:
    """Different attempts at records, in the order of topic-partition, offset and attempt."""

    tps: Int64s
    offsets: Int64s
    attempts: Int64s

    def root(self, number: int) -> Root:
        """Returns the root with this number."""
        return Root(int(self.tps[number]), int(self.offsets[number]), int(self.attempts[number]))


@dataclass(frozen=True, slots=True)
class Resolved:
    """The ids of edges and the numbers of their roots, by the number of the edge."""

    ids: UInt64s
    root_of: Int64s
    roots: RootColumns
    firsts: Int64s
    """By the number of the root, the first edge that led to one of its tuples."""

    def edges(self, numbers: EdgeNumbers) -> Edges:
        """Returns edges with their roots."""
        return tuple([(self.roots.root(int(self.root_of[number])), int(self.ids[number])) for number in numbers])


class EdgeColumns:
    """Edges with the numbers 0, 1, …: those that lead to the tuples of a batch, and those that its calls make.

    An edge that a call makes has a parent, the edge that led to the call, and a position among the edges of the call.
    The parent has a lower number. The id follows from the parent's id and the position alone.
    """

    def __init__(self) -> None:
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
        first, number = len(self._tps), len(self.parents)
        self._tps += tps
        self._offsets += offsets
        self._attempts += attempts
        self._ids += ids
        self.parents += [_GIVEN] * len(tps)
        self.positions += range(first, first + len(tps))
        return number

    def add_input_edge(self, tp: int, offset: int, attempt: int, edge: int) -> int:
        """Adds an edge that leads to a tuple of the batch. Returns its number."""
        self.parents.append(_GIVEN)
        self.positions.append(len(self._tps))
        self._tps.append(tp)
        self._offsets.append(offset)
        self._attempts.append(attempt)
        self._ids.append(edge)
        return len(self.parents) - 1

    def add_emitted_edges(self, parents: EdgeNumbers, position: int) -> EdgeNumbers:
        """Adds the edges that leave `parents` at a position. Returns their numbers."""
        number = len(self.parents)
        if len(parents) == 1:  # usual
            self.parents.append(parents[0])
            self.positions.append(position)
            return (number,)
        self.parents += parents
        self.positions += [position] * len(parents)
        return tuple(range(number, number + len(parents)))

    def root(self, number: int) -> Root:
        """Returns the root of an edge."""
        while self.parents[number] != _GIVEN:
            number = self.parents[number]
        place = self.positions[number]
        return Root(self._tps[place], self._offsets[place], self._attempts[place])

    def resolve(self) -> Resolved:
        """Returns all edges that there are by now."""
        parents, positions = np.array(self.parents, np.int64), np.array(self.positions, np.uint64)
        given_ids = np.array(self._ids, np.uint64)
        root_numbers, roots, firsts = self._distinct_roots()
        ids, root_of = np.empty(len(parents), np.uint64), np.empty(len(parents), np.int64)
        known = parents == _GIVEN
        given, left = np.flatnonzero(known), np.flatnonzero(~known)
        ids[given], root_of[given] = given_ids, root_numbers
        while len(left):  # once for each step in a row that runs in this task
            ready = known[parents[left]]
            now, left = left[ready], left[~ready]
            ids[now] = edge_ids(ids[parents[now]], positions[now])
            root_of[now] = root_of[parents[now]]
            known[now] = True
        return Resolved(ids, root_of, roots, given[firsts])

    def _distinct_roots(self) -> tuple[Int64s, RootColumns, Int64s]:
        """Returns for each given edge the number of its root, the roots, and the first given edge of each."""
        columns = [np.array(column, np.int64) for column in (self._tps, self._offsets, self._attempts)]
        order = np.lexsort(columns[::-1])  # stable: edges of one root stay in their order
        begins = np.ones(len(order), np.bool_)
        begins[1:] = np.logical_or.reduce([np.diff(column[order]) != 0 for column in columns])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        firsts = order[begins]
        return numbers, RootColumns(*(column[firsts] for column in columns)), firsts
