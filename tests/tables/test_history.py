"""What became of an offset, from real tables: each state is derived from rows, plans and the newest settlement."""

from dataclasses import replace

import pytest

from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.fold import Pending, PendingKind
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.turns import TurnKind
from ackline.tables.history import evidence_of_offset
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, TP1, turn, written
from tests.tables.story import DUE, LOG, START, begin_story, failed, planned, settled


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    return begin_story(store)


def explain(store: LedgerStore, offset: int, tp: TopicPartition = TP) -> OffsetExplanation:
    newest = store.newest()
    assert newest is not None
    return explain_offset(evidence_of_offset(store, newest, tp, offset, LOG), NOON)


@pytest.mark.parametrize(
    ("offset", "state", "sentence"),
    [
        (5, "below the start", "is below 10, where epoch 0 of the lane begins"),
        (10, "acked", "was acked at attempt 1. Turn 1 settled it on 2026-03-01 at 12:00:00 UTC"),
        (13, "gap", "holds no record: turn 1 has read past it"),
        (15, "pending", "failed once with HTTPError and waits for attempt 2, due at 2026-03-01 12:05:00 UTC (in 5 min"),
        (16, "dead", "is dead after 2 attempts (HTTPError)"),
        (22, "expired", "is expired: retention took it first, with all of [20, 24). Turn 2 settled it"),
        (24, "acked", "was acked at attempt 1. Turn 2"),
        (35, "not yet read", "is in turn 4, which run run-4 has planned and no run has settled yet"),
        (60, "not yet read", "the lane has read everything below 30"),
        (100, "not yet read", "the log ends at 100"),
    ],
)
def test_the_state_of_an_offset_follows_from_rows_plans_and_settlement(
    lane: LedgerStore, offset: int, state: str, sentence: str
) -> None:
    found = explain(lane, offset)
    assert found.state == state
    assert sentence in found.sentence
    assert found.sentence.startswith(f"Offset {offset} of orders[0] ")


def test_the_events_of_an_offset_are_its_effective_rows_in_time_order(lane: LedgerStore) -> None:
    found = explain(lane, 16)
    events = [(event.turn, event.attempt, event.outcome.value) for event in found.events]
    assert events == [(1, 1, "failed"), (2, 2, "failed"), (2, 0, "dead")]
    assert found.attempts == 2
    assert explain(lane, 35).events == (), "the rows of a void turn do not count"


def test_a_pending_offset_names_the_open_turn_that_makes_its_attempt(lane: LedgerStore) -> None:
    found = explain(lane, 15)
    assert found.pending == Pending(PendingKind.RETRY, 1, DUE, "HTTPError")
    assert found.sentence.endswith("Turn 4, which is open, makes it.")


def test_a_partition_that_the_lane_does_not_have_is_named(lane: LedgerStore) -> None:
    assert explain(lane, 13, TP1).state == "not in the lane"


def test_without_stored_rows_no_offset_is_called_a_gap(store: LedgerStore) -> None:
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    plan = planned(1, OffsetRange(10, 20), guarantee="no_guarantee", record_outcomes=False)
    store.store_plan(plan)
    store.store_outcomes(turn(1), [])
    store.store_settlement(settled(1, 20), plan)
    assert explain(store, 13).state == "settled without a row"


def test_below_the_start_of_an_epoch_the_earlier_epoch_answers(lane: LedgerStore) -> None:
    """A reset begins epoch 1 at 25, where nothing is read again yet; then a turn reads [25, 28) without 26."""
    open_plan = planned(4, OffsetRange(30, 50), (ValuedRange(15, 16, 2),))
    lane.store_settlement(settled(4, 30, failed(15), kind=TurnKind.VOID), open_plan)
    reset = planned(5, OffsetRange(25, 25), kind=TurnKind.RESET)
    lane.store_plan(reset)
    lane.store_settlement(settled(5, 30, failed(15), kind=TurnKind.RESET), reset)
    assert (explain(lane, 10).state, explain(lane, 13).state, explain(lane, 5).state) == (
        "acked",
        "gap",
        "below the start",
    )
    assert explain(lane, 10).sentence.endswith("Turn 1 of epoch 0 settled it on 2026-03-01 at 12:00:00 UTC.")
    again = explain(lane, 27)
    assert (again.state, len(again.events)) == ("not yet read", 1)
    assert again.sentence.endswith("Epoch 0 settled it as acked.")
    first = planned(1, OffsetRange(25, 28), epoch=1)
    lane.store_plan(first)
    rows = [(25, 1, "acked"), (27, 1, "acked")]
    lane.store_outcomes(turn(1, 1), [written(lane, turn(1, 1), rows)])
    lane.store_settlement(replace(settled(1, 28, epoch=1, floor=25)), first)
    assert (explain(lane, 26).state, explain(lane, 27).state, explain(lane, 12).state) == ("gap", "acked", "acked")
