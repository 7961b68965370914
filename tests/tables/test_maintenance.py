"""Maintenance of real tables compacts and removes files, and changes no row, fence or open turn."""

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction
from filelock import FileLock
from typer.testing import CliRunner

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.cli.app import app
from ackline.delta import compaction
from ackline.delta.compaction import Compactor, remove_files
from ackline.delta.files import DataFile
from ackline.delta.folder import Folder
from ackline.delta.reads import Where
from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.tables.audit_table import AuditTable
from ackline.tables.maintenance import RETENTION, open_turns
from ackline.tables.schemas import TABLES
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, plan, settlement, turn, written
from tests.tables.lanes import OUTCOMES_A_TURN, begin_lane, files, settle_turns
from tests.tables.roots import ON_BOTH

KINDS = ("plan", "claim", "start", "outcomes", "decisions", "settlement")


def fences(store: LedgerStore) -> dict[str, int | None]:
    """Returns the number of each transaction id of each table."""
    return {
        f"{table} {kind}": AuditTable(store.folder, table).version_of(f"ackline/orders/live/0/{kind}")
        for table in TABLES
        for kind in KINDS
    }


def set_age(store: LedgerStore, file: AddAction, age: timedelta) -> Path:
    """Set the age of a file on disk; returns its path."""
    path = Path(store.outcomes.uri) / file.path
    then = time.time() - age.total_seconds()
    os.utime(path, (then, then))
    return path


@ON_BOTH
def test_no_row_and_no_transaction_id_changes(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    store.store_claim(plan(3))
    store.store_start_marker(plan(3), "run", NOON)
    rows, outcomes = list(audit_rows(root, "orders", AuditFilter(everything=True))), store.outcomes_of(turn(2))
    before, ledger = fences(store), store.ledger_id()
    assert [before[name] for name in ("plans claim", "plans start", "settlements settlement")] == [3, 3, 3]

    first = maintain(root)
    assert [(result.table, result.files, result.busy) for result in first] == [(name, 1, 0) for name in TABLES]
    assert maintain(root) == [replace(result, files_before=result.files, compacted=0) for result in first]
    assert fences(store) == fences(LedgerStore(root, "orders", "live")) == before
    again = LedgerStore(root, "orders", "live")
    assert (again.newest(), again.plan(turn(2)), again.ledger_id()) == (settlement(3), plan(2), ledger)
    assert again.started_at(turn(3)) == NOON
    assert list(audit_rows(root, "orders", AuditFilter(everything=True))) == rows
    assert [again.outcomes_of(turn(2)).counts, again.outcomes_of(turn(2)).attempted] == [
        outcomes.counts,
        outcomes.attempted,
    ]
    assert not again.store_settlement(settlement(3, "late"), plan(3))
    settle_turns(again, range(4, 5))
    assert again.newest() == settlement(4)


def test_a_root_without_tables_is_left_alone(root: str) -> None:
    assert maintain(root) == []
    assert not Path(root).exists()


def test_rows_of_a_long_topic_name_are_found_in_a_compacted_file(root: str, store: LedgerStore) -> None:
    tp = TopicPartition("x" * 248 + "a", 0)
    store.store_settlement(settlement(0))
    settle_turns(store, range(1, 3), tp)
    settle_turns(store, range(3, 5))
    maintain(root)
    assert len(list(audit_rows(root, "orders", AuditFilter(topic=tp.topic)))) == 14
    assert list(audit_rows(root, "orders", AuditFilter(topic=tp.topic[:-1]))) == []


def test_a_day_is_compacted_up_to_its_open_turn_whose_files_are_not_mixed_with_others(
    root: str, store: LedgerStore
) -> None:
    """Settle counts acked records by the file's statistics, so their file may hold nothing else."""
    begin_lane(store)
    begin_lane(LedgerStore(root, "payments", "live"))
    store.store_plan(plan(4))
    acked = written(store, turn(4), [(offset, 1, "acked") for offset in range(5)])
    store.store_outcomes(turn(4), [acked])
    assert [(turn.epoch, turn.n, turn.planned_at) for turn in open_turns(store.folder)] == [(0, 4, NOON)]
    done = {(result.pipeline, result.table): (result.busy, result.compacted) for result in maintain(root)}
    assert (done["orders", "outcomes"], done["payments", "outcomes"]) == ((0, 9), (0, 9))
    with store.outcomes.storage.filesystem.open_output_stream(acked.path) as file:
        file.write(b"x" * acked.size)  # it is counted, and not opened
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 5}}
    store.store_settlement(settlement(4), plan(4))
    assert open_turns(store.folder) == []


