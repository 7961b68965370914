"""Backfill lanes with records in flight, on tables and a broker in memory."""

from itertools import count

from tests.support.memory_answers import WAITS, AnsweredLane
from tests.support.memory_backfill import MemoryBackfill

TURNS = 20


def test_a_run_of_a_backfill_ends_while_answers_for_others_keep_coming() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    live.answer_with("for another lane", "ack")
    turns = count()

    def hook(operation: str, when: str) -> None:
        if (operation, when) == ("settlement", "after"):
            live.answer_with("for another lane", "ack")
            assert next(turns) < TURNS, "the run does not end"

    account = lane.run(lane.adapters(hook=hook))
    assert (account.pending["in_flight"], next(turns)) == (2, 1)
    live.answer(0)
    account = lane.run(lane.adapters(hook=hook))
    assert (account.pending["in_flight"], account.outcomes) == (1, {"acked": 1})
