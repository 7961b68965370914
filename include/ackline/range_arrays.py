"""Sorted, disjoint offset ranges as arrays: what `ackline.offsets` does, for millions of ranges at once. Pure.

Ranges are two int64 arrays, `starts` and `ends` (exclusive). No range is empty.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Ranges: TypeAlias = tuple[Int64s, Int64s]


def index_of_range(offsets: Int64s, ranges: Ranges) -> Int64s:
    """Returns for each offset the index of the range that holds it, or -1 if none does."""
    starts, ends = ranges
    index = np.searchsorted(starts, offsets, side="right") - 1
    if len(starts):
        index[(index >= 0) & (offsets >= ends[index])] = -1
    return index


def spread(ranges: Ranges) -> tuple[Int64s, Int64s]:
    """Returns every offset of the ranges, and for each the index of its range."""
    starts, ends = ranges
    lengths = ends - starts
    index = np.repeat(np.arange(len(starts)), lengths)
    first = np.cumsum(lengths) - lengths
    return starts[index] + np.arange(len(index)) - first[index], index


def union(starts: Int64s, ends: Int64s) -> Ranges:
    """Returns the offsets of ranges that may overlap and come in any order, as ranges that do not touch."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.ones(len(starts), dtype=np.bool_)
    begins[1:] = starts[1:] > ends[:-1]
    lasts = np.append(begins[1:], True) if len(starts) else begins
    return starts[begins], ends[lasts]


def subtract_ranges(ranges: Ranges, holes: Ranges) -> tuple[Int64s, Int64s, Int64s]:
    """Returns the offsets of `ranges` that are in none of `holes`: starts and ends of the pieces, and for each piece
    the index of its range."""
    starts, ends = ranges
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    # What is between two holes is kept. A piece is the part of such a space that is inside a range.
    space_starts, space_ends = np.append(low, holes[1]), np.append(holes[0], high)
    first = np.searchsorted(space_ends, starts, side="right")
    pieces = np.searchsorted(space_starts, ends, side="left") - first
    space, index = spread((first, first + pieces))
    piece_starts, piece_ends = (
        np.maximum(starts[index], space_starts[space]),
        np.minimum(ends[index], space_ends[space]),
    )
    real = piece_starts < piece_ends
    return piece_starts[real], piece_ends[real], index[real]
