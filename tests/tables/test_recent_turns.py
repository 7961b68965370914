"""The newest turns of a lane as totals, and the Delta versions that hold a turn."""

import json
from pathlib import Path

from ackline.handler import Durations, StepCounts
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, TurnId
from ackline.tables.history import STEP_TURNS, delta_versions, log_starts_at, recent_turns, step_figures
from ackline.tables.store import LedgerStore
from tests.ui.stored_lanes import StoredPartition, write_lane

TP, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def lane(root: Path, turns: int = 5) -> LedgerStore:
    partitions = {TP: StoredPartition(fail_every=50, retention=10), TP1: StoredPartition(arrive=200)}
    return write_lane(str(root), "orders", partitions, turns).store


def test_totals_are_sums_over_all_partitions_oldest_turn_first(tmp_path: Path) -> None:
    store = lane(tmp_path)
    turns = recent_turns(store, TurnId("orders", LIVE, 0, 5), 2, limit=3)
    assert [turn.turn.n for turn in turns] == [3, 4, 5]
    newest = store.newest()
    assert newest is not None
    assert turns[-1].settled_at == newest.settled_at
    assert turns[-1].run_id == newest.run_id
    assert turns[-1].outcomes == {"acked": 198, "failed": 2}
    assert turns[-1].metrics["lag"] == sum(part.unsettled for part in newest.partitions.values())
    assert {turn.partitions for turn in turns} == {2}


def test_the_rows_that_are_read_are_bounded_whatever_the_number_of_partitions(tmp_path: Path) -> None:
    """A lane of 30,000 partitions gets its two newest turns."""
    turns = recent_turns(lane(tmp_path), TurnId("orders", LIVE, 0, 5), 30_000, limit=60)
    assert [turn.turn.n for turn in turns] == [4, 5]


def test_the_log_starts_of_an_earlier_turn_are_known(tmp_path: Path) -> None:
    assert log_starts_at(lane(tmp_path), TurnId("orders", LIVE, 0, 2)) == {TP: 20, TP1: 0}


def test_a_turn_is_found_in_the_log_of_each_table(tmp_path: Path) -> None:
    store = lane(tmp_path)
    versions = delta_versions(store, TurnId("orders", LIVE, 0, 4))
    assert versions.keys() == {"plan", "outcomes", "decisions", "settlement"}
    for part, table in (("plan", store.plans), ("decisions", store.outcomes), ("settlement", store.settlements)):
        entry = Path(table.uri, "_delta_log", f"{versions[part]:020}.json").read_text()
        ids = [json.loads(line)["txn"] for line in entry.splitlines() if '"txn"' in line]
        assert [(txn["appId"], txn["version"]) for txn in ids] == [(f"ackline/orders/live/0/{part}", 4)]
    assert delta_versions(store, TurnId("orders", LIVE, 0, 99)) == {}


def test_the_figures_of_steps_are_those_of_the_newest_turns_whatever_the_number_of_partitions(tmp_path: Path) -> None:
    """Each turn counts once, although it has a row for each of two partitions."""
    turns = STEP_TURNS + 3
    figures = StepFigures({"source": StepCounts(2, 4, 1, 1, Durations(2, 10, 9)), "price": StepCounts(4)})
    partitions = {TP: StoredPartition(arrive=1), TP1: StoredPartition(arrive=1)}
    store = write_lane(str(tmp_path), "orders", partitions, turns, whole=False, steps=figures).store
    newest = store.newest()
    assert newest is not None
    assert newest.steps == figures
    found = step_figures(store, newest.turn, ["price"])
    assert found.turns == STEP_TURNS
    assert found.steps["source"] == StepCounts(200, 400, 100, 100, Durations(200, 1_000, 9))
    assert step_figures(store, newest.turn).steps == found.steps


def test_a_lane_without_steps_has_no_figures_of_them(tmp_path: Path) -> None:
    store = lane(tmp_path)
    assert step_figures(store, TurnId("orders", LIVE, 0, 5)) == StepFigures({}, turns=0)
