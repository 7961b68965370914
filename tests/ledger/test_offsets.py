"""The algebra of valued ranges gives what a dict from offset to value would give.

Which offsets are part of a lane and which it reads next, against sets of offsets.
"""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.offsets import (
    OffsetRange,
    TopicPartition,
    ValuedRange,
    clipped,
    count,
    count_offsets,
    join,
    joined,
    merge,
    next_range,
    subtract,
)
from tests.ledger.strategies import REPEATABLE, by_offset, offset_ranges, valued_ranges

Valued = list[ValuedRange[int]]


@REPEATABLE
@given(valued_ranges())
def test_join_keeps_each_value_in_the_fewest_ranges(ranges: Valued) -> None:
    joined = join(ranges)
    assert by_offset(joined) == by_offset(ranges)
    assert count(joined) == count(ranges) == len(by_offset(ranges))
    assert all(valued.start < valued.end for valued in joined)
    for valued, following in pairwise(joined):
        assert valued.end < following.start or valued.value != following.value
    assert join(joined) == joined


@pytest.mark.parametrize(
    "ranges",
    [
        [ValuedRange(0, 5, "a"), ValuedRange(4, 6, "b")],
        [ValuedRange(0, 5, "a"), ValuedRange(4, 6, "a")],
        [ValuedRange(3, 5, "a"), ValuedRange(0, 2, "a")],
        [ValuedRange(0, 5, "a"), ValuedRange(0, 5, "a")],
    ],
    ids=["overlap", "overlap of equals", "not sorted", "the same twice"],
)
def test_join_refuses_ranges_that_are_not_sorted_and_disjoint(ranges: list[ValuedRange[str]]) -> None:
    with pytest.raises(ValueError, match="overlap at offset"):
        join(ranges)


@REPEATABLE
@given(valued_ranges(), offset_ranges())
def test_subtract_leaves_the_offsets_that_no_hole_covers(ranges: Valued, holes: list[OffsetRange]) -> None:
    covered = {offset for hole in holes for offset in range(hole.start, hole.end)}
    left = list(subtract(ranges, holes))
    assert by_offset(left) == {offset: value for offset, value in by_offset(ranges).items() if offset not in covered}
    join(left)  # raises if they are not sorted and disjoint


@REPEATABLE
@given(valued_ranges(), offset_ranges())
def test_merge_restores_what_subtract_has_taken_apart(ranges: Valued, holes: list[OffsetRange]) -> None:
    around = [OffsetRange(left.start, left.end) for left in subtract([ValuedRange(0, 1_000, None)], holes)]
    outside = list(subtract(ranges, holes))
    inside = list(subtract(ranges, around))
    assert merge(outside, inside) == merge(inside, outside) == join(ranges)


@REPEATABLE
@given(valued_ranges(), valued_ranges())
def test_merge_refuses_exactly_the_ranges_that_share_an_offset(a: Valued, b: Valued) -> None:
    if by_offset(a).keys() & by_offset(b).keys():
        with pytest.raises(ValueError, match="overlap"):
            merge(a, b)
    else:
        assert by_offset(merge(a, b)) == by_offset(a) | by_offset(b)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 4), (-2, -1)])
def test_a_range_that_is_negative_or_inverted_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(start, end)


def test_the_end_of_a_range_is_the_next_offset() -> None:
    assert len(OffsetRange(3, 7)) == 4
    assert str(OffsetRange(3, 7)) == "[3, 7)"
    assert not OffsetRange(7, 7)
    assert OffsetRange(3, 7) < OffsetRange(4, 5)


def test_partitions_sort_by_topic_then_by_number() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]
    assert sorted(partitions) == [("a", 2), ("a", 10), ("b", 0)]
    assert str(TopicPartition("orders", 3)) == "orders[3]"


def test_the_algebra_is_linear_in_its_ranges() -> None:
    ranges = [ValuedRange(n * 3, n * 3 + 2, n) for n in range(100_000)]
    holes = [OffsetRange(n * 3 + 1, n * 3 + 2) for n in range(100_000)]
    began = time.process_time()
    left = merge(subtract(ranges, holes), [ValuedRange(hole.start, hole.end, -1) for hole in holes])
    assert count(left) == 200_000
    assert time.process_time() - began < 5  # it takes a tenth of that; a quadratic algorithm takes hours


OFFSETS = st.integers(0, 30)
SPANS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(min(pair), max(pair)))
RANGES = st.lists(SPANS, max_size=6)


def offsets_of(ranges: object) -> set[int]:
    assert isinstance(ranges, list | tuple)
    return {offset for part in ranges for offset in range(part.start, part.end)}


@given(RANGES)
def test_joined_ranges_hold_the_same_offsets_sorted_and_apart(ranges: list[OffsetRange]) -> None:
    result = joined(ranges)
    assert offsets_of(result) == offsets_of(ranges)
    assert all(before.end < after.start for before, after in pairwise(result))
    assert count_offsets(result) == len(offsets_of(ranges))


@given(RANGES, SPANS)
def test_clipped_ranges_are_the_chosen_offsets_of_a_span(ranges: list[OffsetRange], span: OffsetRange) -> None:
    chosen = joined(ranges)
    assert offsets_of(clipped(chosen, span.start, span.end)) == offsets_of(chosen) & set(range(span.start, span.end))
    assert offsets_of(clipped(None, span.start, span.end)) == set(range(span.start, span.end))


@given(RANGES, OFFSETS, OFFSETS)
def test_the_next_range_begins_at_the_first_chosen_offset_and_passes_none_over(
    ranges: list[OffsetRange], start: int, end: int
) -> None:
    chosen = joined(ranges)
    found, left = next_range(chosen, start, end), sorted(offset for offset in offsets_of(chosen) if offset >= start)
    assert found.start >= start
    assert not [offset for offset in left if offset < found.start]
    assert set(range(found.start, found.end)) <= {offset for offset in left if offset < end}
    assert bool(found) == bool(left and left[0] < end)


@given(RANGES, st.integers(1, 4))
def test_range_after_range_the_lane_reads_each_chosen_offset_once(ranges: list[OffsetRange], portion: int) -> None:
    chosen, complete_to, read = joined(ranges), 0, []
    for _ in range(100):
        found = next_range(chosen, complete_to, 31)
        read += list(range(found.start, min(found.end, found.start + portion)))
        complete_to = min(found.end, found.start + portion)
    assert read == sorted(offsets_of(chosen))


def test_a_lane_that_holds_every_offset_reads_up_to_the_log_end() -> None:
    assert next_range(None, 3, 9) == OffsetRange(3, 9)
    assert next_range(None, 9, 3) == OffsetRange(9, 9)
