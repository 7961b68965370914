"""plan: where the lane can't begin, who is served first, what is skipped for being too far behind (S45), and
that at most one plan is open (S53)."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from ackline.actions.objects import plan_object, run_object
from ackline.errors import ConfigError, LedgerError, TooFarBehind
from ackline.lane.commit import MAX_LOST_RACES
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.planning import CAUGHT_UP, NO_LEADER, PARKED, PAUSED
from ackline.ledger.turns import Plan, TurnKind
from ackline.steps import plan
from tests.support.memory import READ
from tests.support.memory_lane import DEAD, FAILS, FAILS_ONCE, NOON, OK, PAYMENTS, TP, TP1, MemoryLane
from tests.support.memory_store import MemoryStore


def test_a_partition_without_leader_at_the_first_run_is_named_and_joins_once_it_has_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane = MemoryLane(OK, OK, partitions=2)
    lane.produce(OK, tp=TP1)
    lane.log(TP1).has_leader = False
    assert plan.preview(lane.adapters()).leaderless == (TP1,)
    shown = run_object(lane.run(), lane.adapters().store).dump()
    assert {row["partition"]: row["why"] for row in shown["partitions"]} == {0: None, 1: NO_LEADER}
    assert "orders[1] has no leader" in caplog.text
    lane.log(TP1).has_leader = True
    assert (lane.run().leaderless, lane.offsets(), lane.offsets(TP1)) == ((), [0, 1], [0])


def test_where_no_partition_has_a_leader_nothing_begins_and_all_are_named() -> None:
    lane = MemoryLane(partitions=2)
    for tp in (TP, TP1):
        lane.log(tp).has_leader = False
    result = lane.run()
    assert (result.plans, result.leaderless) == ([], (TP, TP1))


def test_an_open_turn_is_not_gone_on_with_by_a_clock_that_is_behind_its_plan() -> None:
    """Its outcomes would be handled before they were planned, and its settlement would move the lane's clock back."""
    lane = MemoryLane(OK).after_run()
    lane.produce(OK)
    plan.plan(lane.adapters(fixed_now=NOON + timedelta(hours=2)))
    with pytest.raises(ConfigError, match=r"--now .* is before the last turn"):
        lane.run(lane.adapters(fixed_now=NOON + timedelta(hours=1)))
    lane.run(lane.adapters(fixed_now=NOON + timedelta(hours=2)))
    assert lane.committed() == 2


@pytest.mark.parametrize("taken", ["by a run", "by an operator action"])
def test_s53_a_step_that_always_loses_its_turn_stops(taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the tables do not return what was stored: nothing is settled, and the step does not loop for ever."""
    lane = MemoryLane(OK).after_run()
    lost: list[Plan] = []

    def loses(_: MemoryStore, plan: Plan) -> bool:
        lost.append(plan)
        return False

    monkeypatch.setattr(MemoryStore, "store_plan", loses)
    with pytest.raises(LedgerError, match="quicker 20 times in a row"):
        lane.run() if taken == "by a run" else lane.perform(TurnKind.PAUSE)
    assert (len(lost), lane.newest().turn.n) == (MAX_LOST_RACES, 1)


OF_TABLES = {"settlements", "settlement", "plans", "plan"}
"""What a plan reads of the tables and not of the broker."""


def two_topics(**settings: Any) -> MemoryLane:
    """A lane over two topics of three partitions each."""
    lane = MemoryLane(partitions=3, topics=("orders", "payments"), dead_letter="none", **settings)
    lane.create("payments", 3)
    return lane


def planning_requests(behind: int, limit: int) -> Counter[str]:
    """How often one plan makes each request of the broker, over logs that are `behind` records ahead of the ledger."""
    lane = two_topics(max_records_per_run=limit).after_run()
    for tp in lane.world.partitions():
        if tp.topic in lane.topics:
            lane.produce(*[OK] * behind, tp=tp)
    requests: Counter[str] = Counter()

    def note(name: str, when: str) -> None:
        requests.update([name] if when == READ and name not in OF_TABLES else [])

    plan.plan(lane.adapters("second", note))
    return requests


@pytest.mark.parametrize(("limit", "times"), [(5_000_000, {}), (1, {"times": 1})])
def test_the_requests_of_planning_do_not_depend_on_how_far_behind_it_is(limit: int, times: dict[str, int]) -> None:
    """Storm's spout requests offset after offset. A plan asks once for topics, commits and the bounds of all logs.
    Where a run can't read all that is new, it asks once for the times of the first unread records."""
    wanted = {"topics": 1, "committed": 1, "bounds": 1, **times}
    assert planning_requests(1, limit) == planning_requests(2_000, limit) == wanted


def test_thousands_of_retries_with_the_same_due_time_are_one_plan_and_none_comes_early() -> None:
    """S18: none a millisecond before it, and all of them at it."""
    lane = two_topics(retry={"initial_delay": "1h"})
    lane.produce(*[FAILS_ONCE] * 5_000)
    assert lane.run().calls == 5_000
    lane.world.now += timedelta(hours=1) - timedelta(milliseconds=1)
    assert lane.run().calls == 0
    lane.world.now += timedelta(milliseconds=1)
    due = lane.run()
    assert (due.calls, due.outcomes) == (5_000, {"acked": 5_000})
    [due_plan] = due.plans
    assert sum(len(planned.retries) for planned in due_plan.partitions.values()) == 1, "equal neighbours are one run"


TP2 = TopicPartition("orders", 2)
SKIP = {"offsets": 5, "policy": "skip"}
LATER = {"initial_delay": "1h", "period": "1h"}


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
