"""`ackline doctor` names the turns whose rows a user's tool has taken or doubled: by the ids they are all there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.actions.actions import perform_action
from ackline.cli.doctor import _rows
from ackline.ledger.turns import TurnKind
from ackline.outputs import counted_rows
from ackline.outputs.counted_rows import differing_rows
from ackline.tables.store import LedgerStore
from tests.support.memory_lane import TP
from tests.worker import disk_handlers
from tests.worker.disk_lane import DiskLane

TURNS = 4
FILE: dict[str, Any] = {
    "handler": "tests.worker.disk_handlers:emit",
    "outputs": [{"from": "source", "table": "totals"}],
    "retry": {"max_retries": 0},
}


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskLane:
    """A lane with turns of two records each, the second of which dies in the first turn."""

    def fail() -> None:
        raise KeyError

    monkeypatch.setattr(disk_handlers, "ANSWERS", {1: fail})
    lane = DiskLane(tmp_path, **FILE)
    for _ in range(TURNS):
        lane.produce(b"{}", b"{}")
        lane.run()
    return lane


def table_of(lane: DiskLane, name: str) -> DeltaTable:
    return DeltaTable(lane.root / "lane" / name)


def set_back(table: DeltaTable, by: int = 1) -> None:
    """Does what its user does with RESTORE."""
    table.restore(table.version() - by)


def found(lane: DiskLane) -> list[str]:
    return list(differing_rows(LedgerStore(str(lane.root), "lane", "live")))


def test_a_lane_whose_tables_hold_what_was_settled_needs_no_word(lane: DiskLane) -> None:
    lane.produce(b"{}", b"{}")
    perform_action(lane.adapters(), TurnKind.SKIP, lambda _: {TP: 2 * TURNS + 1}, "a test")
    table_of(lane, "outputs/totals").delete("id = 2")
    assert found(lane) == []


@pytest.mark.parametrize(("name", "change", "turns", "remedy"), [
    # Outcomes and decisions of a turn are a commit each, and so are a plan and its start.
    ("outcomes", lambda table: set_back(table, 4), "turn 3 has 0 of 2, turn 4 has 0 of 2", "No step needs these rows"),
    ("outputs/totals", set_back, "turn 4 has 0 of 2", "a backfill of their records publishes them again"),
    ("plans", lambda table: set_back(table, 2), "turn 4 has 0 of 1", "Restore the folder of the table from a backup"),
])  # fmt: skip
def test_doctor_names_the_turns_whose_rows_are_gone(
    lane: DiskLane, name: str, change: Callable[[DeltaTable], None], turns: str, remedy: str
) -> None:
    change(table_of(lane, name))
    [check] = _rows(lane.adapters())
    assert (check.name, check.state) == ("rows of live", "warning")
    where = f"the table {Path(name).name} at {lane.root}/lane/{name} has other rows than were settled: {turns}. "
    assert check.detail.startswith(f"warning: {where}")
    assert remedy in check.detail


def test_rows_that_two_tools_have_doubled_are_found(lane: DiskLane) -> None:
    stale = table_of(lane, "outcomes")
    table_of(lane, "outcomes").optimize.compact()
    stale.optimize.compact()
    [text] = found(lane)
    assert "turn 1 has 6 of 3, turn 2 has 4 of 2, turn 3 has 4 of 2, turn 4 has 4 of 2." in text


def test_the_newest_turns_are_counted_alone(lane: DiskLane, monkeypatch: pytest.MonkeyPatch) -> None:
    set_back(table_of(lane, "outcomes"), 2)
    lane.produce(b"{}", b"{}")
    lane.run()
    for most, turns in (("MOST_TURNS", 2), ("MOST_ROWS", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(counted_rows, most, turns)
            assert ["turn 4 has 0 of 2." in text for text in found(lane)] == [True]
            patch.setattr(counted_rows, most, 1)
            assert found(lane) == []


def test_a_turn_without_rows_of_outcomes_and_one_that_was_given_up_lack_none(lane: DiskLane) -> None:
    table = LedgerStore(str(lane.root), "lane", "live")
    set_back(table_of(lane, "outputs/totals"))
    last = table.newest()
    assert last is not None
    assert table.store_give_up(last.turn, "totals")
    assert found(lane) == []
