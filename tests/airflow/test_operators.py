"""The tasks settle and replay beside other runs: settle settles its own turn, replay waits without a worker slot."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from ackline.actions import void
from ackline.airflow import operators
from ackline.airflow.operators import LEASE_POLL, ReplayOperator
from ackline.airflow.results import planned_summary
from ackline.lane.lease import TurnLease
from ackline.steps import plan
from ackline.tables.layout import LaneTables, LeaseFile, stopped_run
from ackline.tables.lease import MISSED_RENEWALS, RENEWAL_SECONDS, Lease
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import NOON, OK, TP, MemoryLane

DAG_RUN, OTHER = "scheduled__1", "cli__2"


class Task:
    """The settle task of a DAG run, and what its task `plan` has returned."""

    def __init__(self, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lane, self.planned = lane, planned_summary(plan.plan(lane.adapters(DAG_RUN)))
        monkeypatch.setattr(operators, "opened", lambda *_, **__: nullcontext(lane.adapters(DAG_RUN)))
        monkeypatch.setattr("ackline.airflow.metrics.publish_metrics", lambda *_: None)

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


def test_i18_the_error_with_which_a_task_stops_is_noted_for_the_page(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    (tmp_path / "lane").mkdir()
    task = Task(lane, monkeypatch)
    lane.replay(lane.adapters(DAG_RUN))
    lane.move_group(TP, 1)
    with pytest.raises(AirflowFailException):
        task.execute()
    note = stopped_run(LaneTables(str(tmp_path), "lane", "live"))
    assert note is not None
    assert (note.reason, note.run_id) == ("GroupMoved", DAG_RUN)


@pytest.mark.parametrize("gone", [None, {"turn": None}])
def test_without_the_summary_of_plan_the_open_turn_is_settled(
    gone: Any, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow may have deleted it, or plan found no topic."""
    task = Task(lane, monkeypatch)
    task.planned = gone
    lane.replay(lane.adapters(DAG_RUN))
    assert task.execute()["turn"] == 1


CONTEXT: Any = {"run_id": "scheduled__1"}


class Elsewhere:
    """A lane with an open turn, which a process of another host replays."""

    def __init__(self, folder: Path) -> None:
        self.lane = MemoryLane(OK)
        self.file = LeaseFile(str(folder))
        turn = self.lane.plan().turn
        self.lease = replace(Lease.of_this_process(turn, "cli__1", NOON), host="elsewhere", machine="another boot")
        self.file.write(self.lease.encode())
        self.waited = 0.0
        self.renews_after: float | None = None

    def sleep(self, seconds: float) -> None:
        self.waited += seconds
        if self.renews_after is not None and self.waited >= self.renews_after:
            self.file.write(self.lease.renewed().encode())

    def adapters(self) -> MemoryAdapters:
        return self.lane.adapters(lease=TurnLease(self.file, "scheduled__1", sleep=self.sleep))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    made = Elsewhere(tmp_path)
    monkeypatch.setattr(operators, "opened", lambda *_, **__: nullcontext(made.adapters()))
    return made


@pytest.fixture
def reschedule(elsewhere: Elsewhere) -> Callable[[], None]:
    task = ReplayOperator(task_id="replay", pipeline=elsewhere.adapters().pipeline)
    return lambda: task._reschedule_while_held(CONTEXT)


def test_the_task_is_rescheduled_once_the_holder_has_renewed_its_lease(
    elsewhere: Elsewhere, reschedule: Callable[[], None]
) -> None:
    elsewhere.renews_after = RENEWAL_SECONDS
    before = datetime.now(UTC)
    with pytest.raises(AirflowRescheduleException) as caught:
        reschedule()
    assert before + LEASE_POLL <= caught.value.reschedule_date <= datetime.now(UTC) + LEASE_POLL
    assert elsewhere.waited == RENEWAL_SECONDS


def test_the_task_goes_on_where_the_holder_does_not_renew_its_lease_and_holds_its_slot_for_a_minute_at_most(
    elsewhere: Elsewhere, reschedule: Callable[[], None]
) -> None:
    reschedule()
    assert elsewhere.waited == MISSED_RENEWALS * RENEWAL_SECONDS
    assert elsewhere.file.read() is None, "so that the driver, which never waits, finds none"
