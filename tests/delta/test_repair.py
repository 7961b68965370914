"""A power cut tears the newest log entry of a table: it is refused by name, and removed by the repair alone."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from ackline.actions.maintain import TornFile, repair, torn_files
from ackline.cli.app import app
from ackline.cli.doctor import examine
from ackline.delta.log import is_whole
from ackline.errors import ConfigError, FatalError
from ackline.tables.audit_table import AuditTable
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import plan, settlement, turn
from tests.tables.lanes import begin_lane


def _empty(entry: Path) -> None:
    entry.write_bytes(b"")


def _cut_in_a_line(entry: Path) -> None:
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])


def _cut_after_a_line(entry: Path) -> None:
    *lines, _ = entry.read_bytes().splitlines(keepends=True)
    entry.write_bytes(b"".join(lines))


def _zeroes(entry: Path) -> None:
    entry.write_bytes(bytes(entry.stat().st_size))


def _garbage(entry: Path) -> None:
    entry.write_bytes(b"\xff\x00garbage\n")


TORN = [_empty, _cut_in_a_line, _cut_after_a_line, _zeroes, _garbage]
Damage = Callable[[Path], None]


def entries(table: AuditTable) -> list[Path]:
    """Returns the log entries of a table, oldest first."""
    return sorted(Path(table.uri, "_delta_log").glob("*.json"))


@pytest.fixture
def lane(store: LedgerStore, root: str, monkeypatch: pytest.MonkeyPatch) -> LedgerStore:
    """A lane with settlements 0 to 3; the commands find it."""
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    return begin_lane(store)


@pytest.mark.parametrize("damage", TORN)
def test_a_torn_last_entry_is_refused_by_name_and_the_commit_can_be_made_again_after_the_repair(
    root: str, lane: LedgerStore, damage: Damage
) -> None:
    last = entries(lane.settlements)[-1]
    damage(last)
    named = rf"its log entry {last} is empty or cut short.*`ackline maintain --repair`"
    for act in (LedgerStore.newest, partial(LedgerStore.store_settlement, settlement=settlement(3, "again"))):
        with pytest.raises(FatalError, match=named):  # of a process that starts after the power cut
            act(LedgerStore(root, "orders", "live"))
    [audit] = [check for check in examine(None) if check.name == "audit tables"]
    assert not audit.ok
    assert str(last) in audit.detail

    assert [(torn.file, torn.removable) for torn in torn_files(root)] == [(str(last), True)]
    assert repair(root) == [TornFile("orders", "live", "settlements", str(last), "log entry", True)]
    assert not last.exists()
    again = LedgerStore(root, "orders", "live")
    assert again.newest() == settlement(2)
    assert again.store_settlement(settlement(3, "again"), plan(3))
    assert again.newest() == settlement(3, "again")
    assert torn_files(root) == repair(root) == []


@pytest.mark.parametrize("damage", TORN[:2])
def test_a_torn_entry_that_a_process_meets_on_its_way_is_refused_too(lane: LedgerStore, damage: Damage) -> None:
    """A handle that has loaded an older version is only updated; delta-rs passes over an empty entry there, too."""
    table = AuditTable(lane.folder, "settlements")
    table.open()
    lane.store_settlement(settlement(4))
    damage(entries(lane.settlements)[-1])
    with pytest.raises(FatalError, match="is empty or cut short"):
        table.open()


@pytest.mark.parametrize("damage", TORN[:2])
def test_a_torn_entry_on_which_others_build_is_never_removed(root: str, lane: LedgerStore, damage: Damage) -> None:
    entry = entries(lane.settlements)[-2]
    damage(entry)
    with pytest.raises(FatalError, match=rf"{entry} is empty or cut short. Later commits .* from a backup"):
        LedgerStore(root, "orders", "live").newest()
    before = [path.read_bytes() for path in entries(lane.settlements)]
    assert [torn.removable for torn in repair(root)] == [False]
    done = CliRunner().invoke(app, ["maintain", "--repair", "--yes"])
    assert isinstance(done.exception, FatalError)
    assert [path.read_bytes() for path in entries(lane.settlements)] == before


def test_an_entry_of_any_writer_is_whole_if_each_line_is(tmp_path: Path) -> None:
    entry = tmp_path / "entry.json"
    for text, whole in (
        ('{"commitInfo":{}}\n{"txn":{}}\n', True),
        ('{"txn":{}}', True),
        ("", False),
        ("\n", False),
        ("[]", False),
        ("{}", False),
        ('{"commitInfo":{"ackline.actions":1}}', False),
        ('{"commitInfo":{"ackline.actions":"1"}}\n{"txn":{}}', True),
        ('{"commitInfo":{"ackline.actions":{}}}\n{"txn":{}}', False),
        ('{"commitInfo":null}\n{"txn":{}}', False),
    ):
        entry.write_text(text)
        assert is_whole(entry) is whole, text


@pytest.mark.parametrize("damage", [_cut_in_a_line, _zeroes])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_table_is_whole_without_it(
    root: str, lane: LedgerStore, damage: Damage
) -> None:
    lane.settlements.checkpoint()
    [checkpoint] = Path(lane.settlements.uri, "_delta_log").glob("*.checkpoint.parquet")
    damage(checkpoint)
    with pytest.raises(FatalError, match=rf"its checkpoint {checkpoint} is damaged"):
        LedgerStore(root, "orders", "live").newest()
    assert [(torn.file, torn.removable) for torn in repair(root)] == [(str(checkpoint), True)]
    assert LedgerStore(root, "orders", "live").newest() == settlement(3)


def test_a_damaged_checkpoint_stays_where_the_log_does_not_reach_back(root: str, lane: LedgerStore) -> None:
    lane.settlements.checkpoint()
    [checkpoint] = Path(lane.settlements.uri, "_delta_log").glob("*.checkpoint.parquet")
    _zeroes(checkpoint)
    entries(lane.settlements)[0].unlink()
    assert [torn.removable for torn in repair(root)] == [False]
    assert checkpoint.exists()


def test_a_pointer_to_a_lost_checkpoint_is_removed(root: str, lane: LedgerStore) -> None:
    pointer = Path(lane.settlements.uri, "_delta_log", "_last_checkpoint")
    pointer.write_text(json.dumps({"version": 3, "size": 9}))
    assert [(torn.file, torn.removable) for torn in repair(root)] == [(str(pointer), True)]
    assert LedgerStore(root, "orders", "live").newest() == settlement(3)


def test_the_command_removes_nothing_before_it_is_confirmed(root: str, lane: LedgerStore) -> None:
    whole = CliRunner().invoke(app, ["maintain", "--repair"])
    assert (whole.exit_code, whole.stdout.strip()) == (0, "No file of the tables' logs is torn.")
    last = entries(lane.outcomes)[-1]
    _empty(last)
    dry = CliRunner().invoke(app, ["maintain", "--repair", "--dry-run", "--yes", "--json"])
    assert dry.exit_code == 0
    [torn] = json.loads(dry.stdout)["torn"]
    assert (torn["table"], torn["file"], torn["removable"], torn["removed"]) == ("outcomes", str(last), True, False)
    assert CliRunner().invoke(app, ["maintain", "--repair"]).exit_code != 0
    assert last.exists()
    done = CliRunner().invoke(app, ["maintain", "--repair", "--yes"])
    assert (done.exit_code, f"log entry {last}: removed" in done.stdout) == (0, True)
    assert not last.exists()
    assert not LedgerStore(root, "orders", "live").has_decisions(turn(3))


def test_s73_a_dry_run_of_the_maintenance_is_refused_because_it_has_none(root: str, lane: LedgerStore) -> None:
    versions = [DeltaTable(table.uri).version() for table in (lane.plans, lane.outcomes, lane.settlements)]
    refused = CliRunner().invoke(app, ["maintain", "--dry-run"])
    assert isinstance(refused.exception, ConfigError)
    assert "--dry-run belongs to --repair" in str(refused.exception)
    assert versions == [DeltaTable(table.uri).version() for table in (lane.plans, lane.outcomes, lane.settlements)]
