"""Every record fails (fault 26), and the clock jumps (fault 27): the limits hold, and the lane goes on."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ackline.errors import ConfigError
from ackline.steps import run
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, fails

HOUR = timedelta(hours=1)
WINDOW, RECORDS = 5, 10


def test_fault_26_everything_fails_and_the_window_is_full(lab: MakeLab) -> None:
    """I8: fresh reads stay in the window above the floor, and due retries are made. I12: the end is reached."""
    lane = lab(max_uncommitted=WINDOW, retry={"initial_delay": "1m", "max_retries": 1})
    lane.produce_records(RECORDS, fails(range(RECORDS), -1))
    handled: Counter[tuple[int, int]] = Counter()
    for _ in range(2 * RECORDS // WINDOW + 1):
        floor = lane.committed() or 0
        lane.run()
        calls = lane.new_calls()
        handled.update(calls)
        assert all(offset < floor + WINDOW for offset, attempt in calls if attempt == 1)
        assert lane.settled().state.complete_to <= lane.settled().state.floor + WINDOW
        lane.advance_clock(60)
    assert handled == Counter({(offset, attempt): 1 for offset in range(RECORDS) for attempt in (1, 2)})
    assert len(lane.letters()) == RECORDS
    lane.judge(settled=True)


@pytest.mark.parametrize("jump", [HOUR, pytest.param(-HOUR, marks=pytest.mark.deep)], ids=["forwards", "backwards"])
def test_fault_27_the_machine_s_clock_jumps_an_hour(lab: MakeLab, jump: timedelta) -> None:
    """I5: new records are read at any time, and a retry waits until it is due.

    The clock jumps only in the process that plans and settles; Spark's tasks keep the true time.
    """
    delay = "3s" if jump < timedelta() else "2h"
    lane = lab(retry={"initial_delay": delay, "max_delay": "3h", "max_retries": 1})
    lane.produce_records(2, {0: {"fail": 1}})
    run_by_clock(lane, lambda: datetime.now(UTC))
    lane.produce_records(1)
    run_by_clock(lane, lambda: datetime.now(UTC) + jump)
    assert (lane.new_calls(), lane.pending(), lane.committed()) == ([(0, 1), (1, 1), (2, 1)], [0], 0)
    lane.judge()
    if jump > timedelta():
        return
    due = lane.settled().state.next_due
    assert due is not None
    while datetime.now(UTC) < due:
        time.sleep(0.05)
    run_by_clock(lane, lambda: datetime.now(UTC))
    assert lane.new_calls() == [(0, 2)]
    lane.judge(settled=True)


def run_by_clock(lane: Lab, clock: Callable[[], datetime]) -> None:
    """Runs once by this clock, in place of the lab's fixed time."""
    with lane.adapters() as adapters:
        run.run(replace(adapters, fixed_now=None, clock=clock), lane.spark)


def test_fault_27_a_fixed_time_before_the_last_turn_is_refused_and_touches_nothing(lab: MakeLab) -> None:
    lane = lab(retry={"initial_delay": "1m"})
    lane.produce_records(2, {0: {"fail": 1}})
    lane.run()
    lane.advance_clock(-HOUR.total_seconds())
    turns = lane.table("plans")
    with pytest.raises(ConfigError, match="before the last turn"):
        lane.run()
    assert (lane.table("plans"), lane.committed()) == (turns, 0)
    lane.advance_clock(HOUR.total_seconds() + 60)
    lane.run()
    assert lane.committed() == 2
    lane.judge(settled=True)
