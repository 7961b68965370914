"""The algebra of valued ranges gives what a dict from offset to value would give."""

import time
from itertools import pairwise

import pytest
from hypothesis import given

from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange, count, join, merge, subtract
from tests.unit.strategies import REPEATABLE, by_offset, offset_ranges, valued_ranges

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
