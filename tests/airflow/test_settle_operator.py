"""The settle task settles the turn of its own DAG run, whatever other runs do meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from ackline.actions import void
from ackline.airflow import operators
from ackline.airflow.results import planned_summary
from ackline.steps import plan
from tests.support.memory_lane import OK, MemoryLane

DAG_RUN, OTHER = "scheduled__1", "cli__2"


class Task:
    """The settle task of a DAG run, and what its task `plan` has returned."""

    def __init__(self, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lane, self.planned = lane, planned_summary(plan.plan(lane.adapters(DAG_RUN)))

        @contextmanager
        def opened(*_: Any) -> Iterator[Any]:
            yield lane.adapters(DAG_RUN)

        monkeypatch.setattr(operators, "opened", opened)
        monkeypatch.setattr("ackline.airflow.results.publish_metrics", lambda *_: None)

    def xcom_pull(self, task_ids: str) -> Any:
        assert task_ids == "plan"
        return self.planned

    def execute(self) -> dict[str, Any]:
        operator = operators.SettleOperator(task_id="settle", pipeline=self.lane.adapters().pipeline)
        return operator.execute({"run_id": DAG_RUN, "ti": self})  # type: ignore[typeddict-item]


@pytest.fixture
def lane() -> MemoryLane:
    return MemoryLane(OK, OK)


def test_a_turn_that_another_run_has_opened_since_is_left_to_it_and_the_newest_floor_is_committed(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(lane, monkeypatch)
    lane.replay(lane.adapters(DAG_RUN))
    lane.settle(lane.adapters(OTHER))
    lane.produce(OK)
    plan.plan(lane.adapters(OTHER))
    lane.world.committed.clear()  # the commit has expired
    summary = task.execute()
    assert (summary["turn"], summary["partitions"][0]["committed"], lane.committed()) == (1, 2, 2)


def test_s8_its_own_turn_without_outcomes_is_not_settled(lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AirflowFailException, match="no stored outcomes"):
        Task(lane, monkeypatch).execute()


def test_a_turn_that_replay_has_planned_after_the_first_is_settled(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(lane, monkeypatch)
    lane.replay(lane.adapters(DAG_RUN))
    lane.settle(lane.adapters(DAG_RUN))
    lane.produce(OK)
    plan.plan(lane.adapters(DAG_RUN))
    lane.replay(lane.adapters(DAG_RUN))
    assert task.execute()["turn"] == 2
    assert lane.committed() == 3


def test_a_turn_that_an_operator_has_voided_fails_the_task_with_who_and_why(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(lane, monkeypatch)
    adapters = lane.adapters("operator")
    void.void_open_turn(adapters, void.open_turn(adapters).plan.turn, "kills the driver")
    with pytest.raises(AirflowFailException, match="closed as void by test: kills the driver"):
        task.execute()


@pytest.mark.parametrize("gone", [None, {"turn": None}])
def test_without_the_summary_of_plan_the_open_turn_is_settled(
    gone: Any, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow may have deleted it, or plan found no topic."""
    task = Task(lane, monkeypatch)
    task.planned = gone
    lane.replay(lane.adapters(DAG_RUN))
    assert task.execute()["turn"] == 1
