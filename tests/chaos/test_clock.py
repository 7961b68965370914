"""Everything fails (fault 26), and the clock jumps (fault 27): bounds hold, and nothing stands still."""

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
    """I8: never more than the window above the floor, and its retries come all the same. I12: the end is reached."""
    one = lab(max_uncommitted=WINDOW, retry={"initial_delay": "1m", "max_retries": 1})
    one.records(RECORDS, fails(range(RECORDS), -1))
    handled: Counter[tuple[int, int]] = Counter()
    for _ in range(2 * RECORDS // WINDOW + 1):
        floor = one.committed() or 0
        one.run()
        mine = one.handled()
        handled.update(mine)
        assert all(offset < floor + WINDOW for offset, attempt in mine if attempt == 1)
        assert one.settled().state.complete_to <= one.settled().state.floor + WINDOW
        one.wait(60)
    assert handled == Counter({(offset, attempt): 1 for offset in range(RECORDS) for attempt in (1, 2)})
    assert len(one.letters()) == RECORDS
    one.judge(settled=True)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forwards", "backwards"])
def test_fault_27_the_machine_s_clock_jumps_an_hour(lab: MakeLab, jump: timedelta) -> None:
    """I5, and no stall: new records are read whatever the clock says, and a retry waits for its own time.

    The jump is that of the process that plans and settles; Spark's tasks keep the true time.
    """
    delay = "3s" if jump < timedelta() else "2h"
    one = lab(retry={"initial_delay": delay, "max_delay": "3h", "max_retries": 1})
    one.records(2, {0: {"fail": 1}})
    by_the_clock(one, lambda: datetime.now(UTC))
    one.records(1)
    by_the_clock(one, lambda: datetime.now(UTC) + jump)
    assert one.handled() == [(0, 1), (1, 1), (2, 1)]
    assert (one.pending(), one.committed()) == ([0], 0)
    one.judge()
    if jump > timedelta():
        return
    due = one.settled().state.next_due
    assert due is not None
    while datetime.now(UTC) < due:
        time.sleep(0.05)
    by_the_clock(one, lambda: datetime.now(UTC))
    assert one.handled() == [(0, 2)]
    one.judge(settled=True)


def by_the_clock(one: Lab, clock: Callable[[], datetime]) -> None:
    """One run that goes by this clock, not by a fixed time."""
    with one.parts() as parts:
        run.run(replace(parts, fixed_now=None, clock=clock), one.spark)


def test_fault_27_a_fixed_time_before_the_last_turn_is_refused_and_touches_nothing(lab: MakeLab) -> None:
    one = lab(retry={"initial_delay": "1m"})
    one.records(2, {0: {"fail": 1}})
    one.run()
    one.wait(-HOUR.total_seconds())
    turns = one.table("plans")
    with pytest.raises(ConfigError, match="before the last turn"):
        one.run()
    assert (one.table("plans"), one.committed()) == (turns, 0)
    one.wait(HOUR.total_seconds() + 60)
    one.run()
    assert one.committed() == 2
    one.judge(settled=True)
