"""Every record fails (fault 26), and the clock jumps (fault 27): the limits hold, and the lane goes on."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, MemoryLane

HOUR = timedelta(hours=1)
WINDOW, RECORDS = 5, 10


def test_fault_26_everything_fails_and_the_window_is_full() -> None:
    """I8: fresh reads stay in the window above the floor, and due retries are made. I12: the end is reached."""
    lane = MemoryLane(*[FAILS] * RECORDS, max_uncommitted=WINDOW, retry={"initial_delay": "1m", "max_retries": 1})
    handled: Counter[tuple[int, int]] = Counter()
    for _ in range(2 * RECORDS // WINDOW + 1):
        floor, before = lane.committed() or 0, len(lane.calls())
        lane.run()
        calls = lane.calls()[before:]
        handled.update(calls)
        assert all(offset < floor + WINDOW for offset, attempt in calls if attempt == 1)
        assert lane.state().complete_to <= lane.floor() + WINDOW
        lane.world.now += timedelta(minutes=1)
    assert handled == Counter({(offset, attempt): 1 for offset in range(RECORDS) for attempt in (1, 2)})
    assert (len(lane.letters()), lane.committed()) == (RECORDS, RECORDS)


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["forwards", "backwards"])
def test_fault_27_the_clock_of_the_process_that_plans_and_settles_jumps_an_hour(jump: timedelta) -> None:
    """I5: new records are read at any time, and a retry waits until it is due. The tasks keep the true time."""
    lane = MemoryLane(FAILS_ONCE, OK, retry={"initial_delay": "2h", "max_delay": "3h", "max_retries": 1}).after_run()
    lane.produce(OK)
    lane.run(lane.adapters(clock=lambda: lane.world.now + jump))
    assert (lane.calls(), lane.pending(), lane.committed()) == ([(0, 1), (1, 1), (2, 1)], [(0, 1)], 0)
    due = lane.state().next_due
    assert due is not None
    for lane.world.now in (due - timedelta(seconds=1), due):
        lane.run()
    assert (lane.calls()[3:], lane.committed()) == ([(0, 2)], 3)
