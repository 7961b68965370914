"""Which offsets the ranges and times of a backfill choose, given the logs as they are. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ackline.backfill_arguments import RangeArgument
from ackline.chosen_ranges import clipped, joined
from ackline.errors import ConfigError
from ackline.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.range_arrays import Ranges, subtract_ranges, union

_NONE: Ranges = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def asked_ranges(
    arguments: Iterable[RangeArgument], logs: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Returns the ranges of each partition; without arguments, every partition from its log start to its log end.

    Explicit offsets stay below the log start as they were written: what retention took is settled as `expired`. Raises
    ConfigError for a partition that is not in `logs`, and for offsets beyond the log end.
    """
    asked: dict[TopicPartition, list[OffsetRange]] = {}
    wanted = list(arguments)
    for argument in wanted:
        partitions = [tp for tp in logs if argument.includes(tp)]
        if not partitions:
            where = argument.topic if argument.partition is None else f"{argument.topic}[{argument.partition}]"
            raise ConfigError(f"range {where}: the pipeline reads no such partition", key="RANGE")
        for tp in partitions:
            asked.setdefault(tp, []).append(_in_log(tp, argument.offsets, logs[tp]))
    if not wanted:
        asked = {tp: [OffsetRange(log.start, log.end)] for tp, log in logs.items()}
    return {tp: ranges for tp, parts in sorted(asked.items()) if (ranges := joined(parts))}


def _in_log(tp: TopicPartition, offsets: OffsetRange | None, log: LogBounds) -> OffsetRange:
    if offsets is None:
        return OffsetRange(log.start, log.end)
    if offsets.end > log.end:
        raise ConfigError(
            f"range {tp.topic}:{tp.partition}:{offsets.start}-{offsets.end}: the log of {tp} ends at {log.end}; end "
            f"the range at {log.end} or below",
            key="RANGE",
        )
    return offsets


def narrowed_by_time(
    asked: Mapping[TopicPartition, Sequence[OffsetRange]],
    logs: Mapping[TopicPartition, LogBounds],
    first: Mapping[TopicPartition, int | None] | None,
    end: Mapping[TopicPartition, int | None] | None,
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Returns the part of the ranges from the first record at `--from` to the first one at `--to`, clipped to the log.

    `first` and `end` hold the offsets of these records, None where a partition has no such record; they are None if the
    option was not given. Without a record at `--to`, the part ends at the log end.
    """
    narrowed = {}
    for tp, ranges in asked.items():
        low, high = logs[tp].start, logs[tp].end
        if first is not None:
            at = first.get(tp)
            low = high if at is None else max(low, at)
        if end is not None and (at := end.get(tp)) is not None:
            high = min(high, at)
        narrowed[tp] = tuple(clipped(ranges, low, high))
    return {tp: ranges for tp, ranges in narrowed.items() if ranges}


def newest_outcomes(epochs: Iterable[tuple[Ranges, Ranges]]) -> Ranges:
    """Returns the offsets whose terminal outcome in their newest epoch is wanted.

    `epochs` holds, from the newest epoch to the oldest, the offsets with a wanted outcome and those with any.
    """
    chosen, covered = _NONE, _NONE
    for wanted, every in epochs:
        starts, ends, _ = subtract_ranges(wanted, covered)
        chosen = union(np.append(chosen[0], starts), np.append(chosen[1], ends))
        covered = union(np.append(covered[0], every[0]), np.append(covered[1], every[1]))
    return chosen


def intersection(ranges: Ranges, others: Ranges) -> Ranges:
    """Returns the offsets that are in both. Each holds sorted, disjoint ranges."""
    outside = subtract_ranges(ranges, others)[:2]
    starts, ends, _ = subtract_ranges(ranges, outside)
    return starts, ends


def as_arrays(ranges: Sequence[OffsetRange]) -> Ranges:
    """Returns ranges as arrays of their starts and ends."""
    starts, ends = np.array([(part.start, part.end) for part in ranges], dtype=np.int64).reshape(-1, 2).T
    return starts, ends


def as_ranges(arrays: Ranges) -> list[OffsetRange]:
    """Returns arrays of starts and ends as ranges."""
    return [OffsetRange(start, end) for start, end in zip(arrays[0].tolist(), arrays[1].tolist(), strict=True)]
