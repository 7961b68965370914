"""Maintenance of real tables: what it may never touch, and what it leaves as it was."""

import json
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from typer.testing import CliRunner

from ackline.audit.maintenance import RETENTION, maintain, open_turns
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.audit.schemas import TABLES
from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from ackline.cli.app import app
from ackline.errors import ConfigError, FatalError
from ackline.offsets import TopicPartition
from tests.contract.lane_rows import DAY, TP, plan, settlement, turn, written
from tests.contract.lanes import OUTCOMES_A_TURN, begun, files, settled

KINDS = ("plan", "claim", "start", "outcomes", "decisions", "settlement")


def numbers(store: LedgerStore) -> dict[str, int | None]:
    """The number of each transaction id of each table."""
    return {
        f"{table} {kind}": AuditTable(store.root, table).version_of(f"ackline/orders/live/0/{kind}")
        for table in TABLES
        for kind in KINDS
    }


def aged(store: LedgerStore, file: AddAction, by: timedelta) -> Path:
    """The file on disk, as old as that."""
    path = Path(store.outcomes.uri) / file.path
    then = time.time() - by.total_seconds()
    os.utime(path, (then, then))
    return path


def test_no_row_and_no_transaction_id_changes(root: str, store: LedgerStore) -> None:
    begun(store)
    store.store_claim(plan(3))
    store.store_start_marker(plan(3), datetime.now(UTC))
    rows, outcomes = audit_rows(root, "orders", AuditFilter(everything=True)), store.outcomes_of(turn(2))
    before, ledger = numbers(store), store.ledger_id()
    assert [before[name] for name in ("plans claim", "plans start", "settlements settlement")] == [3, 3, 3]

    done = maintain(root)
    assert [(one.table, one.files, one.busy) for one in done] == [(name, 1, 0) for name in TABLES]
    assert numbers(store) == numbers(LedgerStore(root, "orders", "live")) == before
    again = LedgerStore(root, "orders", "live")
    assert (again.newest(), again.plan(turn(2)), again.ledger_id()) == (settlement(3), plan(2), ledger)
    assert audit_rows(root, "orders", AuditFilter(everything=True)) == rows
    assert [again.outcomes_of(turn(2)).counts, again.outcomes_of(turn(2)).attempted_fresh] == [
        outcomes.counts,
        outcomes.attempted_fresh,
    ]
    assert not again.store_settlement(settlement(3, "late"), plan(3))
    settled(again, range(4, 5))
    assert again.newest() == settlement(4)


def test_done_again_it_does_nothing(root: str, store: LedgerStore) -> None:
    begun(store)
    first = maintain(root)
    assert maintain(root) == [replace(one, files_before=one.files, compacted=0) for one in first]


def test_a_root_without_tables_is_left_alone(root: str) -> None:
    assert maintain(root) == []
    assert not Path(root).exists()


@pytest.mark.parametrize("length", [33, 249])
def test_rows_of_a_long_topic_name_are_found_in_a_compacted_file(root: str, store: LedgerStore, length: int) -> None:
    tp = TopicPartition("x" * (length - 1) + "a", 0)
    store.store_settlement(settlement(0))
    settled(store, range(1, 3), tp)
    settled(store, range(3, 5))
    maintain(root)
    assert len(audit_rows(root, "orders", AuditFilter(topic=tp.topic))) == 14
    assert audit_rows(root, "orders", AuditFilter(topic=tp.topic[:-1])) == []


def test_expired_entries_of_the_log_go_and_take_nothing_with_them(root: str, store: LedgerStore) -> None:
    begun(store, 25)
    log, before = Path(store.settlements.uri, "_delta_log"), numbers(store)
    for entry in log.iterdir():
        os.utime(entry, (0, 0))
    maintain(root)
    assert not (log / f"{0:020}.json").exists()
    again = LedgerStore(root, "orders", "live")
    assert numbers(again) == before
    assert [again.settlement(turn(n)).turn.n for n in (0, 1, 25)] == [0, 1, 25]
    assert store.newest() == settlement(25), "a handle from before"


