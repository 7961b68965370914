"""A backfill of records that retention has taken reads the copies that the live lane has rescued (S88)."""

from datetime import timedelta
from typing import Any

import pytest

from tests.steps.test_released import lane_with_release
from tests.steps.test_rescue import COPIES, lane_with_rescue, run_at
from tests.support.memory import ArrivedLetter
from tests.support.memory_lane import FAILS, NOON, OK, TP, MemoryBackfill, MemoryLane


def dead_lane() -> MemoryLane:
    """A lane with a record that was rescued and has died since; retention has taken it and the one after it."""
    lane = lane_with_rescue(FAILS, OK, OK, retry={"max_retries": 0})
    lane.world.faults.letters.append("lost")
    run_at(lane, 0)
    lane.world.faults.letters.append("lost")
    run_at(lane, 18)
    run_at(lane, 18.1)
    assert [letter.value for letter in lane.letters()] == [FAILS]
    lane.log().expire(2)
    lane.world.handle = lambda _: None
    return lane


@pytest.mark.parametrize(
    ("ranges", "filters", "ended"),
    [
        ((), {"outcome": "dead"}, {0: "acked"}),
        (("orders:0:0-3",), {}, {0: "acked", 1: "expired", 2: "acked"}),
        (("orders:0:1-3",), {}, {1: "expired", 2: "acked"}),
    ],
    ids=["by outcome", "by range", "a range without copies"],
)
def test_s88_a_backfill_reads_the_copy_of_a_record_that_is_gone(
    ranges: tuple[str, ...], filters: dict[str, Any], ended: dict[int, str]
) -> None:
    lane = dead_lane()
    backfill = MemoryBackfill(lane, "b", *ranges, **filters)
    assert [(gone.offsets.start, gone.offsets.end) for gone in backfill.choose().gone] == [
        (offset, offset + 1) for offset, outcome in ended.items() if outcome == "expired"
    ]
    backfill.run()
    assert backfill.ended() == ended


def test_s88_a_copy_that_is_gone_too_leaves_the_record_expired() -> None:
    lane = dead_lane()
    lane.log(COPIES).expire(1)
    backfill = MemoryBackfill(lane, "b", outcome="dead")
    backfill.run()
    assert backfill.ended(TP) == {0: "expired"}
    assert sum(isinstance(event, ArrivedLetter) for event in lane.world.history) == 1


def test_s89_a_backfill_copies_what_retention_is_about_to_take_and_releases_nothing() -> None:
    lane = lane_with_release(OK, OK)
    run_at(lane, 0)

    def fail(_: object) -> None:
        raise ValueError

    lane.world.handle = fail
    backfill = MemoryBackfill(lane, "b", "orders:0:0-2")
    backfill.run()
    lane.world.now = NOON + timedelta(hours=18)
    backfill.run()  # no retry is due before the nineteenth hour
    state = backfill.newest().partitions[TP].state
    assert (state.copies.offsets, list(state.released), state.floor) == (2, [], 0)
    turns = backfill.newest().turn.n
    backfill.run()
    assert backfill.newest().turn.n == turns, "what has a copy needs no further turn"


def test_s88_a_backfill_takes_one_turn_a_run_for_copies_that_fail() -> None:
    lane = lane_with_release(OK)
    run_at(lane, 0)

    def fail(_: object) -> None:
        raise ValueError

    lane.world.handle = fail
    backfill = MemoryBackfill(lane, "b", "orders:0:0-1")
    backfill.run()
    lane.world.now = NOON + timedelta(hours=18)
    lane.world.faults.copies.extend(["lost"] * 5)
    for turn in (2, 3):
        backfill.run()
        assert (backfill.newest().turn.n, backfill.newest().partitions[TP].state.copies.offsets) == (turn, 0)
