"""Runs of Airflow's own backfill: `plan` has the interval replayed in a lane; epochs, ids, fifty intervals at once."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    ParamValidationError,
)
from hypothesis import given
from hypothesis import strategies as st

from ackline.airflow.backfill import REASON
from ackline.airflow.interval import Interval, epoch_to_run, run_prefix
from ackline.airflow.operators import ReplayOperator, SettleOperator, replays_interval
from ackline.backfill.run import find_backfill, run_backfill
from ackline.errors import ConfigError
from tests.airflow.interval_run import END, LANE, RUN_ID, START, IntervalRun, two_of_four
from tests.support.memory import GroupCommit
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS_ONCE, OK, MemoryLane


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> IntervalRun:
    """A run of an interval with two of four records; the pipeline has handled all four."""
    return two_of_four(monkeypatch)


def test_plan_starts_a_run_of_the_interval_and_is_deferred_until_it_has_ended(run: IntervalRun) -> None:
    started = run.starts()
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


@pytest.mark.parametrize("params", [{"max_records": 2}, {"only_retries": True}, {"partitions": ["orders[0]"]},
                                    {"table_gone": ["totals"]}], ids=str)  # fmt: skip
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
    started = run.starts()
    assert run.begin(started)["asked"]["offsets"] == 6
    run.params = {"confirm_offsets": 0}
    with pytest.raises(ParamValidationError):
        run.plan()


def test_a_paused_dag_of_backfills_fails_the_run_instead_of_leaving_it_deferred_for_ever(run: IntervalRun) -> None:
    run.paused = True
    with pytest.raises(AirflowFailException, match=r"backfill__lane is paused.*airflow dags unpause backfill__lane"):
        run.plan()


def test_a_failed_run_of_the_lane_fails_the_interval_with_its_reason(run: IntervalRun) -> None:
    started = run.starts()
    run.live.settings["backfill"] = {"confirm_above": 0}
    run.live.produce(*[OK] * 3, time=START + timedelta(hours=2))  # between the two looks at the log
    run.live.log().expire(2)
    with pytest.raises(AirflowFailException, match="confirm_offsets") as caught:
        run.begin(started)
    assert run.pushed[started.dag_run_id, "begin", REASON] == str(caught.value)[:200].strip()
    with pytest.raises(
        AirflowFailException, match=r"was not replayed\. .* has failed: confirm_offsets: .*clear this task"
    ):
        run.finish(started, "failed")


def test_a_failed_run_that_has_left_no_reason_names_its_logs(run: IntervalRun) -> None:
    started = run.starts()
    with pytest.raises(AirflowFailException, match="its tasks' logs have the reason"):
        run.finish(started, "failed")


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_was_marked_as_successful_by_hand_proves_nothing(begun: bool, run: IntervalRun) -> None:
    started = run.starts()
    if begun:
        run.replay(started, records=1)
    with pytest.raises(AirflowException, match="is not settled" if begun else "has not begun epoch 0") as caught:
        run.finish(started, "success")
    assert not isinstance(caught.value, AirflowFailException), "Airflow tries again"
    run.retried()
    assert run.plan() is not None


def test_the_reason_of_a_failure_is_scrubbed(run: IntervalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    started = run.starts()

    def refused(*_: Any) -> None:
        raise ConfigError("the broker refused sasl.password=canary")

    monkeypatch.setattr("ackline.pipeline.functions.check_functions", refused)
    with pytest.raises(AirflowFailException):
        run.begin(started)
    assert run.pushed[started.dag_run_id, "begin", REASON] == "the broker refused sasl.password=***"


def test_a_whole_run_over_a_settled_lane_begins_a_new_epoch(run: IntervalRun) -> None:
    first = run.replayed()
    run.whole()
    second = run.replayed()
    assert first.dag_run_id != second.dag_run_id
    assert (run.epoch(), run.live.calls()[4:]) == (1, [(1, 1), (2, 1)] * 2)
    run.whole()
    run.replayed()
    assert run.epoch() == 2


def test_a_whole_run_whose_epoch_has_not_begun_is_not_taken_for_replayed(run: IntervalRun) -> None:
    """A user has marked `begin` as successful: the lane is settled, by the epoch before."""
    run.replayed()
    run.whole()
    started = run.starts()
    with pytest.raises(AirflowException, match="has not begun epoch 1"):
        run.finish(started, "success")


def test_a_cleared_task_of_a_settled_lane_does_nothing(run: IntervalRun) -> None:
    run.replayed()
    run.cleared()
    assert run.plan() is None
    assert (run.epoch(), run.live.calls()[4:]) == (0, [(1, 1), (2, 1)])


@pytest.mark.parametrize("again", ["whole", "cleared", "retried"])
def test_any_run_over_a_lane_that_is_not_settled_goes_on_with_it(again: str, run: IntervalRun) -> None:
    started = run.starts()
    run.replay(started, records=1)
    getattr(run, again)()
    run.replayed()
    assert (run.epoch(), run.live.calls()[4:]) == (0, [(1, 1), (2, 1)])


def test_a_task_that_is_retried_after_its_run_was_started_begins_no_further_epoch(run: IntervalRun) -> None:
    """Its process died between the start of the run and the deferral. The started run has begun nothing yet, is in the
    middle of the lane, or has settled it."""
    run.replayed()
    run.whole()
    first = run.starts()
    run.retried()
    second = run.starts()
    assert [(started.conf or {})["epoch"] for started in (first, second)] == [1, 1]
    assert first.dag_run_id != second.dag_run_id
    run.begin(second)
    run.replay(first)
    assert run.epoch() == 1
    run.retried()
    assert run.plan() is None
    assert run.epoch() == 1


def test_a_run_that_a_user_has_deleted_and_made_again_is_a_whole_run(run: IntervalRun) -> None:
    run.replayed()
    run.started, run.tries = run.started + timedelta(days=1), 1
    run.replayed()
    assert run.epoch() == 1


TIMES = st.datetimes(timezones=st.just(UTC))


@given(TIMES, TIMES, TIMES, TIMES)
def test_the_same_interval_has_the_same_id_and_two_have_two(
    start: datetime, end: datetime, other_start: datetime, other_end: datetime
) -> None:
    interval, other = Interval(start, end), Interval(other_start, other_end)
    assert (interval.id == other.id) == (interval == other)
    assert interval.lane == f"backfill-{interval.id}"  # `lane_of` refuses what is no id


def test_an_interval_in_another_zone_has_the_same_id() -> None:
    zone = datetime.fromisoformat("2026-02-01T05:30:00+05:30").tzinfo
    moved: Any = SimpleNamespace(
        data_interval_start=START.astimezone(zone), data_interval_end=END.astimezone(zone), run_type="backfill"
    )
    assert Interval.of_run({"dag_run": moved, "run_id": "r"}).lane == LANE


@pytest.mark.parametrize(("newest", "settled", "begun_by", "whole", "epoch"), [
    (None, False, [], True, 0),
    (None, False, [], False, 0),
    (0, False, ["x"], True, 0),
    (0, False, ["x"], False, 0),
    (0, True, ["x"], True, 1),
    (0, True, ["x"], False, None),
    (0, True, ["mine__1"], True, None),
    (1, True, ["x", "mine__2"], True, None),
    (1, True, ["mine__2", "x"], True, None),
    (4, True, list("abcde"), True, 5),
])  # fmt: skip
def test_an_epoch_begins_only_with_a_whole_run_over_a_settled_lane_and_once(
    newest: int | None, settled: bool, begun_by: list[str], whole: bool, epoch: int | None
) -> None:
    assert epoch_to_run(newest, settled, begun_by, "mine__", whole) == epoch


def test_runs_that_began_at_different_times_start_runs_of_different_names() -> None:
    interval = Interval(START, END)
    assert run_prefix(interval, START) == "interval__20260201t000000z-20260202t000000z__20260201T000000.000000__"
    assert run_prefix(interval, START) != run_prefix(interval, START + timedelta(microseconds=1))


def test_s70_fifty_intervals_at_once_settle_a_lane_each_and_leave_the_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes one step, and others go on before its next one: plan, begin, a turn for one record, plan again.
    Between them the live lane reads new records. Every third record fails once."""
    live = MemoryLane(retry={"initial_delay": "0s", "period": "0s", "max_retries": 2}, schedule="@hourly")
    hours = [START + timedelta(hours=hour) for hour in range(50)]
    for number, hour in enumerate(hours):
        live.produce(OK, FAILS_ONCE if number % 3 else OK, time=hour)
    live.run()
    runs = [IntervalRun(live, monkeypatch) for _ in hours]
    for run, hour in zip(runs, hours, strict=True):
        run.interval, run.run_id = (hour, hour + timedelta(hours=1)), f"backfill__{hour.isoformat()}"
    todo, order, ended = [_steps(run) for run in runs], random.Random(7), 0
    while todo:
        steps = order.choice(todo)
        if next(steps, None) is None:
            todo.remove(steps)
            ended += 1
        elif order.random() < 0.1:
            live.produce(OK)
            live.run()
    assert ended == 50
    store = live.adapters().store
    lanes = {lane: find_backfill(store.other_lane(lane)) for lane in store.lanes() if lane != "live"}
    assert set(lanes) == {run.lane for run in runs}
    for run, number in zip(runs, range(0, 100, 2), strict=True):
        found = lanes[run.lane]
        assert found is not None
        assert (found.newest.turn.epoch, found.account.settled, found.account.outcomes) == (0, True, {"acked": 2})
        [asked] = found.account.asked.values()
        assert [(part.start, part.end) for part in asked] == [(number, number + 2)]
    commits = [event for event in live.world.history if isinstance(event, GroupCommit)]
    assert {commit.run_id for commit in commits} == {"run"}
    assert live.committed() == live.log().end


def _steps(run: IntervalRun) -> Iterator[str]:
    """Takes the steps of an interval's run one by one."""
    started = run.starts()
    yield "started"
    run.begin(started)
    yield "begun"
    while not run.is_settled():
        run_backfill(run.adapters(), no_session, 1)
        yield "a turn"
    run.finish(started)
