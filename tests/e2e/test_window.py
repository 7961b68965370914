"""The window: fresh offsets stop at the floor + max_uncommitted, due retries never do (S20–S24, I8)."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import fails

ALWAYS = {"fail": -1}
MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_s20_never_more_than_ten_above_the_floor(lab: MakeLab) -> None:
    one = lab(max_uncommitted=10)
    one.records(100)
    for start in range(0, 100, 10):
        one.run()
        assert one.offsets() == list(range(start, start + 10))
        assert one.committed() == start + 10
    assert one.run().calls == 0
    one.judge(settled=True)


def test_s21_a_full_window_reads_nothing_new_and_then_the_retries_alone(lab: MakeLab) -> None:
    one = lab(max_uncommitted=10, retry=MINUTE)
    one.records(30, fails(range(9), 1))
    one.run()
    assert one.offsets() == list(range(10))
    one.wait(59)
    ran = one.run()
    assert one.offsets() == []
    assert [planned.why for plan in ran.plans for planned in plan.partitions.values()] == ["window full"]
    one.wait(1)
    one.run()
    assert one.handled() == [(offset, 2) for offset in range(9)]
    assert one.committed() == 10


def test_s22_one_offset_of_room_is_one_offset_read_and_retries_come_although_it_is_full(lab: MakeLab) -> None:
    one = lab(max_uncommitted=10, retry=MINUTE)
    one.records(30, fails(range(1, 10), 1))
    one.run()
    assert one.committed() == 1
    one.offsets()
    one.run()
    assert one.offsets() == [10]
    one.wait(60)
    one.run()
    assert one.handled() == [(offset, 2) for offset in range(1, 10)]
    assert one.committed() == 11


def test_s23_a_partition_without_room_does_not_hold_up_the_other(lab: MakeLab) -> None:
    one = lab(max_uncommitted=250, partitions=2, retry=MINUTE)
    one.records(600, {0: ALWAYS}, partition=0)
    one.records(600, partition=1)
    one.run()
    ran = one.run()
    assert (one.committed(0), one.committed(1)) == (0, 500)
    assert one.settled(0).state.complete_to == 250
    assert {tp.partition: planned.why for tp, planned in ran.plans[0].partitions.items()} == {0: "window full", 1: None}


def test_s24_a_full_window_never_stops_its_own_retries(lab: MakeLab) -> None:
    """Everything fails once and then succeeds: the end is reached (STORM-2343, I12)."""
    one = lab(max_uncommitted=5)
    one.records(20, fails(range(20), 1))
    for _ in range(8):
        one.run()
    one.judge(settled=True)