def test_open_turns_are_known_without_reading_the_tables(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_lane(store)
    store.store_plan(plan(4))
    maintain(root)
    read: list[object] = []
    rows_of = AuditTable.read

    def reading(table: AuditTable, where: Where | None, columns: Sequence[str] | None = None) -> pa.Table:
        rows = rows_of(table, where, columns)
        read.append((table.name, rows.num_rows))
        return rows

    monkeypatch.setattr(AuditTable, "read", reading)
    assert [turn.n for turn in open_turns(store.folder)] == [4]
    assert read == [("plans", 1)]


def test_files_are_rewritten_and_removed_outside_the_lock(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the lane waits for a commit and a checkpoint, never for the rewriting of files."""
    begin_lane(store)
    old = set_age(store, written(store, turn(9), [(0, 1, "acked")]), RETENTION + timedelta(hours=2))
    young = set_age(store, written(store, turn(9), [(1, 1, "acked")]), RETENTION - timedelta(hours=2))
    rewrite, rewritten = Compactor._rewrite, []

    def free(table: AuditTable) -> bool:
        with FileLock(Path(store.folder, ".locks", f"{table.name}.lock"), timeout=0):
            return True

    def rewriting(compactor: Compactor[Any], *arguments: Any) -> DataFile:
        rewritten.append(free(compactor.table))
        return rewrite(compactor, *arguments)

    def removing(storage: Folder, paths: Sequence[str]) -> int:
        assert not paths or free(store.outcomes)
        return remove_files(storage, paths)

    monkeypatch.setattr(Compactor, "_rewrite", rewriting)
    monkeypatch.setattr(compaction, "remove_files", removing)
    assert sum(result.removed for result in maintain(root)) == 1
    assert rewritten == [True, True, True]
    assert (old.exists(), young.exists()) == (False, True), "no commit names them"


def test_fault_33_a_file_of_an_open_turn_is_not_removed_however_old_it_is(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    slow = replace(plan(4), planned_at=datetime.now(UTC) - timedelta(days=21))
    store.store_plan(slow)
    file = written(store, turn(4), [(0, 1, "acked")])
    path = set_age(store, file, timedelta(days=20))
    assert {result.removed for result in maintain(root)} == {0}
    assert path.exists()
    assert store.store_outcomes(turn(4), [file])
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


def test_a_shorter_retention_is_refused(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    for short in (timedelta(), RETENTION - timedelta(seconds=1)):
        with pytest.raises(ConfigError, match="7 days at least"):
            maintain(root, short)
    assert len(files(store.outcomes)) == 9


def test_fault_33_appends_beside_maintenance_neither_fail_nor_lose_a_row(root: str, store: LedgerStore) -> None:
    begin_lane(store)
    runs, last = 0, 15
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(settle_turns, LedgerStore(root, "orders", "live"), range(4, last + 1))
        while not writer.done():
            maintain(root)
            runs += 1
        writer.result()
    assert runs > 1
    rows = list(audit_rows(root, "orders", AuditFilter()))
    assert Counter((row["turn"], row["outcome"]) for row in rows) == {
        (n, word): count for n in range(1, last + 1) for word, count in OUTCOMES_A_TURN.items()
    }
    assert fences(store)["settlements settlement"] == last


def test_the_command_prints_what_was_done(root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    nothing = CliRunner().invoke(app, ["maintain"])
    assert (nothing.exit_code, nothing.stdout.strip()) == (0, "There are no tables yet.")
    begin_lane(store)
    done = CliRunner().invoke(app, ["maintain", "--json"])
    assert done.exit_code == 0, done.output
    by_table = {result.pop("table"): result for result in json.loads(done.stdout)}
    assert set(by_table) == set(TABLES)
    assert by_table["outcomes"] == {
        "pipeline": "orders", "lane": "live", "files_before": 9, "files": 1, "compacted": 9, "busy": 0, "removed": 0,
        "version": 7,
    }  # fmt: skip
    assert "settlements" in CliRunner().invoke(app, ["maintain"]).stdout
