"""What a turn reads of a table's log without its list of files is what delta-rs reads; so a turn costs the same beside
any number of files of other days."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Transaction
from deltalake.transaction import CommitProperties

from ackline.actions.maintain import maintain
from ackline.delta import append, handle
from ackline.delta.files import _having
from ackline.delta.reads import Where, files_of_version
from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.metrics import TurnReport
from ackline.ledger.outcomes import Outcome
from ackline.outputs.output_table import OutputTable
from ackline.tables.audit_table import AuditTable
from ackline.tables.schemas import PARTITION_BY, TABLES
from ackline.tables.store import LedgerStore
from tests.bench.ledger_sizes import other_days
from tests.tables.lane_rows import NOON, TP, newest_of, plan, settlement, turn, written

APPLICATION = "ackline/orders/live/0/"
FIRST = {"plans": "plan", "outcomes": "outcomes", "settlements": "settlement"}
"""The first commit of a turn in each table."""


def do_turn(store: LedgerStore, n: int) -> None:
    """Stores a turn, and reads what the steps read."""
    newest = newest_of(store)
    assert newest.turn == turn(n - 1)
    assert store.open_plan(newest) is None
    assert store.store_plan(plan(n))
    assert store.open_plan(newest) == plan(n)
    assert not store.has_claim(turn(n))
    assert not store.has_outcomes(turn(n))
    files = [
        written(store, turn(n), [(0, 1, "acked"), (1, 1, "acked")]),
        written(store, turn(n), [(2, 1, "failed")]),
    ]
    assert store.store_outcomes(turn(n), files, TurnReport({TP: {"acked": 2}}))
    assert store.first_attempts_of(turn(n)) == {"acked": 2, "failed": 1}
    assert store.report_of(turn(n)) is not None
    assert store.store_decisions(plan(n), "run", {TP: [OutcomeRow(2, 0, Outcome.DEAD, NOON)]})
    assert store.outcomes_of(turn(n)).counts == {TP: {"acked": 2, "failed": 1, "dead": 1}}
    assert store.last_failures(turn(n), {TP: {2: 1}})
    assert store.store_settlement(settlement(n), plan(n))
    assert store.ledger_id()


def test_a_log_that_an_operator_puts_in_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    """The next entry must follow the log that is there: an entry after a version that it does not have is no table."""
    tables = [LedgerStore(str(tmp_path / name), "orders", "live") for name in ("newer", "backup")]
    for table in tables:
        table.store_settlement(settlement(0))
    for n in (1, 2, 3):
        assert tables[0].store_plan(plan(n))
        assert tables[0].store_settlement(settlement(n), plan(n))
    shutil.rmtree(tmp_path / "newer")
    shutil.copytree(tmp_path / "backup", tmp_path / "newer")
    newest = newest_of(tables[0])
    assert newest.turn == turn(0)
    assert tables[0].store_plan(plan(1))
    assert LedgerStore(str(tmp_path / "newer"), "orders", "live").open_plan(newest) == plan(1)


@pytest.fixture
def lane(store: LedgerStore) -> LedgerStore:
    """A lane that has begun."""
    store.store_settlement(settlement(0))
    return store


def test_a_turn_loads_the_files_of_no_table_however_many_other_days_have(
    lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_turn(lane, 1)
    for name in TABLES:
        table = AuditTable(lane.folder, name)
        assert table.append(other_days("orders", 100), "ackline/other", 1)
        table.checkpoint()
    loaded: list[str] = []
    load = DeltaTable.__init__

    def count(table: DeltaTable, uri: str, *arguments: object, **options: object) -> None:
        loaded.append(str(uri))
        load(table, uri, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "__init__", count)
    for n in (2, 3):
        do_turn(LedgerStore(lane.root, "orders", "live"), n)
    assert [uri for uri in loaded if uri.startswith(lane.root)] == []
    assert len(loaded) == 2 * 4, "the log entries are made in empty copies"


def test_the_state_of_the_log_is_what_delta_rs_reads_after_checkpoints_compaction_and_other_writers(
    lane: LedgerStore,
) -> None:
    def check() -> None:
        for name in TABLES:
            handle, fresh = lane_tables[name], AuditTable(lane.folder, name)
            table = fresh.open()
            assert table is not None
            for state in (handle.state(), fresh.state()):
                assert state is not None
                assert state.version == table.version()
                assert state.configuration == table.metadata().configuration
                assert state.schema == table.schema()
                assert state.metadata["id"] == str(table.metadata().id)
                assert {a: table.transaction_version(a) for a in state.transactions} == state.transactions

    lane_tables = {name: AuditTable(lane.folder, name) for name in TABLES}
    for n in range(1, 4):
        do_turn(lane, n)
        check()
        if n == 2:
            maintain(lane.root)
            check()
        table = lane.outcomes.open()
        assert table is not None
        other = CommitProperties(app_transactions=[Transaction("another", n)])
        table.create_write_transaction([], "append", table.schema(), PARTITION_BY, commit_properties=other)
        table = lane.outcomes.open()
        assert table is not None
        table.alter.set_table_properties({"delta.deletedFileRetentionDuration": f"interval {n} days"})
        check()
    assert lane.outcomes.version_of("another") == 3


@pytest.mark.parametrize("change", ["none", "compacted", "checkpointed", "expired"])
def test_the_rows_of_a_turn_are_the_same_from_the_newest_entries_and_from_all_files(
    lane: LedgerStore, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2, 3):
        do_turn(lane, n)
    if change == "compacted":
        assert [done.compacted > 0 for done in maintain(lane.root)] == [True] * 3
    if change == "checkpointed":
        lane.outcomes.checkpoint()
    if change == "expired":
        monkeypatch.setattr("ackline.delta.handle._SEARCHED_ENTRIES", 1)
    for n in (2, 3):
        for name, kind in FIRST.items():
            table = AuditTable(lane.folder, name)
            where = {"epoch": 0, "turn": n}
            version = table.open()
            assert version is not None
            expected = table.read(where)
            rows = table.read_turn(where, APPLICATION + kind, n)
            order = "offset" if name == "outcomes" else "topic"
            assert rows.select(expected.column_names).sort_by(order).equals(expected.sort_by(order))
            files = table.turn_files(where, [APPLICATION + kind], n)
            listed = files_of_version(table, version, where)
            assert sorted(file.name for file in files.files) == sorted(file.name for file in listed.files)
            assert {file.name: (file.rows, file.value("turn"), file.value("outcome")) for file in files.files} == {
                file.name: (file.rows, file.value("turn"), file.value("outcome")) for file in listed.files
            }
            assert files.dataset.schema.equals(listed.dataset.schema)
        assert lane.outcomes_of(turn(n)).counts == {TP: {"acked": 2, "failed": 1, "dead": 1}}


def commit_between(monkeypatch: pytest.MonkeyPatch, commit: Callable[[], object]) -> None:
    """Has a writer that takes no lock commit once, after the next append has chosen its version."""
    real = append._entry

    def entry(*arguments: object) -> bytes:
        monkeypatch.setattr(append, "_entry", real)
        commit()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(append, "_entry", entry)


def test_an_entry_replaces_none_of_a_writer_that_takes_no_lock(
    lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rival(application: str) -> Callable[[], None]:
        def commit() -> None:
            table = DeltaTable(lane.settlements.uri)
            properties = CommitProperties(app_transactions=[Transaction(application, 1)])
            table.create_write_transaction([], "append", table.schema(), PARTITION_BY, commit_properties=properties)

        return commit

    commit_between(monkeypatch, rival("another"))
    assert lane.settlements.append([], "mine", 1)
    assert (lane.settlements.version_of("another"), lane.settlements.version_of("mine")) == (1, 1)
    commit_between(monkeypatch, rival("contest"))
    assert not lane.settlements.append([], "contest", 1)
    log = Path(lane.settlements.uri, "_delta_log")
    assert sorted(path.suffix for path in log.iterdir()) == [".json"] * 5
    assert [DeltaTable(lane.settlements.uri).transaction_version(a) for a in ("another", "mine", "contest")] == [1] * 3


def test_a_log_that_lacks_an_entry_is_refused(lane: LedgerStore) -> None:
    do_turn(lane, 1)
    log = Path(lane.outcomes.uri, "_delta_log")
    (log / f"{1:020}.json").unlink()
    with pytest.raises(FatalError, match="its log has no entry 1; restore its folder from a backup"):
        LedgerStore(lane.root, "orders", "live").has_outcomes(turn(1))


def test_a_large_table_is_checkpointed_more_rarely_so_that_a_commit_bears_no_more_of_it(lane: LedgerStore) -> None:
    table = AuditTable(lane.folder, "outcomes")
    table.append(other_days("orders", 4_000), "ackline/other", 1)
    table.checkpoint()
    first = table.log.files().newest_checkpoint
    for n in range(2, 40):
        table.append([], "ackline/other", n)
    checkpoints = [checkpoint.version for checkpoint in table.log.files().checkpoints]
    assert checkpoints[-3:] == [first, first + 16, first + 32]


def test_a_table_that_does_not_exist_has_no_rows_of_a_turn(store: LedgerStore) -> None:
    assert store.outcomes_of(turn(1)).counts == {}
    assert store.first_attempts_of(turn(1)) == {}
    assert store.last_failures(turn(1), {TP: {0: 1}}) == {}
    assert store.plans.read_turn({"turn": 1}, APPLICATION + "plan", 1).num_rows == 0


def test_a_settlement_that_a_step_still_holds_is_not_read_again_and_a_newer_one_is(
    lane: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have millions of pending ranges, and a process would hold them twice."""
    reads: list[int] = []
    read_turn = AuditTable.read_turn

    def count(table: AuditTable, where: Where, application: str, number: int) -> pa.Table:
        reads.append(number)
        return read_turn(table, where, application, number)

    monkeypatch.setattr(AuditTable, "read_turn", count)
    mine = settlement(1)
    assert lane.store_settlement(mine, plan(1))
    assert lane.newest() is mine
    assert reads == []
    other = LedgerStore(lane.root, "orders", "live")
    assert other.newest() == mine
    assert other.store_settlement(settlement(2, "other"), plan(2))
    assert lane.newest() == settlement(2, "other")
    assert reads == [1, 2]
    assert not lane.store_settlement(settlement(2), plan(2)), "another process has taken the number"
    assert lane.newest() == settlement(2, "other")


