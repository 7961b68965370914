"""plan: where the lane can't begin, what is named, which requests it makes, and that at most one plan is open (S53)."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from ackline.actions.objects import run_object
from ackline.errors import LedgerError
from ackline.lane.commit import MAX_LOST_RACES
from ackline.ledger.planning import NO_LEADER
from ackline.ledger.turns import Plan, TurnKind
from ackline.pipeline.pipeline import Pipeline
from ackline.steps import plan
from ackline.steps.run import run
from tests.support.memory import READ, World
from tests.support.memory_adapters import memory_adapters, no_session
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


OF_TABLES = {"settlements", "settlement", "plans", "plan"}
"""What a plan reads of the tables and not of the broker."""
NOON = datetime(2024, 10, 4, 12, tzinfo=UTC)


def pipeline(**given: object) -> Pipeline:
    """A pipeline over two topics."""
    kafka = {"bootstrap_servers": "memory", "group_id": "g", "topics": ["orders", "payments"]}
    return Pipeline.model_validate(
        {"name": "p", "kafka": kafka, "handler": "handlers.any:handle", "dead_letter": "none", **given}
    )


def planning_requests(behind: int, limit: int) -> Counter[str]:
    """How often one plan makes each request of the broker, over logs that are `behind` records ahead of the ledger."""
    world = World(NOON)
    for name in ("orders", "payments"):
        world.create_topic(name, 3)
    run(memory_adapters(world, pipeline(max_records_per_run=limit), "first"), no_session)
    for tp in world.partitions():
        log = world.log(tp)
        assert log is not None
        for _ in range(behind):
            log.append(b"{}", NOON)
    requests: Counter[str] = Counter()

    def count(name: str, when: str) -> None:
        requests.update([name] if when == READ and name not in OF_TABLES else [])

    plan.plan(memory_adapters(world, pipeline(max_records_per_run=limit), "second", count))
    return requests


@pytest.mark.parametrize(("limit", "times"), [(5_000_000, {}), (1, {"times": 1})])
def test_the_requests_of_planning_do_not_depend_on_how_far_behind_it_is(limit: int, times: dict[str, int]) -> None:
    """Storm's spout requests offset after offset. A plan asks for topics and commits once, and for the bounds of all
    logs twice: before it chooses its ranges, and before it is stored. Where a run can't read all that is new, it asks
    once for the times of the first unread records."""
    wanted = {"topics": 1, "committed": 1, "bounds": 2, **times}
    assert planning_requests(1, limit) == planning_requests(2_000, limit) == wanted


def test_thousands_of_retries_with_the_same_due_time_are_one_plan_and_none_comes_early() -> None:
    """S18: none a millisecond before it, and all of them at it."""
    world = World(NOON)
    log = world.create_topic("orders").logs[0]
    world.create_topic("payments")
    for _ in range(5_000):
        log.append(b'{"fail": 1}', NOON)
    waiting = pipeline(retry={"initial_delay": "1h"})
    assert run(memory_adapters(world, waiting, "first"), no_session).calls == 5_000
    world.now += timedelta(hours=1) - timedelta(milliseconds=1)
    assert run(memory_adapters(world, waiting, "early"), no_session).calls == 0
    world.now += timedelta(milliseconds=1)
    due = run(memory_adapters(world, waiting, "due"), no_session)
    assert due.calls == 5_000
    assert due.outcomes == {"acked": 5_000}
    [due_plan] = due.plans
    assert sum(len(planned.retries) for planned in due_plan.partitions.values()) == 1, "equal neighbours are one run"
