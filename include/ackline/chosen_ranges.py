"""Which offsets of a partition are part of a lane, and which of them it reads next. Pure.

The live lane holds every offset of a partition. A backfill lane holds the ranges that its genesis has stored, and
`complete_to` jumps over what is between them. Ranges are sorted and disjoint, and none is empty.
"""

from collections.abc import Iterable, Sequence

from ackline.offsets import OffsetRange

ChosenRanges = Sequence[OffsetRange] | None
"""The ranges of one partition; None for a lane that holds every offset."""


def joined(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Returns the offsets of ranges that may overlap and come in any order, in as few ranges as possible."""
    result: list[OffsetRange] = []
    for current in sorted(current for current in ranges if current):
        if result and current.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, current.end))
        else:
            result.append(current)
    return tuple(result)


def clipped(chosen: ChosenRanges, start: int, end: int) -> list[OffsetRange]:
    """Returns the chosen offsets in `[start, end)`; for a lane that holds every offset, all of these."""
    every = [OffsetRange(start, end)] if chosen is None and start < end else chosen or ()
    parts = ((max(current.start, start), min(current.end, end)) for current in every)
    return [OffsetRange(low, high) for low, high in parts if low < high]


def next_range(chosen: ChosenRanges, start: int, end: int) -> OffsetRange:
    """Returns the first chosen range at or above `start` as far as it is below `end`, the end of the log.

    Empty if there is none: at the next chosen offset, which the log does not have yet, or at the end of the lane if
    nothing is left to read.
    """
    if chosen is None:
        return OffsetRange(start, max(start, end))
    left = next((current for current in chosen if current.end > start), None)
    if left is None:
        behind = max(start, chosen[-1].end) if chosen else start
        return OffsetRange(behind, behind)
    first = max(start, left.start)
    return OffsetRange(first, max(first, min(left.end, end)))


def count_offsets(ranges: Iterable[OffsetRange]) -> int:
    """Returns how many offsets the ranges hold."""
    return sum(map(len, ranges))