def test_rows_of_one_day_are_written_without_a_copy() -> None:
    table = pa.table({"plan_date": [date(2026, 3, 1)] * 3, "offset": [1, 2, 3]})
    same = {"plan_date": date(2026, 3, 1)}
    assert _having(table, same) is table
    other = table.set_column(0, "plan_date", [[date(2026, 3, 1), date(2026, 3, 2), date(2026, 3, 1)]])
    assert _having(other, same)["offset"].to_pylist() == [1, 3]


def _facts(folder: Path) -> tuple[object, ...]:
    """Returns what a step reads of the state of a table's log."""
    state = AuditTable(str(folder), "outcomes").states.newest()
    assert state is not None
    return state.version, state.transactions, state.configuration, state.schema, state.protocol


def _grown(folder: Path, files: int = 2_500) -> AuditTable:
    table = AuditTable(str(folder), "outcomes")
    table.create()
    for n in (1, 2, 3):
        assert table.append([], f"{APPLICATION}outcomes", n)
    assert table.append(other_days("orders", files), "ackline/bench", 1)
    return table


def test_a_large_checkpoint_is_read_without_its_files(tmp_path: Path) -> None:
    table = _grown(tmp_path)
    entries = _facts(tmp_path)
    table.checkpoint()
    [path] = (tmp_path / "outcomes" / "_delta_log").glob("*.checkpoint.parquet")
    with pq.ParquetFile(path) as checkpoint:
        groups = [group for group in range(checkpoint.num_row_groups) if handle._may_hold(checkpoint.metadata, group)]
        read = checkpoint.read_row_groups(groups, columns=["add"])
    assert (checkpoint.metadata.num_rows > 2_500, len(groups), pc.count(read["add"]).as_py()) == (True, 1, 0)
    assert _facts(tmp_path) == entries
    assert len(DeltaTable(str(tmp_path / "outcomes")).file_uris()) == 2_500


