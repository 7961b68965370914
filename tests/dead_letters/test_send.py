"""Dead letters: what was not acknowledged stays pending, and nothing becomes dead before its letter is safe (I6)."""

import tracemalloc
from array import array
from datetime import timedelta

import numpy as np
import pytest

from ackline.dead_letters.send import DeadRows, Letters, _runs_at
from ackline.ledger.outcomes import Outcome, OutcomeRow
from ackline.ledger.pending import NEVER, PendingKind, PendingRuns, PendingState
from ackline.ledger.turns import TurnKind
from tests.support.memory import ArrivedLetter, GroupCommit, HandlerCall, TableCommit
from tests.support.memory_lane import DEAD, FAILS, OK, TP, TP1, MemoryLane
from tests.tables.lane_rows import NOON


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


def test_rows_of_dead_letters_are_held_as_columns_and_can_be_read_twice() -> None:
    count = 50_000
    starts = np.arange(count, dtype=np.int64) * 2
    codes, dues = np.zeros(count, dtype=np.int32), np.full(count, NEVER)
    waiting = PendingRuns(starts, starts + 1, codes, dues, [PendingState(PendingKind.DEAD_LETTER, 3, "Late")])
    last = starts[::-1]
    confirmed = (array("q", last.tolist()), array("q", (last % 4).tolist()), array("q", (last * 10).tolist()))
    tracemalloc.start()
    try:
        letters = Letters.of("orders.dead", confirmed)
        rows = DeadRows(_runs_at(waiting, letters.offsets), {Outcome.EXPIRED: array("q", [7])}, NOON, letters)
        assert tracemalloc.get_traced_memory()[0] / count < 80
    finally:
        tracemalloc.stop()
    first = list(rows)
    assert len(rows) == len(first) == count + 1
    assert first == list(rows)
    assert [row.letter for row in first[:3]] == ["orders.dead[0] 0", "orders.dead[2] 20", "orders.dead[0] 40"]
    assert first[0]._replace(letter=None) == OutcomeRow(0, 0, Outcome.DEAD, NOON, "Late", reason="after 3 attempts")
    assert first[-1] == OutcomeRow(7, 0, Outcome.EXPIRED, NOON)
