"""The window: fresh offsets stop at max_uncommitted records above the floor, due retries never do (S20–S24, I8)."""

import pytest

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import fails

MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_s20_never_more_than_ten_above_the_floor(lab: MakeLab) -> None:
    lane = lab(max_uncommitted=10)
    lane.produce_records(100)
    for start in (0, 10, 20):
        lane.run()
        assert lane.new_offsets() == list(range(start, start + 10))
        assert lane.committed() == start + 10


def test_s21_s22_a_window_without_room_reads_nothing_new_and_its_retries_all_the_same(lab: MakeLab) -> None:
    """S21 is partition 0, where 0 to 8 fail. S22 is partition 1, where 1 to 9 fail: there is room for one offset."""
    lane = lab(max_uncommitted=10, partitions=2, retry=MINUTE)
    lane.produce_records(30, fails(range(9), 1), partition=0)
    lane.produce_records(30, fails(range(1, 10), 1), partition=1)
    lane.run()
    assert [lane.new_offsets(p) for p in (0, 1)] == [list(range(10))] * 2
    assert [lane.committed(p) for p in (0, 1)] == [0, 1]
    lane.advance_clock(59)
    plans = lane.run().plans
    assert [lane.new_offsets(p) for p in (0, 1)] == [[], [10]]
    assert [planned.why for tp, planned in plans[0].partitions.items() if tp.partition == 0] == ["window full"]
    lane.advance_clock(1)
    lane.run()
    assert lane.new_calls(0) == [(offset, 2) for offset in range(9)]
    assert lane.new_calls(1) == [(offset, 2) for offset in range(1, 10)]
    assert [lane.committed(p) for p in (0, 1)] == [10, 11]


@pytest.mark.deep
def test_s23_s24_a_full_window_stops_neither_the_other_partition_nor_its_own_retries(lab: MakeLab) -> None:
    """A record of partition 0 waits for an hour, by the policy of its error class, and fills the window. In partition 1
    everything fails once and then succeeds: the end is reached (STORM-2343, I12)."""
    policy = {"initial_delay": "0s", "by_error": {"JSONDecodeError": {"initial_delay": "1h"}}}
    lane = lab(max_uncommitted=5, partitions=2, retry=policy)
    lane.produce_records(10, {0: b"{not json"}, partition=0)
    lane.produce_records(10, fails(range(10), 1), partition=1)
    results = [lane.run() for _ in range(4)]
    assert [lane.committed(p) for p in (0, 1)] == [0, 10]
    assert lane.settled(0).state.complete_to == 5
    [plan] = results[-1].plans
    assert {tp.partition: planned.why for tp, planned in plan.partitions.items()} == {0: "window full", 1: None}
    lane.advance_clock(3600)
    lane.run()
    assert lane.new_calls(0) == [(0, 1), (0, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
