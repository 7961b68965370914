"""Arithmetic on arrays of offsets and half-open ranges of offsets."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EMPTY: Ints = np.empty(0, np.int64)
NEVER = np.iinfo(np.int64).max
"""A turn number above all others: the turn of an event that has not happened."""


def to_ints(column: Any) -> Ints:
    """Return an Arrow column of integers or times as int64; null becomes −1, a time microseconds since 1970."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64())
    return np.asarray(values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def to_codes(column: Any, words: Iterable[str]) -> Ints:
    """Return the index in `words` of each value of an Arrow column; −1 for null and for any other value."""
    return to_ints(pc.index_in(column.cast(pa.string()), pa.array(list(words), pa.string())))


def to_ranges(pairs: Iterable[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Return the starts and the ends of `pairs`."""
    start, end = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T
    return start, end


def count_covering(offsets: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return, for each of `offsets`, how many of the ranges `[start, end)` contain it. The ranges need no order."""
    valid = starts < ends  # a range that ends before it starts would be counted as −1, and hide another one
    begun, ended = (np.searchsorted(np.sort(bounds[valid]), offsets, "right") for bounds in (starts, ends))
    return np.asarray(begun - ended, dtype=np.int64)


def slice_between(offsets: Ints, start: int, end: int) -> Ints:
    """Return the part of sorted `offsets` that lies in `[start, end)`; empty if `end` is below `start`."""
    low, high = np.searchsorted(offsets, [start, end])
    return offsets[low : max(low, high)]


def find_uncovered(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> Ints:
    """Return the first offset of each part of `[start, end)` that no range contains."""
    missing = []
    for low, high in sorted(ranges):
        if start < min(low, end):
            missing.append(start)
        start = max(start, high)
    return np.array(missing + [start] * (start < end), dtype=np.int64)
