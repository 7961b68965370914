"""What became of an offset, from real tables: each state is derived from rows, plans and the newest settlement."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ackline.audit import history
from ackline.audit.history import (
    attempts_at,
    dead_since,
    delta_versions,
    evidence_of_offset,
    log_starts_at,
    recent_turns,
    step_figures,
)
from ackline.handler import Durations, StepCounts
from ackline.ledger.explain import OffsetExplanation, explain_offset
from ackline.ledger.fold import OutcomeRow, Pending, PendingKind
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId, TurnKind
from ackline.tables.store import LedgerStore
from tests.audit.story import DUE, LOG, START, begin_story, failed, planned, settled
from tests.tables.lane_rows import NOON, TP, TP1, newest_of, store_turn, turn, written
from tests.ui.stored_lanes import StoredPartition, write_lane


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    return begin_story(store)


def explain(store: LedgerStore, offset: int, tp: TopicPartition = TP) -> OffsetExplanation:
    return explain_offset(evidence_of_offset(store, newest_of(store), tp, offset, LOG), NOON)


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


def test_a_dead_record_that_a_backfill_has_acked_since_is_said_to_be(lane: LedgerStore) -> None:
    assert "Backfill" not in explain(lane, 16).sentence
    backfill = lane.other_lane("backfill-mended")
    genesis, first = (turn(n)._replace(lane=backfill.lane) for n in (0, 1))
    backfill.store_settlement(replace(settled(0, 16, kind=TurnKind.GENESIS), turn=genesis))
    file = written(backfill, first, [(16, 1, "acked"), (10, 1, "acked")])
    plan = replace(planned(1, OffsetRange(16, 17)), turn=first)
    store_turn(backfill, plan, file, settled=replace(settled(1, 17), turn=first))
    assert explain(lane, 16).sentence.endswith(" Backfill mended acked it on 2026-03-01 at 12:00:00 UTC.")
    assert "Backfill" not in explain(lane, 10).sentence, "the live lane has acked it"


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


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        (("v1", "v2", "v2"), "Its failure was first seen in turn 2, the first with code v2."),
        (("v2", "v2", "v2"), ""),
        (("v1", "", "v2"), ""),
    ],
)
def test_a_failure_names_the_deploy_if_its_turn_was_the_first_one_with_its_code(
    store: LedgerStore, codes: tuple[str, str, str], sentence: str
) -> None:
    """Offset 20 fails in turns 2 and 3. A lane may have run the code before, or a version that stored none."""
    store.store_settlement(settled(0, START, kind=TurnKind.GENESIS))
    reads = [planned(1, OffsetRange(10, 20)), planned(2, OffsetRange(20, 30)),
             planned(3, OffsetRange(30, 40), (ValuedRange(20, 21, 2),))]  # fmt: skip
    failures: list[list[tuple[int, int, str]]] = [[], [(20, 1, "failed")], [(20, 2, "failed")]]
    for n, (read, rows, code) in enumerate(zip(reads, failures, codes, strict=True), 1):
        whole = replace(settled(n, 10 + 10 * n, *([failed(20, n - 1)] if rows else [])), code=code)
        store_turn(store, read, *([written(store, turn(n), rows)] if rows else []), settled=whole)
    found = explain(store, 20).sentence
    assert ("first seen" in found) == bool(sentence)
    assert found.endswith(sentence)


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
    reset = settled(5, 30, failed(15), kind=TurnKind.RESET)
    store_turn(lane, planned(5, OffsetRange(25, 25), kind=TurnKind.RESET), settled=reset)
    assert [explain(lane, offset).state for offset in (10, 13, 5)] == ["acked", "gap", "below the start"]
    assert explain(lane, 10).sentence.endswith("Turn 1 of epoch 0 settled it on 2026-03-01 at 12:00:00 UTC.")
    again = explain(lane, 27)
    assert (again.state, len(again.events)) == ("not yet read", 1)
    assert again.sentence.endswith("Epoch 0 settled it as acked.")
    file = written(lane, turn(1, 1), [(25, 1, "acked"), (27, 1, "acked")])
    store_turn(lane, planned(1, OffsetRange(25, 28), epoch=1), file, settled=settled(1, 28, epoch=1, floor=25))
    assert [explain(lane, offset).state for offset in (26, 27, 12)] == ["gap", "acked", "acked"]


def test_the_attempts_at_a_record_are_its_first_and_its_last_one_of_turns_that_count(lane: LedgerStore) -> None:
    """35 is in a turn that is void, 10 was acked, and nothing is known of 99."""
    found = attempts_at(lane, 0, {TP: [16, 15, 35, 10, 99], TP1: [16]}, Outcome.FAILED)
    assert {key: (attempts.number, attempts.first_at <= attempts.last_at) for key, attempts in found.items()} == {
        (TP, 16): (2, True), (TP, 15): (1, True),
    }  # fmt: skip
    assert attempts_at(lane, 0, {TP: [16]}, Outcome.FAILED).keys() == {(TP, 16)}
    assert attempts_at(lane, 0, {}, Outcome.FAILED) == attempts_at(lane, 1, {TP: [16]}, Outcome.FAILED) == {}


def test_dead_records_are_counted_from_a_time_on_in_all_epochs_and_of_turns_that_count(lane: LedgerStore) -> None:
    assert [dead_since(lane, NOON + timedelta(hours=hours)) for hours in (-1, 1)] == [[(NOON, 1)], []]
    decided = [OutcomeRow(offset, 0, Outcome.DEAD, NOON) for offset in (31, 32)]
    lane.store_decisions(planned(4, OffsetRange(30, 50)), "run-4", {TP: decided})
    assert dead_since(lane, NOON - timedelta(hours=1)) == [(NOON, 1)], "turn 4 is open"


# ---- the newest turns as totals, and the Delta versions that hold a turn


def stored_lane(root: Path, turns: int = 5) -> LedgerStore:
    partitions = {TP: StoredPartition(fail_every=50, retention=10), TP1: StoredPartition(arrive=200)}
    return write_lane(str(root), "orders", partitions, turns).store


def test_totals_are_sums_over_all_partitions_oldest_turn_first(tmp_path: Path) -> None:
    store = stored_lane(tmp_path)
    turns = recent_turns(store, TurnId("orders", LIVE, 0, 5), 2, limit=3)
    assert [turn.turn.n for turn in turns] == [3, 4, 5]
    newest = newest_of(store)
    assert turns[-1].settled_at == newest.settled_at
    assert turns[-1].run_id == newest.run_id
    assert turns[-1].outcomes == {"acked": 198, "failed": 2}
    assert turns[-1].metrics["lag"] == sum(part.unsettled for part in newest.partitions.values())
    assert {turn.partitions for turn in turns} == {2}


def test_the_rows_that_are_read_are_bounded_whatever_the_number_of_partitions(tmp_path: Path) -> None:
    """A lane of 30,000 partitions gets its two newest turns."""
    turns = recent_turns(stored_lane(tmp_path), TurnId("orders", LIVE, 0, 5), 30_000, limit=60)
    assert [turn.turn.n for turn in turns] == [4, 5]


def test_the_log_starts_of_an_earlier_turn_are_known(tmp_path: Path) -> None:
    assert log_starts_at(stored_lane(tmp_path), TurnId("orders", LIVE, 0, 2)) == {TP: 20, TP1: 0}


def test_a_turn_is_found_in_the_log_of_each_table(tmp_path: Path) -> None:
    store = stored_lane(tmp_path)
    versions = delta_versions(store, TurnId("orders", LIVE, 0, 4))
    assert versions.keys() == {"plan", "outcomes", "decisions", "settlement"}
    for part, table in (("plan", store.plans), ("decisions", store.outcomes), ("settlement", store.settlements)):
        entry = Path(table.uri, "_delta_log", f"{versions[part]:020}.json").read_text()
        ids = [json.loads(line)["txn"] for line in entry.splitlines() if '"txn"' in line]
        assert [(txn["appId"], txn["version"]) for txn in ids] == [(f"ackline/orders/live/0/{part}", 4)]
    assert delta_versions(store, TurnId("orders", LIVE, 0, 99)) == {}


def test_the_figures_of_steps_are_those_of_the_newest_turns_whatever_the_number_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn counts once, although it has a row for each of two partitions."""
    monkeypatch.setattr(history, "STEP_TURNS", 10)
    figures = StepFigures({"source": StepCounts(2, 4, 1, 1, Durations(2, 10, 9)), "price": StepCounts(4)})
    partitions = {TP: StoredPartition(arrive=1), TP1: StoredPartition(arrive=1)}
    store = write_lane(str(tmp_path), "orders", partitions, 13, whole=False, steps=figures).store
    newest = newest_of(store)
    assert newest.steps == figures
    found = step_figures(store, newest.turn, ["price"])
    assert found.turns == 10
    assert found.steps["source"] == StepCounts(20, 40, 10, 10, Durations(20, 100, 9))
    assert step_figures(store, newest.turn).steps == found.steps


def test_a_lane_without_steps_has_no_figures_of_them(tmp_path: Path) -> None:
    store = stored_lane(tmp_path)
    assert step_figures(store, TurnId("orders", LIVE, 0, 5)) == StepFigures({}, turns=0)
