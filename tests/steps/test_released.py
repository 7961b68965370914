"""Release (S89): with `rescue.release`, a pending record with a copy holds no floor, and nothing of it is lost."""

from typing import Any

import pytest

from ackline.actions import actions
from ackline.actions.adopt_ledger import adopt_ledger
from ackline.errors import ConfigError, CopyGone
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.outcomes import Outcome
from ackline.ledger.states import Signals
from ackline.ledger.turns import TurnKind
from tests.steps.test_rescue import (
    COPIES,
    HOUR,
    TWICE,
    copies,
    judged,
    lane_with_rescue,
    outcomes,
    rescued,
    run_at,
    settle_beside,
)
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_lane import FAILS, NOON, OK, TP, MemoryLane

RESCUE = {"topic": "rescue", "before": "6h", "release": True}


def lane_with_release(*values: bytes | None, **settings: Any) -> MemoryLane:
    return lane_with_rescue(*values, **{"rescue": RESCUE, **settings})


def released(lane: MemoryLane) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in lane.state().released]


def released_lane(*values: bytes | None, **settings: Any) -> MemoryLane:
    """A lane that has released its first record, and whose topic does not hold its records any more."""
    lane = lane_with_release(*(values or (TWICE, OK)), **settings)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.log().expire(len(values) or 2)
    return lane


def test_s89_a_record_with_a_copy_holds_no_floor_and_its_retry_reads_the_copy() -> None:
    lane = lane_with_release(TWICE, OK)
    run_at(lane, 0)
    assert (lane.committed(), released(lane)) == (0, []), "retention is a day away"
    run_at(lane, 18)
    assert (lane.state().floor, lane.committed(), released(lane)) == (2, 2, [(0, 1)])
    assert lane.pending() == [(0, 1)]
    lane.log().expire(2)
    run_at(lane, 19)
    assert (lane.calls(), lane.committed(), released(lane)) == ([(0, 1), (1, 1), (0, 2)], 2, [(0, 1)]), (
        "it has failed again, and still holds nothing"
    )
    run_at(lane, 39)
    assert (lane.pending(), released(lane), rescued(lane), lane.committed()) == ([], [], [], 2)
    assert outcomes(lane) == [(0, 1, "failed"), (0, 2, "failed")]
    assert judged(lane) == []


