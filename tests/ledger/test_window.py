"""The window counts the records that were read above the floor, and gaps that a read has proved do not fill it (I8)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.fold import MOST_GAP_RANGES, OutcomeRow, PartitionState, Pending, PendingKind, fold
from ackline.ledger.offsets import LogBounds, OffsetRange, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import WINDOW_FULL, Limits
from tests.ledger.pure_lane import FIRST, Handle, PureLane, acks, fails
from tests.ledger.strategies import NOON, REPEATABLE

HOURLY = RetryPolicy(initial_delay=timedelta(hours=1), period=timedelta(hours=1), multiplier=1.0, max_retries=100)
WAITS = Pending(PendingKind.RETRY, 1, None, None)


def lane_with_gaps(records: int, gaps: range, window: int) -> PureLane:
    """A lane whose log has these gaps; a turn reads no more than the window anyway."""
    lane = PureLane({FIRST: LogBounds(0, records)}, HOURLY, Limits(window, 10_000))
    lane.gaps = {(FIRST, offset) for offset in gaps}
    return lane


def read_until_full(lane: PureLane, handle: Handle) -> list[int]:
    """Polls until a turn reads nothing new; returns the offsets that a handler got."""
    offsets = []
    for _ in range(2_000):
        poll = lane.poll(handle)
        offsets += poll.offsets
        if not poll.planned[FIRST].fresh:
            return offsets
    raise AssertionError("the window never fills")


def test_i8_a_gap_longer_than_the_window_does_not_fill_it() -> None:
    lane = lane_with_gaps(2_000, range(1, 1_001), window=10)
    assert read_until_full(lane, fails(0)) == [0, *range(1_001, 1_010)]
    assert (lane.poll().planned[FIRST].why, lane.floor, lane.states[FIRST].uncommitted) == (WINDOW_FULL, 0, 10)


def test_each_turn_reads_at_most_a_window_of_offsets_that_may_be_records() -> None:
    lane = lane_with_gaps(100, range(1, 100), window=10)
    ends = []
    while lane.states[FIRST].complete_to < 100:
        lane.poll(fails(0))
        ends.append(lane.states[FIRST].complete_to)
    assert ends == [*range(10, 100, 9), 100]


def test_the_window_is_exact_while_the_floor_stays_however_many_gaps_there_are() -> None:
    """Every second offset is a transaction marker, in more turns than the state has ranges."""
    lane = lane_with_gaps(1_000, range(1, 1_000, 2), window=100)
    offsets = read_until_full(lane, fails(0))
    assert offsets == list(range(0, 200, 2))
    state = lane.states[FIRST]
    assert (state.uncommitted, len(state.gaps_above_floor) <= MOST_GAP_RANGES) == (100, True)


def test_gaps_below_the_new_floor_do_not_count() -> None:
    """The floor moves over the gap: the window ends as many records above it as ever."""
    lane = lane_with_gaps(2_000, range(1, 501), window=10)
    read_until_full(lane, fails(0, 505))
    lane.wait(3_600)
    lane.poll(fails(505))
    assert lane.floor == 505
    assert lane.states[FIRST].uncommitted <= lane.states[FIRST].complete_to - 505
    assert read_until_full(lane, fails(505))[-1] == 514


def test_a_gap_stays_known_when_the_floor_moves_among_the_records_before_it() -> None:
    """Records 0 to 7 fail; then all but the last of them are acked. The gap behind them is still no record, but for the
    two gaps that the first turn has read among the records: the floor is in their range."""
    lane = lane_with_gaps(2_000, range(8, 1_008), window=10)
    read_until_full(lane, fails(*range(8)))
    assert lane.states[FIRST].uncommitted == 10
    lane.wait(3_600)
    lane.poll(fails(7))
    assert (lane.floor, lane.states[FIRST].uncommitted) == (7, 3 + 2)


@pytest.mark.parametrize("floor", range(12))
def test_a_range_of_gaps_that_the_floor_enters_counts_as_if_gaps_came_first(floor: int) -> None:
    state = PartitionState(2, (ValuedRange(0, 1, WAITS),))
    pending = (ValuedRange(floor, floor + 1, WAITS),)
    before = PartitionState(12, pending, (ValuedRange(2, 12, 6),))
    after = fold(before, OffsetRange(12, 12), (), [], HOURLY)
    known = max(0, 6 - max(0, floor - 2))
    assert (state.uncommitted, sum(gaps.value for gaps in after.gaps_above_floor)) == (2, known)
    assert after.uncommitted == 12 - floor - known


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bool], list[int], list[int]]:
    """Which offsets are gaps, the length of each turn's fresh range, and the floor after each turn."""
    turns = draw(st.lists(st.integers(0, 6), min_size=1, max_size=40))
    is_gap = draw(st.lists(st.booleans(), min_size=sum(turns), max_size=sum(turns)))
    floors, complete_to = [0], 0
    for length in turns:
        complete_to += length
        floors.append(draw(st.integers(floors[-1], complete_to)))
    return is_gap, turns, floors[1:]


@REPEATABLE
@given(logs())
def test_the_window_never_counts_fewer_records_than_there_are_nor_more_than_offsets(
    log: tuple[list[bool], list[int], list[int]],
) -> None:
    is_gap, turns, floors = log
    complete_to, gaps_above_floor = 0, PartitionState(0).gaps_above_floor
    for length, floor in zip(turns, floors, strict=True):
        fresh = OffsetRange(complete_to, complete_to + length)
        # A record at the floor fails: of an earlier turn, of this one, or none.
        pending = (ValuedRange(floor, floor + 1, WAITS),) if floor < fresh.start else ()
        rows = [OutcomeRow(floor, 1, Outcome.FAILED, NOON)] if fresh.start <= floor < fresh.end else []
        before = PartitionState(complete_to, pending, gaps_above_floor)
        after = fold(before, fresh, (), rows, HOURLY, gaps=sum(is_gap[fresh.start : fresh.end]))
        assert after.floor == floor
        assert sum(not gap for gap in is_gap[floor : fresh.end]) <= after.uncommitted <= fresh.end - floor
        assert len(after.gaps_above_floor) <= MOST_GAP_RANGES
        complete_to, gaps_above_floor = fresh.end, after.gaps_above_floor


def test_without_gaps_the_state_holds_none() -> None:
    lane = lane_with_gaps(100, range(0), window=10)
    read_until_full(lane, fails(3))
    assert (lane.states[FIRST].gaps_above_floor, lane.poll(acks).offsets) == ((), [])