@pytest.mark.parametrize("statistics", [True, False])
def test_a_checkpoint_of_another_writer_is_read_whole(tmp_path: Path, statistics: bool) -> None:
    """delta-rs and Spark mix the actions; and statistics may be missing."""
    table = _grown(tmp_path, files=10)
    entries = _facts(tmp_path)
    table.checkpoint()
    [path] = (tmp_path / "outcomes" / "_delta_log").glob("*.checkpoint.parquet")
    mixed = pq.read_table(path)
    pq.write_table(mixed, path, row_group_size=4, write_statistics=statistics)
    assert _facts(tmp_path) == entries


# ---- checkpoints of other tools, in a log without its first entries -------------------------------------------------


def _cleaned(folder: Path) -> tuple[Path, Path]:
    """Returns the log of a table, which holds no entry any more, and its newest checkpoint."""
    table = _grown(folder, files=10)
    table.checkpoint()
    log = folder / "outcomes" / "_delta_log"
    [path] = log.glob("*.checkpoint.parquet")
    for entry in log.glob("*.json"):
        entry.unlink()
    return log, path


def _in_parts(checkpoint: Path, number: int = 3) -> list[Path]:
    """Writes a checkpoint in parts, as Spark does under `spark.databricks.delta.checkpoint.partSize`."""
    rows = pq.read_table(checkpoint)
    size = -(-rows.num_rows // number)
    parts = [checkpoint.with_name(f"{checkpoint.name[:31]}.{n:010}.{number:010}.parquet") for n in range(1, number + 1)]
    for n, part in enumerate(parts):
        pq.write_table(rows.slice(n * size, size), part)
    checkpoint.unlink()
    return parts


def test_a_checkpoint_in_parts_is_read_and_gives_way_to_those_of_ackline(tmp_path: Path) -> None:
    log, checkpoint = _cleaned(tmp_path)
    facts = _facts(tmp_path)
    parts = _in_parts(checkpoint)
    assert _facts(tmp_path) == facts
    table = AuditTable(str(tmp_path), "outcomes")
    for n in (4, 5, 6):
        assert table.append([], f"{APPLICATION}outcomes", n)
        table.checkpoint()
        pointer = json.loads((log / "_last_checkpoint").read_text())
        assert pointer.get("parts") == (3 if n == 4 else None)
    assert (table.version_of(f"{APPLICATION}outcomes"), len(table.opened().file_uris())) == (6, 10)
    for part in (*parts, *log.glob("*.checkpoint.parquet")):
        os.utime(part, (0, 0))
    table.checkpoint()
    assert table.append([], f"{APPLICATION}outcomes", 7)
    table.checkpoint()
    assert [part for part in parts if part.exists()] == []


_LOST: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part": (lambda path: _in_parts(path)[1].unlink(), "no entry 0, and parts of its checkpoint 0.* are missing"),
    "version 2": (
        lambda path: path.rename(path.with_name(f"{path.name[:31]}.{uuid4()}.parquet")),
        "a checkpoint of version 2, .*Spark SQL, ALTER TABLE delta.`.*` DROP FEATURE v2Checkpoint ends it",
    ),
    "all": (Path.unlink, "no entry 0; restore its folder from a backup"),
}
"""What became of the newest checkpoint, and what the error says."""


@pytest.mark.parametrize("lost", _LOST)
@pytest.mark.parametrize("is_output", [False, True], ids=["of the ledger", "output"])
def test_no_table_is_made_anew_where_a_log_has_been(tmp_path: Path, lost: str, is_output: bool) -> None:
    """Its rows would be hidden for good."""
    log, checkpoint = _cleaned(tmp_path)
    become, error = _LOST[lost]
    (log / f"{1:020}.crc").touch()
    become(checkpoint)
    names = sorted(path.name for path in log.iterdir())
    uri = f"{tmp_path}/outcomes"
    table = OutputTable(uri, {"n": "long"}) if is_output else AuditTable(str(tmp_path), "outcomes")
    uses = (table.state, table.create, lambda: table.append([], "x", 1), *([] if lost == "version 2" else [table.open]))
    for use in uses:
        with pytest.raises(FatalError, match=error):
            use()
    assert sorted(path.name for path in log.iterdir()) == names