def test_s89_switching_on_releases_what_has_a_copy_and_switching_off_takes_nothing_back() -> None:
    lane = lane_with_rescue(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    assert lane.committed() == 0
    lane.settings["rescue"] = RESCUE
    run_at(lane, 18.1)
    assert (lane.committed(), released(lane)) == (2, [(0, 1)])
    lane.settings["rescue"] = {**RESCUE, "release": False}
    lane.produce(FAILS)
    run_at(lane, 18.2)
    del lane.settings["rescue"]
    run_at(lane, 18.3)
    assert (lane.committed(), released(lane), lane.pending()) == (2, [(0, 1)], [(0, 1), (2, 3)])
    assert judged(lane) == []


def test_s89_with_a_time_above_the_retention_the_turn_in_which_a_record_fails_releases_it() -> None:
    lane = lane_with_release(TWICE, OK, rescue={**RESCUE, "before": "30d"})
    run_at(lane, 0)
    assert (lane.committed(), released(lane), lane.pending()) == (2, [(0, 1)], [(0, 1)])


def test_s89_what_has_no_copy_yet_holds_the_floor_behind_what_has_one() -> None:
    lane = lane_with_release(FAILS, OK)
    run_at(lane, 0)
    lane.produce(FAILS, OK, time=NOON + 3 * HOUR)
    run_at(lane, 3)
    run_at(lane, 18)
    assert (released(lane), lane.pending(), lane.committed()) == ([(0, 1)], [(0, 1), (2, 3)], 2)


@pytest.mark.parametrize(("operation", "when"), [
    ("copy", AFTER), ("settlement", BEFORE), ("settlement", AFTER), ("commit", BEFORE), ("commit", AFTER),
])  # fmt: skip
def test_s89_wherever_settle_is_killed_the_group_passes_a_record_only_once_its_copy_is_stored(
    operation: str, when: str
) -> None:
    lane = lane_with_release(TWICE, OK)
    run_at(lane, 0)
    lane.die(operation, when)
    with pytest.raises(Killed):
        run_at(lane, 18)
    assert (lane.committed() == 2) <= bool(rescued(lane)), "no commit passes what no settlement has a copy of"
    assert (lane.state().floor == 2) == bool(rescued(lane)) == bool(released(lane))
    run_at(lane, 18)
    assert (lane.committed(), released(lane)) == (2, [(0, 1)])
    lane.log().expire(2)
    run_at(lane, 19)
    run_at(lane, 39)
    assert (lane.pending(), outcomes(lane)) == ([], [(0, 1, "failed"), (0, 2, "failed")])
    assert judged(lane) == []


@pytest.mark.parametrize("fault", ["gone", "lost", "refused"])
def test_s89_what_could_not_be_copied_holds_the_floor(fault: str) -> None:
    lane = lane_with_release(TWICE, OK)
    settle_beside(lane, fault)
    assert (released(lane), lane.committed()) == ([], 0)


def test_s89_what_is_lost_with_its_copy_while_a_turn_is_under_way_holds_the_floor() -> None:
    lane = lane_with_rescue(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.settings["rescue"] = RESCUE
    lane.plan_and_replay()
    lane.log().expire(2)
    lane.log(COPIES).expire(1)
    lane.settle()
    assert (released(lane), lane.committed()) == ([], 0)
    lane.run_fails(CopyGone)


@pytest.mark.parametrize("what", ["made again", "expired"])
def test_s89_a_released_copy_that_is_lost_is_made_again_and_the_floor_stays(what: str) -> None:
    lane = lane_with_release(TWICE, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    if what == "expired":
        lane.log(COPIES).expire(1)
    else:
        lane.create("rescue")
    lane.world.faults.copies.append("refused")
    run_at(lane, 18.2)
    assert (rescued(lane), released(lane), lane.committed()) == ([], [(0, 1)], 2), "the floor never falls"
    assert Signals.of(lane.metrics()).retention_at == NOON + 24 * HOUR
    run_at(lane, 18.5)
    assert (len(copies(lane)), lane.committed()) == (2, 2)
    lane.log().expire(2)
    run_at(lane, 19)
    assert lane.calls() == [(0, 1), (1, 1), (0, 2)]
    assert judged(lane) == []


@pytest.mark.parametrize("what", ["made again", "expired"])
def test_s89_a_released_record_that_is_gone_with_its_copy_stops_the_lane_until_an_operator_skips_it(what: str) -> None:
    lane = released_lane(FAILS, OK)
    if what == "expired":
        lane.log(COPIES).expire(1)
    else:
        lane.create("rescue")
    lane.world.now = NOON + 19 * HOUR
    lane.run_fails(CopyGone, r"orders\[0\]: records are gone.*copies.*\[0, 1\)")
    actions.perform_action(lane.adapters(), TurnKind.SKIP, lambda newest: {TP: lane.state().pending}, "it is gone")
    run_at(lane, 19)
    assert (lane.pending(), released(lane), lane.committed()) == ([], [], 2)
    assert judged(lane) == []


def test_s89_the_window_counts_what_is_above_the_floor_alone() -> None:
    lane = lane_with_release(FAILS, OK, OK, max_uncommitted=3)
    run_at(lane, 0)
    lane.produce(OK, OK, OK)
    run_at(lane, 1)
    assert lane.state().complete_to == 3, "the window is full"
    run_at(lane, 18)
    run_at(lane, 18.1)
    assert (lane.state().complete_to, lane.committed(), released(lane)) == (6, 6, [(0, 1)])
    assert judged(lane) == []


def test_s89_followers_of_its_key_wait_for_a_released_record() -> None:
    lane = lane_with_release(order="partition")
    lane.produce(FAILS, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    assert (released(lane), lane.committed()) == ([(0, 2)], 2)
    lane.log().expire(2)
    lane.produce(OK)
    run_at(lane, 18.5)
    assert (1, 1) not in lane.calls()
    assert (2, 1) not in lane.calls()
    assert judged(lane) == []


def test_s89_a_skip_to_an_offset_leaves_what_is_released_pending() -> None:
    lane = released_lane()
    lane.produce(FAILS, OK)
    run_at(lane, 18.2)
    lane.perform(TurnKind.SKIP, {TP: 4})
    assert (lane.pending(), released(lane), lane.ranges(Outcome.SKIPPED)) == ([(0, 1)], [(0, 1)], [(2, 3)])
    run_at(lane, 19)
    run_at(lane, 39)
    assert (lane.pending(), lane.committed()) == ([], 4)
    assert judged(lane) == []


def test_s89_a_group_that_was_moved_forward_takes_no_released_record_with_it() -> None:
    lane = released_lane(on_external_reset="follow")
    lane.produce(OK, OK)
    lane.move_group(TP, 3)
    run_at(lane, 18.5)
    assert (lane.pending(), lane.committed()) == ([(0, 1)], 4)


def test_s89_a_released_record_does_not_make_its_lane_too_far_behind() -> None:
    lane = lane_with_release(FAILS, OK, max_offset_behind={"offsets": 5, "policy": "fail"})
    run_at(lane, 0)
    run_at(lane, 18)
    for hours in (18.1, 18.2):
        lane.produce(OK, OK, OK, OK)
        run_at(lane, hours)
    assert (lane.committed(), released(lane)) == (10, [(0, 1)])


@pytest.mark.parametrize("target", [1, 2, 3])
def test_s89_a_reset_that_would_leave_a_released_record_behind_is_refused(target: int) -> None:
    lane = released_lane(TWICE, OK, OK)
    lane.produce(OK)
    with pytest.raises(ConfigError, match=r"orders\[0\]: a new epoch that begins at offset . would leave behind 1 rec"):
        lane.perform(TurnKind.RESET, {TP: target})
    actions.perform_action(lane.adapters(), TurnKind.SKIP, lambda newest: {TP: lane.state().pending}, "given up")
    lane.perform(TurnKind.RESET, {TP: 3})
    run_at(lane, 18.5)
    assert lane.committed() == 4
    assert judged(lane) == []


def test_s89_a_reset_into_a_topic_that_was_created_again_records_what_was_released_as_skipped() -> None:
    lane = released_lane()
    lane.create("orders", records=3)
    lane.perform(TurnKind.RESET, {TP: 1})
    assert lane.ranges(Outcome.SKIPPED) == [(0, 1)]
    run_at(lane, 18.5)
    assert lane.committed() == 3


def test_s89_a_reset_of_another_partition_is_refused_too() -> None:
    lane = lane_with_release(partitions=2)
    other = TP._replace(partition=1)
    lane.produce(TWICE, OK)
    lane.produce(OK, tp=other)
    run_at(lane, 0)
    run_at(lane, 18)
    with pytest.raises(ConfigError, match=r"orders\[0\]: a new epoch that begins at offset 2 would leave behind"):
        lane.perform(TurnKind.RESET, {other: 0})


def test_s89_a_reset_to_a_released_record_that_is_still_there_reads_it_again() -> None:
    lane = lane_with_release(TWICE, OK)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.perform(TurnKind.RESET, {TP: 0})
    run_at(lane, 18.2)
    assert lane.calls().count((0, 1)) == 2
    assert judged(lane) == []


def test_s89_a_ledger_that_returns_over_a_foreign_commit_keeps_what_it_has_released() -> None:
    lane = released_lane()
    foreign = CommitMetadata("another", lane.adapters().pipeline.name, 0, 9, "")
    lane.move_group(TP, 2, foreign.encode())
    adopt_ledger(lane.adapters(), "back")
    assert (lane.pending(), released(lane), lane.committed()) == ([(0, 1)], [(0, 1)], 2)


def test_s89_a_settlement_stores_how_many_of_its_pending_records_are_released() -> None:
    lane = released_lane()
    run_at(lane, 18.2)
    assert (lane.metrics()["lag"], lane.metrics()["released"], lane.metrics()["oldest_pending"]) == (0, 1, 0)
    assert lane.state().pending.offsets == 1
