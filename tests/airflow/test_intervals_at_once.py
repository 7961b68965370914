"""Fifty intervals of Airflow's own backfill at once, each with a lane of its own."""

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from ackline.backfill.run import find_backfill, run_backfill
from tests.airflow.interval_run import START, IntervalRun
from tests.support.memory import GroupCommit
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS_ONCE, OK, MemoryLane


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
    started = run.plan()
    assert started is not None
    yield "started"
    run.begin(started)
    yield "begun"
    while not run.is_settled():
        run_backfill(run.adapters(), no_session, 1)
        yield "a turn"
    run.finish(started)
