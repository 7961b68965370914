"""Dead letters: what was not acknowledged stays pending, and nothing becomes dead before its letter is safe (I6)."""

import pytest

from ackline.ledger import PendingKind
from ackline.testing.memory import ArrivedLetter, GroupCommit, HandlerCall, TableCommit
from ackline.turns import TurnKind
from tests.memory_lane import DEAD, FAILS, OK, TP, TP1, MemoryLane


@pytest.mark.parametrize("fault", ["lost", "unanswered", "refused"])
def test_i6_only_records_whose_letters_were_acknowledged_are_dead(fault: str) -> None:
    lane = MemoryLane(DEAD, OK, DEAD)
    lane.world.faults.letters.append(fault)
    lane.run()
    pending = lane.state().pending
    assert [(run.start, run.end, run.value.kind) for run in pending] == [(0, 1, PendingKind.DEAD_LETTER)]
    assert lane.committed() == 0
    lane.run()
    assert (lane.state().pending, lane.committed()) == ((), 3)


def test_i6_letters_are_acknowledged_before_decisions_are_stored() -> None:
    lane = MemoryLane(DEAD).after_run()
    writes = [
        event.application.rsplit("/", 1)[-1] if isinstance(event, TableCommit) else type(event)
        for event in lane.world.history
        if not isinstance(event, HandlerCall)
    ]
    order = [write for write in writes if write in ("outcomes", ArrivedLetter, "decisions", GroupCommit)]
    assert order == ["outcomes", ArrivedLetter, "decisions", GroupCommit]
    assert writes[-2:] == ["settlement", GroupCommit]


def test_letters_of_a_paused_partition_wait() -> None:
    lane = MemoryLane(DEAD)
    lane.world.faults.letters.append("lost")
    lane.run()
    lane.perform(TurnKind.PAUSE)
    lane.run()
    assert lane.letters() == []
    lane.perform(TurnKind.RESUME)
    lane.run()
    assert (lane.state().pending, lane.committed()) == ((), 1)


def test_dead_letters_of_a_partition_without_leader_stay_pending_and_the_others_are_sent() -> None:
    lane = MemoryLane(FAILS, partitions=2, retry={"max_retries": 0})
    lane.produce(FAILS, tp=TP1)
    lane.plan_and_replay()
    lane.log(TP1).has_leader = False
    lane.settle()
    assert [len(lane.state(tp).pending) for tp in (TP, TP1)] == [0, 1]
    lane.log(TP1).has_leader = True
    lane.run()
    assert [letter.value for letter in lane.letters()] == [FAILS, FAILS]
