"""The plan of a run: who is served first, who is left out, and what is skipped for being too far behind (S45)."""

from datetime import timedelta

import pytest

from ackline.actions.objects import plan_object
from ackline.errors import TooFarBehind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import CAUGHT_UP, NO_LEADER, PARKED, PAUSED
from ackline.ledger.turns import TurnKind
from ackline.steps import plan
from tests.support.memory import MemoryLog
from tests.support.memory_lane import DEAD, FAILS, FAILS_ONCE, NOON, OK, PAYMENTS, TP, TP1, MemoryLane

TP2 = TopicPartition("orders", 2)
SKIP = {"offsets": 5, "policy": "skip"}
LATER = {"initial_delay": "1h", "period": "1h"}


# ---- who is served first, and who gets nothing --------------------------------------------------------------------


def test_the_partition_that_waits_longest_is_served_first_and_one_without_records_takes_no_share() -> None:
    lane = MemoryLane(*[OK] * 9, partitions=3, max_records_per_run=4)
    lane.produce(*[OK] * 9, tp=TP1, time=NOON - timedelta(hours=1))
    planned = lane.plan().partitions
    assert {tp.partition: len(row.fresh) for tp, row in planned.items()} == {0: 1, 1: 3, 2: 0}


def test_the_partition_furthest_behind_is_first_also_where_retries_leave_too_little_room() -> None:
    lane = MemoryLane(*[FAILS_ONCE] * 10, partitions=2, max_records_per_run=20, retry={"initial_delay": "0s"})
    lane.run()
    lane.produce(*[OK] * 10, tp=TP1)
    lane.world.now += timedelta(hours=1)
    lane.produce(*[OK] * 10)
    [planned] = lane.run().plans
    assert [len(planned.partitions[tp].fresh) for tp in (TP, TP1)] == [3, 7]


def test_a_partition_that_has_lost_all_that_was_unread_has_nothing_new_and_is_not_full() -> None:
    lane = MemoryLane(OK).after_run()
    lane.produce(OK, OK)
    lane.log().expire(3)
    [planned] = lane.run().plans
    assert (planned.partitions[TP].why, lane.committed()) == (CAUGHT_UP, 3)


def test_a_partition_without_leader_holds_no_other_up() -> None:
    lane = MemoryLane(OK)
    lane.world.topics["orders"].logs[1] = MemoryLog(has_leader=False)
    lane.run()
    lane.produce(OK, tp=TP1)
    lane.log(TP1).has_leader = True
    lane.run()
    lane.log(TP1).has_leader = False
    lane.produce(OK)
    lane.run()
    assert (lane.committed(), lane.floor(TP1)) == (2, 1)


# ---- too far behind -----------------------------------------------------------------------------------------------


def test_s45_a_skip_settles_what_is_pending_though_the_window_is_full_and_the_run_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the offsets below its target, each has one terminal outcome: what was acked there keeps it."""
    lane = MemoryLane(OK, FAILS, OK, DEAD, OK, max_offset_behind=SKIP, retry=LATER, max_uncommitted=4)
    lane.world.faults.letters.append("lost")
    lane.run()
    assert (lane.committed(), lane.letters()) == (1, [])
    lane.produce(*[OK] * 10)
    result = lane.run()
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2), (3, 10)]
    assert result.outcomes == {"skipped": 8, "acked": 4}, "offsets of the run's effective rows"
    assert lane.calls()[4:] == [(offset, 1) for offset in range(10, 14)]
    assert (lane.committed(), lane.letters()) == (14, [])
    assert "a skip of orders[0] to 10: more than max_offset_behind 5" in caplog.text


def test_s45_the_preview_shows_what_would_be_skipped(caplog: pytest.LogCaptureFixture) -> None:
    lane = MemoryLane(OK, max_offset_behind=SKIP).after_run()
    lane.produce(*[OK] * 9)
    previewed = plan.preview(lane.adapters())
    assert previewed.plan is not None
    shown = plan_object("lane", "live", previewed).dump()
    rows = [(row["partition"], row["end"], row["why"]) for row in shown["partitions"]]
    assert (shown["kind"], rows) == ("skip", [(0, 5, "more than max_offset_behind 5")])
    assert (lane.ranges(Outcome.SKIPPED), caplog.text) == ([], "")


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_s45_a_partition_that_is_not_read_is_not_too_far_behind_until_it_is(policy: str) -> None:
    """Paused, parked or leaderless: nothing of it is skipped, and it stops no other."""
    limit = {"offsets": 5, "policy": policy}
    lane = MemoryLane(partitions=3, topics=("orders", "payments"), max_offset_behind=limit, retry=LATER)
    lane.create("payments")
    for tp in (TP, TP2, PAYMENTS):
        lane.produce(FAILS, OK, tp=tp)
    lane.run()
    lane.perform(TurnKind.PAUSE, {TP: 0})
    lane.topics.remove("payments")
    lane.log(TP2).has_leader = False
    for tp in (TP, TP2, PAYMENTS):
        lane.produce(*[OK] * 10, tp=tp)
    lane.produce(OK, tp=TP1)
    lane.world.now += timedelta(hours=2)
    [planned] = lane.run().plans
    whys = {tp: row.why for tp, row in planned.partitions.items()}
    assert whys == {TP: PAUSED, TP1: None, TP2: NO_LEADER, PAYMENTS: PARKED}
    assert [lane.ranges(Outcome.SKIPPED, tp) for tp in whys] == [[]] * 4
    lane.perform(TurnKind.RESUME, {TP: 0})
    lane.topics.append("payments")
    lane.log(TP2).has_leader = True
    if policy == "fail":
        lane.run_fails(TooFarBehind)
        return
    lane.run()
    for tp in (TP, TP2, PAYMENTS):
        assert lane.ranges(Outcome.SKIPPED, tp) == [(0, 1), (2, 7)]
        assert lane.calls(tp) == [(0, 1), (1, 1), *((offset, 1) for offset in range(7, 12))]


def test_s45_a_run_stops_only_where_it_is_too_far_behind() -> None:
    lane = MemoryLane(OK, OK, max_offset_behind={"offsets": 2, "policy": "fail"}).after_run()
    lane.produce(OK, OK, OK)
    lane.run_fails(TooFarBehind, "3 offsets behind")
    assert (lane.committed(), lane.newest().turn.n) == (2, 1)
