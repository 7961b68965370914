"""Tuples on their way to other tasks: as lists while calls emit them, then as rows."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.spark.trees.edge_columns import EdgeNumbers, Resolved
from ackline.spark.trees.rows import UNTRACKED, rows_of

MAX_ROWS = 10_000
"""Rows of an Arrow batch, at most."""
MAX_BYTES = 16 << 20
"""Bytes of an Arrow batch, about at most: the JVM takes a batch whole."""
_ROW_BYTES = 100
"""About how many bytes a tuple takes for each of its roots, at least once, beside its key and payload."""


@dataclass(slots=True)
class SentTuples:
    """Tuples that calls have emitted to steps with `group_by`, as columns."""

    steps: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    edges: list[EdgeNumbers] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """About how many bytes each of them takes."""
    size: int = 0
    """About how many bytes they take together."""

    def add(self, step: int, stream: int, edges: EdgeNumbers, key: bytes, payload: bytes) -> None:
        """Adds a tuple that is addressed to `step`."""
        self.steps.append(step)
        self.streams.append(stream)
        self.edges.append(edges)
        self.keys.append(key)
        self.payloads.append(payload)
        size = len(payload) + len(key) + _ROW_BYTES * (len(edges) or 1)
        self.sizes.append(size)
        self.size += size

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self, resolved: Resolved) -> list[pa.RecordBatch]:
        """Returns the tuples as rows, with the ids of their edges."""
        if not self.steps:
            return []
        columns = self._columns(resolved)
        return [
            rows_of({name: values[start:end] for name, values in columns.items()}, end - start)
            for start, end in self._batches()
        ]

    def _batches(self) -> Iterator[tuple[int, int]]:
        """Yields the first tuple of each batch and the one after its last."""
        # By bytes, too: Arrow's column of payloads holds 2 GiB at most, and the JVM takes a batch whole.
        sizes = np.array(self.sizes, np.int64)
        number = (np.cumsum(sizes) - sizes) // MAX_BYTES
        starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(self)]):
            for first in range(start, end, MAX_ROWS):
                yield first, min(end, first + MAX_ROWS)

    def _columns(self, resolved: Resolved) -> dict[str, Any]:
        roots = resolved.roots
        tracked = np.fromiter(map(bool, self.edges), np.bool_)
        first = np.array([edges[0] for edges in self.edges if edges], np.int64)
        root_of = resolved.root_of[first]

        def column(values: npt.NDArray[Any], otherwise: int) -> npt.NDArray[Any]:
            of_rows = np.full(len(tracked), otherwise, values.dtype)
            of_rows[tracked] = values
            return of_rows

        columns: dict[str, Any] = {
            "step": np.array(self.steps, np.int32),
            "stream": np.array(self.streams, np.int32),
            "tp": column(roots.tps[root_of].astype(np.int32), UNTRACKED),
            "offset": column(roots.offsets[root_of], 0),
            "attempt": column(roots.attempts[root_of].astype(np.int32), 0),
            "edge": column(resolved.ids[first].view(np.int64), 0),  # the same 64 bits in a signed column
            "key": self.keys,
            "payload": self.payloads,
        }
        if max(map(len, self.edges)) > 1:
            columns["edges"] = [pickle.dumps(resolved.edges(e)) if len(e) > 1 else None for e in self.edges]
        return columns
