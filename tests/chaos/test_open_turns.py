"""Turns that another process has left open, or takes at the same time (S53): one at a time, none planned twice."""

import pytest

from ackline.actions import actions
from ackline.lane import plans
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Settlement, TurnKind
from tests.chaos import victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

WEEK = 7 * 24 * 3600


def skip(lane: Lab, to: int) -> None:
    """Carry out an operator action."""

    def choose(newest: Settlement) -> plans.Targets:
        return {TopicPartition(lane.topic, 0): to}

    with lane.adapters() as adapters:
        actions.perform_action(adapters, TurnKind.SKIP, choose, "poison")


def turns(lane: Lab) -> list[tuple[int, str]]:
    """(n, kind) of each plan, in order; each has one settlement."""
    plans = sorted((row["turn"], row["kind"]) for row in lane.table("plans"))
    assert plans == sorted((row["turn"], row["kind"]) for row in lane.table("settlements") if row["turn"])
    return plans


def test_s53_a_plan_left_open_for_a_week_is_adopted_and_never_planned_twice(lab: MakeLab) -> None:
    """Also where the log has more by then: the old turn is finished as it was planned, and the next one reads on."""
    lane = lab()
    lane.produce_records(3)
    lane.plan()
    lane.advance_clock(WEEK)
    lane.produce_records(2)
    lane.run()
    assert lane.new_offsets() == [0, 1, 2]
    lane.judge()
    lane.run()
    assert lane.new_offsets() == [3, 4]
    assert turns(lane) == [(1, "run"), (2, "run")]
    lane.judge(settled=True)


def test_s53_a_plan_left_open_for_a_week_whose_range_is_gone_is_closed_as_void(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(3)
    lane.plan()
    lane.advance_clock(WEEK)
    lane.expire(3)
    lane.produce_records(1)
    lane.run()
    assert lane.new_offsets() == [3]
    assert lane.rows() == [Row(0, 0, "expired", 3), Row(3, 1, "acked")]
    assert sorted(row["kind"] for row in lane.table("settlements")) == ["genesis", "run", "void"]
    lane.judge(settled=True)


def test_s53_a_run_that_loses_its_turn_to_an_operator_action_takes_the_next(lab: MakeLab) -> None:
    """The run is about to store its plan when an operator skips: what it would have read is not read."""
    lane = lab(max_uncommitted=4)
    lane.produce_records(6, {1: {"fail": -1}})
    lane.run()
    with victims.paused_at(lane, "plan", "plan") as sleeper:
        skip(lane, 5)
        status, errors = victims.wake(sleeper)
        assert status == 0, errors
    lane.run()
    assert turns(lane) == [(1, "run"), (2, "skip"), (3, "run")]
    assert lane.new_offsets() == [0, 1, 2, 3, 5]
    assert lane.committed() == 6
    lane.judge(settled=True)


def test_s53_an_operator_action_that_was_killed_is_finished_by_the_next_run(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan holds the whole action."""
    lane = lab(retry={"initial_delay": "1h"})
    lane.produce_records(3, {1: {"fail": -1}})
    lane.run()

    class Killed(BaseException):
        """The operator's process ends."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(actions, "settle_turn", die)
        with pytest.raises(Killed):
            skip(lane, 2)
    assert lane.committed() == 1
    lane.judge()
    lane.produce_records(1)
    lane.run()
    assert turns(lane) == [(1, "run"), (2, "skip"), (3, "run")]
    assert lane.rows() == sorted([*all_of("acked", [0, 2, 3]), Row(1, 0, "skipped", 2), Row(1, 1, "failed")])
    assert lane.committed() == 4
    lane.judge(settled=True)
