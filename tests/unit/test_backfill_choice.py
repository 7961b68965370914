"""What ranges, times and outcomes choose, against sets of offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.backfill.choose import as_arrays, as_ranges, asked_ranges, intersection, narrowed_by_time, newest_outcomes
from ackline.errors import ConfigError
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, joined
from ackline.pipeline.arguments import RangeArgument, parse_range
from tests.unit.test_chosen_ranges import RANGES, offsets_of

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
LOGS = {A: LogBounds(5, 20), B: LogBounds(0, 10), C: LogBounds(3, 3)}


def asked(*texts: str) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    return asked_ranges(map(parse_range, texts), LOGS)


def test_without_a_range_every_partition_is_chosen_from_its_log_start_to_its_end() -> None:
    assert asked() == {A: (OffsetRange(5, 20),), B: (OffsetRange(0, 10),)}


def test_ranges_of_a_partition_are_joined_and_a_topic_means_all_its_partitions() -> None:
    assert asked("orders:0:6-8", "orders:0:7-9", "orders:0:12-13") == {A: (OffsetRange(6, 9), OffsetRange(12, 13))}
    assert asked("orders") == {A: (OffsetRange(5, 20),), B: (OffsetRange(0, 10),)}
    assert asked("orders:1", "orders:1:2-3") == {B: (OffsetRange(0, 10),)}


def test_explicit_offsets_stay_below_the_log_start_and_are_refused_beyond_the_end() -> None:
    assert asked("orders:0:0-6") == {A: (OffsetRange(0, 6),)}
    with pytest.raises(ConfigError, match=r"orders:0:6-21: the log of orders\[0\] ends at 20"):
        asked("orders:0:6-21")


@pytest.mark.parametrize("text", ["other", "orders:2", "payments:1:0-1"])
def test_a_partition_that_the_pipeline_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the pipeline reads no such partition"):
        asked(text)


def test_a_time_chooses_from_its_first_record_up_to_the_first_one_at_the_end() -> None:
    ranges = asked_ranges([], LOGS)
    assert narrowed_by_time(ranges, LOGS, {A: 7, B: None}, {A: 9, B: 4}) == {A: (OffsetRange(7, 9),)}
    assert narrowed_by_time(ranges, LOGS, {A: 0, B: 4}, None) == {A: (OffsetRange(5, 20),), B: (OffsetRange(4, 10),)}
    assert narrowed_by_time(ranges, LOGS, None, {A: None, B: 0}) == {A: (OffsetRange(5, 20),)}


def test_a_time_narrows_explicit_offsets_and_leaves_out_what_retention_took() -> None:
    ranges = asked_ranges([RangeArgument("orders", 0, OffsetRange(0, 8))], LOGS)
    assert narrowed_by_time(ranges, LOGS, {A: 5}, None) == {A: (OffsetRange(5, 8),)}


@given(RANGES, RANGES)
def test_an_intersection_holds_what_is_in_both(ranges: list[OffsetRange], others: list[OffsetRange]) -> None:
    both = as_ranges(intersection(as_arrays(joined(ranges)), as_arrays(joined(others))))
    assert offsets_of(both) == offsets_of(ranges) & offsets_of(others)


@given(st.lists(st.tuples(RANGES, RANGES), max_size=4))
def test_the_newest_epoch_with_an_outcome_decides_for_each_offset(
    epochs: list[tuple[list[OffsetRange], list[OffsetRange]]],
) -> None:
    """A wanted outcome is an outcome too, so each epoch holds at least what matches in it."""
    wanted = [offsets_of(matching) for matching, _ in epochs]
    every = [offsets_of(matching) | offsets_of(others) for matching, others in epochs]
    expected = set()
    for offset in set().union(*every) if every else ():
        newest = next(number for number, offsets in enumerate(every) if offset in offsets)
        expected |= {offset} if offset in wanted[newest] else set()
    arrays = [(as_arrays(joined(matching)), as_arrays(joined([*matching, *others]))) for matching, others in epochs]
    assert offsets_of(as_ranges(newest_outcomes(arrays))) == expected
