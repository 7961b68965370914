"""The algebra of ranges gives what sets and dicts of offsets would give, and so do the runs of what is pending."""

import time
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.offsets import (
    AnyRange,
    OffsetRange,
    TopicPartition,
    ValuedRange,
    arrays_of,
    clipped,
    count,
    index_of_range,
    joined,
    next_range,
    ranges_of,
    subtract,
    union,
)
from ackline.ledger.pending import Pending, PendingKind, PendingRuns
from tests.ledger.strategies import REPEATABLE, by_offset, offset_ranges, valued_ranges

Valued = list[ValuedRange[int]]


def runs(ranges: Iterable[ValuedRange[int]]) -> PendingRuns:
    """The ranges as pending offsets, each value as a number of attempts."""
    states = [Pending(PendingKind.RETRY, attempts, None, None) for attempts in range(3)]
    return PendingRuns.of(ValuedRange(part.start, part.end, states[part.value]) for part in ranges)


@REPEATABLE
@given(valued_ranges())
def test_pending_runs_keep_each_value_in_the_fewest_ranges(ranges: Valued) -> None:
    pending = runs(ranges)
    assert {offset: state.attempts for offset, state in by_offset(pending).items()} == by_offset(ranges)
    assert pending.offsets == count(pending) == count(ranges) == len(by_offset(ranges))
    assert all(part.start < part.end for part in pending)
    for part, following in pairwise(pending):
        assert part.end < following.start or part.value != following.value
    assert pending.joined() == pending


@pytest.mark.parametrize("ranges", [
    [ValuedRange(0, 5, 1), ValuedRange(4, 6, 2)],
    [ValuedRange(0, 5, 1), ValuedRange(4, 6, 1)],
    [ValuedRange(3, 5, 1), ValuedRange(0, 2, 1)],
    [ValuedRange(0, 5, 1), ValuedRange(0, 5, 1)],
], ids=["overlap", "overlap of equals", "not sorted", "the same twice"])  # fmt: skip
def test_pending_runs_that_are_not_sorted_and_disjoint_are_refused(ranges: Valued) -> None:
    with pytest.raises(ValueError, match="overlap at offset"):
        runs(ranges)


@REPEATABLE
@given(valued_ranges(), offset_ranges())
def test_what_is_pending_outside_and_inside_of_holes_is_each_part_and_together_the_whole(
    ranges: Valued, holes: list[OffsetRange]
) -> None:
    pending, covered = runs(ranges), union(arrays_of(holes))
    outside, inside = pending.minus(covered), pending.within(covered)
    assert by_offset(outside).keys() == by_offset(ranges).keys() - offsets_of(holes)
    assert by_offset(inside).keys() == by_offset(ranges).keys() & offsets_of(holes)
    assert outside.plus(inside) == inside.plus(outside) == pending


@REPEATABLE
@given(valued_ranges(), valued_ranges())
def test_adding_refuses_exactly_the_runs_that_share_an_offset(a: Valued, b: Valued) -> None:
    if by_offset(a).keys() & by_offset(b).keys():
        with pytest.raises(ValueError, match="overlap"):
            runs(a).plus(runs(b))
    else:
        assert by_offset(runs(a).plus(runs(b))) == by_offset(runs(a)) | by_offset(runs(b))


@REPEATABLE
@given(valued_ranges(), offset_ranges())
def test_a_subtraction_names_the_range_of_each_piece(ranges: Valued, holes: list[OffsetRange]) -> None:
    starts, ends, index = subtract(arrays_of(ranges), union(arrays_of(holes)))
    pieces = [ValuedRange(low, high, ranges[at].value) for low, high, at in zip(starts, ends, index, strict=True)]
    expected = {offset: value for offset, value in by_offset(ranges).items() if offset not in offsets_of(holes)}
    assert by_offset(pieces) == expected


@REPEATABLE
@given(offset_ranges())
def test_the_range_of_an_offset_is_found_and_none_for_an_offset_outside(ranges: list[OffsetRange]) -> None:
    apart = joined(ranges)
    found = index_of_range(np.arange(60), arrays_of(apart)).tolist()
    expected = {offset: number for number, part in enumerate(apart) for offset in range(part.start, part.end)}
    assert (found, ranges_of(arrays_of(apart))) == ([expected.get(offset, -1) for offset in range(60)], apart)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 4), (-2, -1)])
def test_a_range_that_is_negative_or_inverted_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(start, end)


def test_the_end_of_a_range_is_the_next_offset() -> None:
    assert (len(OffsetRange(3, 7)), str(OffsetRange(3, 7))) == (4, "[3, 7)")
    assert not OffsetRange(7, 7)
    assert OffsetRange(3, 7) < OffsetRange(4, 5)


def test_partitions_sort_by_topic_then_by_number() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]
    assert (sorted(partitions), str(TopicPartition("orders", 3))) == ([("a", 2), ("a", 10), ("b", 0)], "orders[3]")


def test_the_algebra_is_linear_in_its_ranges() -> None:
    ranges = [OffsetRange(n * 3, n * 3 + 2) for n in range(100_000)]
    holes = [OffsetRange(n * 3 + 1, n * 3 + 2) for n in range(100_000)]
    began = time.process_time()
    left = subtract(arrays_of(ranges), arrays_of(holes))[:2]
    assert count(ranges_of(union(left, arrays_of(holes)))) == 200_000
    assert time.process_time() - began < 5  # it takes a tenth of that; a quadratic algorithm takes hours


OFFSETS = st.integers(0, 30)
SPANS = st.tuples(OFFSETS, OFFSETS).map(lambda pair: OffsetRange(min(pair), max(pair)))
RANGES = st.lists(SPANS, max_size=6)


def offsets_of(ranges: Iterable[AnyRange]) -> set[int]:
    return {offset for part in ranges for offset in range(part.start, part.end)}


@given(RANGES)
def test_joined_ranges_hold_the_same_offsets_sorted_and_apart(ranges: list[OffsetRange]) -> None:
    result = joined(ranges)
    assert offsets_of(result) == offsets_of(ranges)
    assert all(before.end < after.start for before, after in pairwise(result))
    assert count(result) == len(offsets_of(ranges))


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


def test_a_lane_that_holds_every_offset_reads_up_to_the_log_end() -> None:
    assert (next_range(None, 3, 9), next_range(None, 9, 3)) == (OffsetRange(3, 9), OffsetRange(9, 9))
