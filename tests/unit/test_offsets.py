"""The range algebra says of runs what a dict would say offset by offset."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.offsets import OffsetRange, Run, TopicPartition, count, join, merge, ranges, subtract, take
from tests.unit.strategies import REPEATABLE, loose_runs, offset_ranges, offset_sets, spread


@REPEATABLE
@given(loose_runs())
def test_join_says_the_same_in_the_fewest_runs(runs: list[Run[int]]) -> None:
    joined = join(runs)

    assert spread(joined) == spread(runs)
    assert all(run.start < run.end for run in joined)
    for one, following in pairwise(joined):
        assert one.end < following.start or one.value != following.value


@REPEATABLE
@given(loose_runs())
def test_joining_twice_changes_nothing(runs: list[Run[int]]) -> None:
    assert join(join(runs)) == join(runs)


@pytest.mark.parametrize(
    "runs",
    [
        [Run(0, 5, "a"), Run(4, 6, "b")],
        [Run(0, 5, "a"), Run(4, 6, "a")],
        [Run(3, 5, "a"), Run(0, 2, "a")],
        [Run(0, 5, "a"), Run(0, 5, "a")],
    ],
    ids=["overlap", "overlap of equals", "not sorted", "the same twice"],
)
def test_join_refuses_what_is_not_sorted_and_disjoint(runs: list[Run[str]]) -> None:
    with pytest.raises(ValueError, match="overlap at offset"):
        join(runs)


@REPEATABLE
@given(loose_runs(), offset_ranges())
def test_subtract_leaves_what_no_hole_covers(runs: list[Run[int]], holes: list[OffsetRange]) -> None:
    covered = {offset for hole in holes for offset in range(hole.start, hole.end)}

    left = list(subtract(runs, holes))

    assert spread(left) == {offset: value for offset, value in spread(runs).items() if offset not in covered}
    join(left)  # still sorted and disjoint


@REPEATABLE
@given(loose_runs(), offset_sets())
def test_merge_puts_apart_runs_together_again(runs: list[Run[int]], taken: set[int]) -> None:
    holes = ranges(sorted(taken))
    outside = list(subtract(runs, holes))
    inside = list(subtract(runs, holes_around(holes)))

    assert merge(outside, inside) == merge(inside, outside) == join(runs)


def holes_around(holes: tuple[OffsetRange, ...]) -> list[OffsetRange]:
    return [OffsetRange(run.start, run.end) for run in subtract([Run(0, 1_000, None)], holes)]


@REPEATABLE
@given(loose_runs(), loose_runs())
def test_merge_refuses_runs_that_share_an_offset_and_only_these(a: list[Run[int]], b: list[Run[int]]) -> None:
    if spread(a).keys() & spread(b).keys():
        with pytest.raises(ValueError, match="overlap"):
            merge(a, b)
    else:
        assert spread(merge(a, b)) == spread(a) | spread(b)


@REPEATABLE
@given(offset_sets())
def test_ranges_are_the_fewest_that_hold_the_offsets(offsets: set[int]) -> None:
    found = ranges(sorted(offsets))

    assert {o for one in found for o in range(one.start, one.end)} == offsets
    assert len(found) == sum(offset - 1 not in offsets for offset in offsets)


@pytest.mark.parametrize("offsets", [[3, 1], [1, 1]], ids=["not sorted", "twice"])
def test_ranges_refuses_offsets_that_are_not_sorted_and_distinct(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        ranges(offsets)


@REPEATABLE
@given(loose_runs(), st.integers(-3, 70))
def test_take_gives_the_first_offsets_and_count_counts_them(runs: list[Run[int]], limit: int) -> None:
    everything = spread(runs)

    taken = take(runs, limit)

    assert spread(taken) == dict(sorted(everything.items())[: max(limit, 0)])
    assert count(taken) == min(max(limit, 0), len(everything))
    assert count(runs) == len(everything)


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
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 2)]) == [
        ("a", 2),
        ("a", 10),
        ("b", 0),
    ]
    assert str(TopicPartition("orders", 3)) == "orders[3]"


def test_a_hundred_thousand_neighbours_cost_one_run() -> None:
    assert ranges(range(100_000)) == (OffsetRange(0, 100_000),)


def test_the_algebra_is_linear_in_its_runs() -> None:
    runs = [Run(n * 3, n * 3 + 2, n) for n in range(100_000)]
    holes = [OffsetRange(n * 3 + 1, n * 3 + 2) for n in range(100_000)]

    began = time.process_time()
    left = merge(subtract(runs, holes), [Run(hole.start, hole.end, -1) for hole in holes])

    assert count(left) == 200_000
    assert time.process_time() - began < 5  # a tenth of that here; a quadratic one takes hours
