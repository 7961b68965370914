"""When a run of Airflow's own backfill begins a new epoch of its interval's lane, and when it resumes; ids of lanes."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
)
from hypothesis import given
from hypothesis import strategies as st

from ackline.airflow.interval import Interval, epoch_to_run, is_whole_run, run_prefix
from ackline.backfill.run import cancel
from tests.airflow.interval_run import END, LANE, START, IntervalRun, two_of_four


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> IntervalRun:
    """A run of an interval with two of four records; the pipeline has handled all four."""
    return two_of_four(monkeypatch)


# ---- epochs ---------------------------------------------------------------------------------------------------------


def test_a_whole_run_over_a_settled_lane_begins_a_new_epoch(run: IntervalRun) -> None:
    first = run.replayed()
    run.whole()
    second = run.replayed()
    assert first.dag_run_id != second.dag_run_id
    assert (run.epoch(), run.live.calls()[4:]) == (1, [(1, 1), (2, 1)] * 2)
    run.whole()
    run.replayed()
    assert run.epoch() == 2


def test_a_cleared_task_of_a_settled_lane_does_nothing(run: IntervalRun) -> None:
    run.replayed()
    run.cleared()
    assert run.plan() is None
    assert (run.epoch(), run.live.calls()[4:]) == (0, [(1, 1), (2, 1)])


@pytest.mark.parametrize("again", ["whole", "cleared", "retried"])
def test_any_run_over_a_lane_that_is_not_settled_goes_on_with_it(again: str, run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    run.replay(started, records=1)
    getattr(run, again)()
    run.replayed()
    assert (run.epoch(), run.live.calls()[4:]) == (0, [(1, 1), (2, 1)])


def test_a_task_that_is_retried_after_its_run_was_started_begins_no_further_epoch(run: IntervalRun) -> None:
    """Its process died between the start of the run and the deferral. The started run has begun nothing yet, is in the
    middle of the lane, or has settled it."""
    run.replayed()
    run.whole()
    first = run.plan()
    run.retried()
    second = run.plan()
    assert first is not None
    assert second is not None
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


def test_a_cancelled_lane_is_settled_and_a_whole_run_begins_anew(run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    run.begin(started)
    cancel(run.adapters(), "wrong handler")
    run.finish(started)
    run.whole()
    run.replayed()
    assert run.epoch() == 1


def test_a_lane_of_the_same_id_with_other_arguments_is_refused(run: IntervalRun) -> None:
    started = run.plan()
    assert started is not None
    run.begin(started)
    (started.conf or {})["to"] = "2026-02-03T00:00:00+00:00"
    with pytest.raises(AirflowFailException, match=r"--to: backfill .* began with"):
        run.begin(started)


# ---- ids ------------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("newest", "settled", "begun_by", "whole", "epoch"),
    [
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
    ],
)
def test_an_epoch_begins_only_with_a_whole_run_over_a_settled_lane_and_once(
    newest: int | None, settled: bool, begun_by: list[str], whole: bool, epoch: int | None
) -> None:
    assert epoch_to_run(newest, settled, begun_by, "mine__", whole) == epoch


def test_a_run_is_whole_if_no_other_task_of_it_has_a_state() -> None:
    assert is_whole_run({"replay": None, "settle": None})
    assert not is_whole_run({"replay": "skipped", "settle": "skipped"})
    assert not is_whole_run({"replay": None, "settle": "upstream_failed"})


def test_runs_that_began_at_different_times_start_runs_of_different_names() -> None:
    interval = Interval(START, END)
    assert run_prefix(interval, START) == "interval__20260201t000000z-20260202t000000z__20260201T000000.000000__"
    assert run_prefix(interval, START) != run_prefix(interval, START + timedelta(microseconds=1))
