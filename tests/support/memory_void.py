"""An operator's void, and processes that stop beside it, in the lab of the steps in memory."""

from collections.abc import Callable
from typing import Any

from ackline.actions import void as operator_void
from ackline.actions.void import ClosedTurn
from tests.chaos.actor import Actor
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, MemoryLane

GUARANTEES = (AT_LEAST_ONCE, AT_MOST_ONCE)
REASON = "the batch is broken"


def void(lane: MemoryLane, pause: bool = False) -> ClosedTurn:
    """Closes the open turn of the lane, as `ackline void` does."""
    return void_by(lane.adapters("operator"), pause)


def void_by(adapters: Any, pause: bool = False) -> ClosedTurn:
    """Closes the open turn of the lane by the adapters of a process, which a test may stop."""
    return operator_void.void_open_turn(adapters, operator_void.open_turn(adapters).plan.turn, REASON, pause)


def stopped(lane: MemoryLane, work: Callable[[Any], object], operation: str, when: str) -> Actor:
    """Returns a process that was stopped at an operation."""
    actor = Actor("slow", lambda hook: work(lane.adapters("slow", hook)))
    actor.advance(lambda at, at_when: (at, at_when) == (operation, when))
    assert not actor.over
    return actor


def lose_a_file(lane: MemoryLane) -> None:
    """Plans and replays a turn, and loses a file of its outcomes."""
    lane.plan_and_replay()
    lane.world.tables.lost_files.add(next(iter(lane.world.tables.outcomes)))
