"""Deadlines and answers of many records: what they cost in memory, and that answers for others end no run."""

import tracemalloc
from dataclasses import replace
from datetime import timedelta
from itertools import count

import numpy as np
import pyarrow as pa

from ackline.in_flight.ack_topic import range_to_read
from ackline.in_flight.decide import decide_answers
from ackline.ledger.pending import PendingKind, PendingRuns, PendingState, microseconds
from ackline.tables.rows import decision_rows
from tests.support.memory_lane import NOON, TP, WAITS, AnsweredLane, MemoryBackfill

RECORDS = 40_000
LIMIT = 300
"""Bytes of memory for each record, the Arrow table that is written included: with an object a row it was 1,150."""


def test_many_timeouts_take_less_than_300_bytes_each() -> None:
    lane = AnsweredLane()
    plan = lane.plan()
    adapters, before = lane.at(3600).adapters(), lane.newest()
    starts = np.arange(RECORDS)
    waiting = PendingState(PendingKind.IN_FLIGHT, 1, None)
    dues = microseconds(NOON + timedelta(seconds=10)) + starts * 1000  # each record was handled at a time of its own
    runs = PendingRuns(starts, starts + 1, np.zeros(RECORDS, np.int32), dues, [waiting])
    states = {TP: replace(before.partitions[TP].state, complete_to=RECORDS, pending=runs)}
    assert plan.ack_position is not None
    wanted = range_to_read(adapters, plan.ack_position)
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        rows, report = decide_answers(adapters, plan, before, wanted, states)
        table = decision_rows(plan.turn, NOON.date(), "run", rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (table.num_rows, report.counts) == (RECORDS, {"timed_out": RECORDS})
    assert (peak + pa.total_allocated_bytes() - arrow) / RECORDS < LIMIT


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
