"""A run of Airflow's own backfill: `plan` has the interval replayed in a lane, and the other tasks are skipped."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    ParamValidationError,
)

from ackline.airflow.backfill import REASON
from ackline.airflow.operators import ReplayOperator, SettleOperator, replays_interval
from ackline.errors import ConfigError
from tests.airflow.interval_run import END, LANE, RUN_ID, START, IntervalRun, two_of_four
from tests.support.memory_lane import OK


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> IntervalRun:
    """A run of an interval with two of four records; the pipeline has handled all four."""
    return two_of_four(monkeypatch)


def test_plan_starts_a_run_of_the_interval_and_is_deferred_until_it_has_ended(run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    assert (started.trigger_dag_id, started.deferrable, started.wait_for_completion) == ("backfill__lane", True, True)
    assert (started.allowed_states, started.failed_states, started.reset_dag_run) == (["success"], ["failed"], False)
    assert started.conf == {
        "id": LANE.removeprefix("backfill-"), "from": "2026-02-01T00:00:00+00:00", "to": "2026-02-02T00:00:00+00:00",
        "epoch": 0, "confirm": True, "confirm_offsets": 2, "reason": f"data interval of replay__lane, run {RUN_ID}",
    }  # fmt: skip
    run.replay(started)
    result = run.finish(started)
    assert (result["lane"], result["epoch"], result["settled"], result["outcomes"]) == (LANE, 0, True, {"acked": 2})
    assert run.live.calls()[4:] == [(1, 1), (2, 1)]


def test_the_live_lane_and_the_group_are_what_they_were(run: IntervalRun) -> None:
    before = run.live.newest(), run.live.committed()
    run.replayed()
    assert (run.live.newest(), run.live.committed()) == before


def test_the_other_tasks_are_skipped_also_when_they_are_cleared_alone(run: IntervalRun) -> None:
    """A turn of the live lane may be open: it is another run's."""
    run.live.produce(OK)
    run.live.plan()
    written = len(run.live.world.history)
    for name, kind in (("replay", ReplayOperator), ("settle", SettleOperator)):
        task, context = run.task(name)
        assert isinstance(task, kind)
        with pytest.raises(AirflowSkipException, match="replays its data interval"):
            task.execute(context)
    assert len(run.live.world.history) == written


@pytest.mark.parametrize("run_type", ["scheduled", "manual", "asset_triggered", "operator_triggered"])
def test_runs_of_other_types_replay_no_interval(run_type: str) -> None:
    for value in (run_type, SimpleNamespace(value=run_type)):
        assert not replays_interval({"dag_run": SimpleNamespace(run_type=value)})
    assert not replays_interval({})


def test_an_interval_without_a_record_starts_nothing_and_succeeds(run: IntervalRun) -> None:
    run.interval = (START - timedelta(days=9), START - timedelta(days=8))
    assert run.plan() is None
    assert run.skipped == ["replay", "settle"]
    assert list(run.live.adapters().store.lanes()) == ["live"]


def test_partitions_whose_log_begins_inside_the_interval_or_after_it_are_named(
    run: IntervalRun, capsys: pytest.CaptureFixture[str]
) -> None:
    def warns() -> bool:
        run.plan()
        printed = capsys.readouterr().out
        return "retention may have taken records" in printed and "orders[0] begins" in printed

    assert not warns()
    run.live.log().expire(1)
    assert warns(), "the log begins with the first record of the interval: there may have been others"
    run.interval = (END, END + timedelta(days=1))
    assert not warns()
    run.live.log().expire(4)
    assert not warns(), "an empty log has no first record"


def test_a_run_without_a_data_interval_fails(run: IntervalRun) -> None:
    for interval in ((None, None), (START, START)):
        run.interval = interval
        with pytest.raises(AirflowFailException, match="has no data interval"):
            run.plan()


@pytest.mark.parametrize("params", [{"max_records": 2}, {"only_retries": True}, {"partitions": ["orders[0]"]}], ids=str)
def test_params_of_a_live_turn_are_refused(params: dict[str, Any], run: IntervalRun) -> None:
    run.params = params
    with pytest.raises(AirflowFailException, match=f"{next(iter(params))}: a data interval is replayed whole"):
        run.plan()


def test_an_interval_of_more_offsets_than_confirm_above_wants_their_number(run: IntervalRun) -> None:
    run.live.produce(OK, OK, time=START + timedelta(hours=1))  # beyond the end, yet before its last record
    run.interval = (START - timedelta(days=1), END + timedelta(days=1))
    with pytest.raises(AirflowFailException, match=r"confirm_offsets: .* holds 6 offsets, more than .* \(3\)"):
        run.plan()
    run.params = {"confirm_offsets": 5}
    with pytest.raises(AirflowFailException, match="give 6 or more there"):
        run.plan()
    run.params = {"confirm_offsets": 100}
    started = run.plan()
    assert started is not None
    assert run.begin(started)["asked"]["offsets"] == 6
    run.params = {"confirm_offsets": 0}
    with pytest.raises(ParamValidationError):
        run.plan()


def test_a_paused_dag_of_backfills_fails_the_run_instead_of_leaving_it_deferred_for_ever(run: IntervalRun) -> None:
    run.paused = True
    with pytest.raises(AirflowFailException, match=r"backfill__lane is paused.*airflow dags unpause backfill__lane"):
        run.plan()


# ---- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_run_of_the_lane_fails_the_interval_with_its_reason(run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    run.live.settings["backfill"] = {"confirm_above": 0}
    run.live.produce(OK, time=START + timedelta(hours=2))  # between the two looks at the log
    run.live.log().expire(2)
    with pytest.raises(AirflowFailException, match="confirm_offsets") as caught:
        run.begin(started)
    assert run.pushed[started.dag_run_id, "begin", REASON] == str(caught.value)[:200].strip()
    task, context = run.task("plan")
    event = {"run_ids": [started.dag_run_id], started.dag_run_id: "failed"}
    with pytest.raises(
        AirflowFailException, match=r"was not replayed\. .* has failed: confirm_offsets: .*clear this task"
    ):
        task.execute_complete(context, ("DagStateTrigger", event))


def test_a_failed_run_that_has_left_no_reason_names_its_logs(run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    task, context = run.task("plan")
    event = {"run_ids": [started.dag_run_id], started.dag_run_id: "failed"}
    with pytest.raises(AirflowFailException, match="its tasks' logs have the reason"):
        task.execute_complete(context, ("DagStateTrigger", event))


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_was_marked_as_successful_by_hand_proves_nothing(begun: bool, run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    if begun:
        run.replay(started, records=1)
    task, context = run.task("plan")
    event = {"run_ids": [started.dag_run_id], started.dag_run_id: "success"}
    with pytest.raises(AirflowException, match="is not settled" if begun else "no lane has begun") as caught:
        task.execute_complete(context, ("DagStateTrigger", event))
    assert not isinstance(caught.value, AirflowFailException), "Airflow tries again"
    run.retried()
    assert run.plan() is not None


def test_the_reason_of_a_failure_is_scrubbed(run: IntervalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    started = run.plan()
    assert started is not None

    def refused(*_: Any) -> None:
        raise ConfigError("the broker refused sasl.password=canary")

    monkeypatch.setattr("ackline.pipeline.functions.check_functions", refused)
    with pytest.raises(AirflowFailException):
        run.begin(started)
    assert run.pushed[started.dag_run_id, "begin", REASON] == "the broker refused sasl.password=***"