def test_outcomes_of_an_open_turn_are_not_mixed_with_others(root: str, store: LedgerStore) -> None:
    """Settle counts what was acked without opening its file, so such a file must stay."""
    begun(store)
    begun(LedgerStore(root, "payments", "live"))
    store.store_plan(plan(4))
    acked = written(store, turn(4), [(offset, 1, "acked") for offset in range(5)])
    store.store_outcomes(turn(4), [acked])
    assert [one.day for one in open_turns(root)] == [(DAY, "orders")]
    by_table = {one.table: one for one in maintain(root)}
    assert (by_table["outcomes"].busy, by_table["outcomes"].compacted) == (1, 9)
    aged(store, acked, timedelta()).unlink()
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 5}}
    store.store_settlement(settlement(4), plan(4))
    assert open_turns(root) == []


def test_fault_33_what_an_open_turn_has_written_stays_however_long_it_takes(root: str, store: LedgerStore) -> None:
    begun(store)
    slow = replace(plan(4), planned_at=datetime.now(UTC) - timedelta(days=21))
    store.store_plan(slow)
    file = written(store, turn(4), [(0, 1, "acked")])
    path = aged(store, file, timedelta(days=20))
    assert {one.removed for one in maintain(root)} == {0}
    assert path.exists()
    assert store.store_outcomes(turn(4), [file])
    assert store.outcomes_of(turn(4)).counts == {TP: {"acked": 1}}


def test_files_that_no_commit_ever_named_go_after_the_retention(root: str, store: LedgerStore) -> None:
    begun(store)
    old = aged(store, written(store, turn(9), [(0, 1, "acked")]), RETENTION + timedelta(hours=2))
    young = aged(store, written(store, turn(9), [(1, 1, "acked")]), RETENTION - timedelta(hours=2))
    assert sum(one.removed for one in maintain(root)) == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_who_reads_an_older_version_can_go_on(root: str, store: LedgerStore) -> None:
    begun(store)
    older = DeltaTable(store.outcomes.uri)
    before = set(older.file_uris())
    maintain(root)
    assert before & set(files(store.outcomes)) == set()
    assert older.to_pyarrow_table().num_rows == 21


@pytest.mark.parametrize("short", [timedelta(), timedelta(hours=1), RETENTION - timedelta(seconds=1)])
def test_a_shorter_retention_is_refused(root: str, store: LedgerStore, short: timedelta) -> None:
    begun(store)
    with pytest.raises(ConfigError, match="7 days at least"):
        maintain(root, short)
    assert len(files(store.outcomes)) == 9


def test_a_table_that_can_not_be_read_is_a_clear_error(root: str, store: LedgerStore) -> None:
    begun(store)
    Path(files(store.plans)[0]).unlink()
    with pytest.raises(FatalError, match=r"the table plans at .* can't be used"):
        maintain(root)


def test_fault_33_appends_beside_it_neither_fail_nor_lose_a_row(root: str, store: LedgerStore) -> None:
    begun(store)
    runs = 0
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(settled, LedgerStore(root, "orders", "live"), range(4, 34))
        while not writer.done():
            maintain(root)
            runs += 1
        writer.result()
    assert runs > 1
    rows = audit_rows(root, "orders", AuditFilter())
    found = Counter((row["turn"], row["outcome"]) for row in rows)
    assert found == {(n, word): count for n in range(1, 34) for word, count in OUTCOMES_A_TURN.items()}
    assert numbers(store)["settlements settlement"] == 33


def test_the_command_says_what_was_done(root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    nothing = CliRunner().invoke(app, ["maintain"])
    assert (nothing.exit_code, nothing.stdout.strip()) == (0, "There are no tables yet.")
    begun(store)
    done = CliRunner().invoke(app, ["maintain", "--json"])
    assert done.exit_code == 0, done.output
    said = {one.pop("table"): one for one in json.loads(done.stdout)}
    assert set(said) == set(TABLES)
    assert said["outcomes"] == {
        "files_before": 9, "files": 1, "compacted": 9, "busy": 0, "removed": 0, "version": 7
    }  # fmt: skip
    assert "settlements" in CliRunner().invoke(app, ["maintain"]).stdout
