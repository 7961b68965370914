"""plan: where the lane can't begin, what is named, and that at most one plan is open (S53)."""

import pytest

from ackline.actions.objects import run_object
from ackline.errors import LedgerError
from ackline.lane.races import MAX_LOST_RACES
from ackline.ledger.planning import NO_LEADER
from ackline.ledger.turns import Plan, TurnKind
from ackline.steps import plan
from tests.support.memory_lane import OK, TP, TP1, MemoryLane
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
