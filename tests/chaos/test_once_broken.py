"""Traces in which the state machine once found a broken invariant, each in its shortest form."""

import pytest

from ackline.errors import GroupMoved
from ackline.ledger.outcomes import Outcome
from tests.chaos.account import rows_of
from tests.chaos.config import Config
from tests.chaos.machine import ChaosMachine
from tests.support.memory_lane import OK, TP, MemoryLane


def test_a_void_turn_remembers_that_its_plan_met_a_commit_of_ours() -> None:
    """Otherwise a commit overwrites a group that was moved back to where the lane once started (S36)."""
    lane = MemoryLane(*[OK] * 4, dead_letter="none", max_records_per_run=1)
    lane.move_group(TP, 1)
    lane.run()
    lane.plan()
    lane.log().expire(3)
    assert lane.replay().void
    lane.move_group(TP, 1)
    with pytest.raises(GroupMoved):
        lane.run()


def test_a_topic_created_again_while_settle_reads_its_dead_letters_makes_none_of_its_own_dead() -> None:
    machine = ChaosMachine()
    machine.begin(Config())
    machine.outage = True
    machine.append(machine.log(0), [{}])
    machine.append(machine.log(1), [{}])
    machine.holds()
    machine.start(0, [], "run", ("letter", "before"), False)
    machine.holds()
    machine.topics_change(1, "recreated")
    machine.holds()
    machine.finish(0)
    machine.holds()
    turns = machine.oracle.epochs[-1].turns.values()
    rows = [(tp, row) for turn in turns for tp, row in rows_of(turn.decisions)]
    dead = [tp.topic for tp, row in rows if row.outcome is Outcome.DEAD]
    assert dead == ["orders"], "the record of the other topic, which was created again, is not dead"
