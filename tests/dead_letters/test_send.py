"""Dead letters: what was not acknowledged stays pending, and nothing becomes dead before its letter is safe (I6)."""

from datetime import timedelta

import pytest

from ackline.ledger.fold import PendingKind
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from tests.support.memory import ArrivedLetter, GroupCommit, HandlerCall, TableCommit
from tests.support.memory_lane import DEAD, FAILS, OK, TP, TP1, MemoryLane


@pytest.mark.parametrize("fault", ["lost", "unanswered", "refused"])
def test_i6_only_records_whose_letters_were_acknowledged_are_dead(fault: str) -> None:
    lane = MemoryLane(DEAD, OK, DEAD)
    lane.world.faults.letters.append(fault)
    lane.run()
    pending = lane.state().pending
    assert [(run.start, run.end, run.value.kind) for run in pending] == [(0, 1, PendingKind.DEAD_LETTER)]
    assert lane.committed() == 0
    lane.run()
    assert (lane.pending(), lane.committed()) == ([], 3)


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


def test_a_letter_that_is_sent_again_by_a_later_turn_has_the_time_of_its_failure_and_not_of_that_turn() -> None:
    lane = MemoryLane(DEAD)
    lane.world.faults.letters.append("unanswered")
    lane.run()
    lane.world.now += timedelta(hours=1)
    lane.run()
    first, second = [dict(letter.headers) for letter in lane.letters()]
    assert first.pop("ackline.turn") != second.pop("ackline.turn")
    assert (first, first["ackline.failed_at"]) == (second, "2026-03-01T12:00:00.000+00:00")
    assert "ackline.error_message" not in first, "a world keeps no messages"


def test_letters_are_read_in_portions_and_each_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackline.dead_letters.send._PORTION", 2)
    lane = MemoryLane(*[DEAD] * 3, partitions=2)
    lane.produce(*[DEAD] * 2, tp=TP1)
    lane.run()
    sent = [(letter.headers["ackline.partition"], letter.headers["ackline.offset"]) for letter in lane.letters()]
    assert sorted(sent) == [("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("1", "1")]
    assert (lane.committed(), lane.committed(TP1)) == (3, 2)


def test_letters_of_a_paused_partition_wait() -> None:
    lane = MemoryLane(DEAD)
    lane.world.faults.letters.append("lost")
    lane.run()
    lane.perform(TurnKind.PAUSE)
    lane.run()
    assert lane.letters() == []
    lane.perform(TurnKind.RESUME)
    lane.run()
    assert (lane.pending(), lane.committed()) == ([], 1)


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


@pytest.mark.parametrize(("dead_letter", "retries"), [({"topic": "dead"}, 2), ("none", 2), ("none", 0)])
def test_a_dead_row_names_how_many_attempts_the_record_had(dead_letter: object, retries: int) -> None:
    lane = MemoryLane(FAILS, dead_letter=dead_letter, retry={"max_retries": retries, "period": "0s"})
    for _ in range(retries + 1):
        lane.run()
    dead = [row.reason for row in lane.effective_rows() if row.outcome is Outcome.DEAD]
    assert dead == ["after 3 attempts" if retries else "after 1 attempt"]
