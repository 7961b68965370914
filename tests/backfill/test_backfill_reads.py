"""What a backfill lane reads and counts, and what it leaves alone, on the steps in memory (S70)."""

from datetime import timedelta

import pytest

from ackline.backfill import run
from ackline.backfill.plan import plan_backfill
from ackline.steps import replay
from tests.support.memory import GroupCommit
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    MINUTE,
    NO_GUARANTEE,
    OK,
    TP,
    MemoryBackfill,
    MemoryLane,
    settled_lane,
    writes_of,
)


def test_a_lane_reads_its_ranges_and_nothing_between_them() -> None:
    live = settled_lane(*[OK] * 10)
    lane = MemoryBackfill(live, "b", "orders:0:1-3", "orders:0:6-8")
    done = lane.run()
    assert lane.ended() == dict.fromkeys([1, 2, 6, 7], "acked")
    assert (done.offsets, done.settled, done.outcomes, done.gaps) == (4, True, {"acked": 4}, 0)


def test_s70_the_live_lane_and_the_group_are_what_they_were() -> None:
    live = settled_lane(OK, FAILS, OK, retry=MINUTE)
    before, state, committed = live.newest(), live.state(), live.committed()
    MemoryBackfill(live, "b", "orders").run()
    assert (live.newest(), live.state(), live.committed()) == (before, state, committed)
    commits = [event for event in live.world.history if isinstance(event, GroupCommit)]
    assert {commit.run_id for commit in commits} == {"run"}


def test_s70_a_lane_stores_in_tables_of_its_own() -> None:
    live = settled_lane(OK, OK)
    before = len(writes_of(live, "live"))
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    assert len(writes_of(live, "live")) == before
    assert [commit.application.rsplit("/", 1)[-1] for commit in writes_of(live, lane.lane)] == [
        "settlement", "plan", "try-1", "outcomes", "decisions", "settlement",
    ]  # fmt: skip


def test_s70_a_lane_runs_while_the_group_has_members_or_was_moved() -> None:
    live = settled_lane(OK, OK)
    live.world.members.append("console")
    live.move_group(TP, 0)
    assert MemoryBackfill(live, "b", "orders").run().settled


def test_s70_overlapping_lanes_and_live_turns_do_not_notice_each_other() -> None:
    live = settled_lane(*[OK, FAILS_ONCE, DEAD] * 4, retry=MINUTE)
    lanes = [MemoryBackfill(live, "a", "orders:0:0-8"), MemoryBackfill(live, "b", "orders:0:4-12")]
    lanes.append(MemoryBackfill(live, "c", "orders:0:2-3", "orders:0:7-11"))
    for lane in lanes:
        lane.begin()
    for _ in range(20):  # interleaved: each process takes one step, and the others go on before its next one
        for lane in lanes:
            adapters = lane.adapters()
            if plan_backfill(adapters).plan:
                live.produce(OK)
                live.run()
                replay.replay(lane.adapters(), no_session)
                run.run_backfill(lane.adapters(), no_session, max_records=1)
        live.world.now += timedelta(minutes=1)
    asked = [set(range(8)), set(range(4, 12)), {2, 7, 8, 9, 10}]
    assert [set(lane.ended()) for lane in lanes] == asked
    assert all(lane.account().settled for lane in lanes)


def test_what_was_handled_before_is_handled_again_as_attempt_1() -> None:
    live = settled_lane(OK, OK)
    MemoryBackfill(live, "b", "orders").run()
    assert live.calls() == [(0, 1), (1, 1), (0, 1), (1, 1)]


def test_records_that_fail_are_retried_when_due_and_then_dead_lettered_under_the_name_of_the_lane() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "1m", "max_retries": 1})
    lane = MemoryBackfill(live, "b", "orders")
    first = lane.run()
    assert (dict(first.pending), first.next_due) == (
        {"retry": 1, "dead_letter": 0, "in_flight": 0, "unread": 0},
        live.world.now + timedelta(minutes=1),
    )
    assert not first.settled
    live.world.now += timedelta(minutes=1)
    assert lane.run().outcomes == {"acked": 1, "dead": 1}
    assert [letter.headers["ackline.lane"] for letter in live.letters()] == ["backfill-b"]


def test_a_dead_letter_without_acknowledgement_is_sent_again_by_the_next_run() -> None:
    live = MemoryLane(DEAD)
    lane = MemoryBackfill(live, "b", "orders")
    live.world.faults.letters.append("unanswered")
    assert lane.run().pending["dead_letter"] == 1
    assert lane.run().outcomes == {"dead": 1}


def test_gaps_inside_a_range_are_counted_as_gaps() -> None:
    live = MemoryLane(OK)
    live.log().add_gap(3)
    live.produce(OK)
    done = MemoryBackfill(live, "b", "orders:0:0-5").run()
    assert (done.outcomes, done.gaps, done.offsets) == ({"acked": 2}, 3, 5)


def test_the_window_counts_nothing_that_is_no_part_of_the_lane() -> None:
    live = MemoryLane(*[FAILS], *[OK] * 200, retry=MINUTE, max_uncommitted=4)
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:100-103")
    assert lane.run().outcomes == {"acked": 3}  # the pending record at 0 holds the floor of the lane


def test_max_records_bounds_a_run_and_the_next_one_goes_on() -> None:
    live = settled_lane(*[OK] * 10)
    lane = MemoryBackfill(live, "b", "orders:0:0-4", "orders:0:5-10")
    assert lane.run(max_records=6).pending["unread"] == 3
    assert sorted(lane.ended()) == [0, 1, 2, 3, 5, 6]
    assert lane.run().settled


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE])
def test_every_guarantee_reads_ranges_and_single_offsets_once(guarantee: str) -> None:
    live = settled_lane(OK, OK, DEAD, OK, DEAD, OK)
    live.settings["guarantee"] = guarantee
    ranges, single = MemoryBackfill(live, "a", "orders:0:1-4"), MemoryBackfill(live, "b", outcome="dead")
    for lane in (ranges, single):
        assert lane.run().settled
    died = "dead" if guarantee == AT_LEAST_ONCE else "dropped"
    assert ranges.ended() == {1: "acked", 2: died, 3: "acked"}
    assert single.ended() == {2: died, 4: died}


def test_a_policy_without_a_limit_and_without_a_delay_ends_the_run() -> None:
    live = MemoryLane(OK, FAILS, retry={"initial_delay": "0s", "period": "0s", "max_retries": "forever"})
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1
