"""Turns that somebody else has left open, or takes at the same time (S53): one at a time, none planned twice."""

import pytest

from ackline.offsets import TopicPartition
from ackline.steps import action_plans, operator_actions
from ackline.turns import Settlement, TurnKind
from tests.chaos import victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

WEEK = 7 * 24 * 3600


def skip(one: Lab, to: int) -> None:
    """An operator's turn."""

    def choose(newest: Settlement) -> action_plans.Targets:
        return {TopicPartition(one.topic, 0): to}

    with one.parts() as parts:
        operator_actions.perform_action(parts, TurnKind.SKIP, choose, "poison")


def turns(one: Lab) -> list[tuple[int, str]]:
    """(n, kind) of each plan, in order; each has one settlement."""
    found = sorted((row["turn"], row["kind"]) for row in one.table("plans"))
    assert found == sorted((row["turn"], row["kind"]) for row in one.table("settlements") if row["turn"])
    return found


def test_s53_a_plan_left_open_for_a_week_is_adopted_and_never_planned_twice(lab: MakeLab) -> None:
    """Also where there is more in the log by then: the old turn is ended as it was planned, and the next reads on."""
    one = lab()
    one.records(3)
    one.plan()
    one.wait(WEEK)
    one.records(2)
    one.run()
    assert one.offsets() == [0, 1, 2]
    one.judge()
    one.run()
    assert one.offsets() == [3, 4]
    assert turns(one) == [(1, "run"), (2, "run")]
    one.judge(settled=True)


def test_s53_a_plan_left_open_for_a_week_whose_range_is_gone_is_closed_as_void(lab: MakeLab) -> None:
    one = lab()
    one.records(3)
    one.plan()
    one.wait(WEEK)
    one.expire(3)
    one.records(1)
    one.run()
    assert one.offsets() == [3]
    assert one.rows() == [Row(0, 0, "expired", 3), Row(3, 1, "acked")]
    assert sorted(row["kind"] for row in one.table("settlements")) == ["genesis", "run", "void"]
    one.judge(settled=True)


def test_s53_a_run_beside_an_operator_s_turn_loses_its_number_and_takes_the_next(lab: MakeLab) -> None:
    """The run is about to store its plan when an operator skips: what it would have read is not read."""
    one = lab(max_uncommitted=4)
    one.records(6, {1: {"fail": -1}})
    one.run()
    with victims.held(one, "plan", "plan") as sleeper:
        skip(one, 5)
        status, said = victims.wake(sleeper)
        assert status == 0, said
    one.run()
    assert turns(one) == [(1, "run"), (2, "skip"), (3, "run")]
    assert one.offsets() == [0, 1, 2, 3, 5]
    assert one.committed() == 6
    one.judge(settled=True)


def test_s53_an_operator_s_turn_that_was_killed_is_ended_by_the_next_run(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan holds the whole act; nobody asks the operator again."""
    one = lab(retry={"initial_delay": "1h"})
    one.records(3, {1: {"fail": -1}})
    one.run()

    class Killed(BaseException):
        """The operator's process ends."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(operator_actions, "settle_turn", die)
        with pytest.raises(Killed):
            skip(one, 2)
    assert one.committed() == 1
    one.judge()
    one.records(1)
    one.run()
    assert turns(one) == [(1, "run"), (2, "skip"), (3, "run")]
    assert one.rows() == sorted([*all_of("acked", [0, 2, 3]), Row(1, 0, "skipped", 2), Row(1, 1, "failed")])
    assert one.committed() == 4
    one.judge(settled=True)
