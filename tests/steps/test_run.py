"""When a run, or the replay step of a DAG, takes another turn."""

import pytest

from ackline.errors import RangeGone
from ackline.ledger.turns import TurnKind
from ackline.steps import run
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS, OK, TP, MemoryLane


def test_the_replay_step_goes_on_over_gaps_to_the_turn_that_settle_is_to_find() -> None:
    lane = MemoryLane(max_records_per_run=2)
    lane.log().add_gap(5)
    lane.produce(OK, OK, OK)
    lane.plan()
    done = run.replay_until_records(lane.adapters(), no_session)
    lane.settle()
    assert (done.calls, lane.calls()) == (1, [(5, 1)])
    assert (lane.newest().turn.n, lane.committed()) == (3, 6)


def test_the_replay_step_leaves_the_turn_of_another_run_to_that_run() -> None:
    """The other run has settled this one's turn and planned the next, by the time this one looks again."""
    lane = MemoryLane(OK, OK)
    lane.plan()

    def other_run_goes_on() -> None:
        lane.settle()
        lane.produce(OK, OK)
        lane.settings["max_records_per_run"] = 1
        lane.plan()

    lane.strike("outcomes", other_run_goes_on, AFTER)
    assert run.replay_until_records(lane.adapters(), no_session).calls == 2
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1), (1, 1)])


def test_what_retention_took_leaves_the_window_to_the_records_behind_it() -> None:
    lane = MemoryLane(OK, OK, max_uncommitted=2).after_run()
    lane.produce(OK, OK, OK, OK)
    lane.log().expire(5)
    lane.run()
    assert (lane.newest().turn.n, lane.committed(), lane.calls()[2:]) == (2, 6, [(5, 1)])


def test_a_run_goes_on_over_a_gap_longer_than_the_window_beside_a_pending_record() -> None:
    """The gap fills no window: behind it, as many records are read as the window allows beside the pending one."""
    lane = MemoryLane(FAILS, max_uncommitted=4, retry={"initial_delay": "1h"}).after_run()
    lane.log().add_gap(20)
    lane.produce(*[OK] * 10)
    lane.run()
    assert (lane.offsets(), lane.state().uncommitted) == ([0, 21], 2)
    for _ in range(3):
        lane.run()
    assert (lane.offsets(), lane.state().uncommitted) == ([0, 21, 22, 23], 4)
    assert [planned.why for planned in lane.plan().partitions.values()] == ["window full"]
    assert sum(settlement.partitions[TP].gaps or 0 for settlement in lane.world.tables.settlements.values()) == 20


@pytest.mark.parametrize("step", [run.run, run.replay_until_records])
def test_a_run_stops_after_five_void_turns_in_a_row(step: object) -> None:
    """Retention takes a record between each plan and its read; the next record comes in time for the next plan."""
    lane = MemoryLane(OK)

    def retention_is_quicker() -> None:
        lane.produce(OK)
        lane.log().expire(lane.log().end - 1)
        lane.strike("plan", retention_is_quicker, AFTER)

    lane.strike("plan", retention_is_quicker, AFTER)
    if step is run.replay_until_records:
        lane.plan()
    with pytest.raises(RangeGone, match="5 turns in a row"):
        step(lane.adapters(), no_session)  # type: ignore[operator]
    assert lane.kinds() == [TurnKind.GENESIS, *[TurnKind.VOID] * 5]


def test_s45_a_run_that_has_skipped_skips_again_after_another_run_has_read() -> None:
    """The other run finishes the skip that this one has planned, and goes on; then the log grows."""
    lane = MemoryLane(max_offset_behind={"offsets": 4, "policy": "skip"}).after_run()
    lane.produce(*[OK] * 9)

    def another_run() -> None:
        lane.run()
        lane.produce(*[OK] * 9)

    lane.strike("settlement", another_run, BEFORE)
    lane.run()
    assert lane.offsets() == [5, 6, 7, 8, 14, 15, 16, 17]
