"""Which offsets are part of a lane and which it reads next, against sets of offsets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.offsets import OffsetRange, clipped, count_offsets, joined, next_range

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
