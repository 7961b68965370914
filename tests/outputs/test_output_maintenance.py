"""Maintenance of real output tables: fewer files, and no row, transaction id or older version lost."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from ackline.actions.maintain import maintain, torn_files
from ackline.delta.compaction import Compactor, fragmented, joined, remove_files
from ackline.ledger.turns import TurnId, number_of
from ackline.outputs.output_table import OF_ROW, OutputCompactor, OutputTable
from ackline.outputs.written import _write_files, entries
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import settlement
from tests.tables.lanes import delta
from tests.tables.roots import ON_BOTH

APPLICATION = "ackline/ledger/orders/live/output"
DAYS = ("x", None, "a/b c%ü")
"""The values of the partition column; the last one needs to be escaped in a path."""


@pytest.fixture
def table(store: LedgerStore) -> OutputTable:
    """An output table of a pipeline that has begun, partitioned by `day`."""
    store.store_settlement(settlement(0))
    return OutputTable(f"{store.folder}/outputs/totals", {"day": "string", "sum": "double"}, ["day"])


def opened_anew(table: OutputTable) -> OutputTable:
    """The table as another process opens it."""
    other = OutputTable(table.uri)
    other.columns()
    return other


def publish(table: OutputTable, *turns: int) -> list[bool]:
    """Publishes a row a day for each turn, as settle does. Returns which turns the table has taken."""
    files = {n: entries(_write_files(table, rows_of_turn(n))) for n in turns}
    return [table.append(files[n], APPLICATION, number_of(TurnId("orders", "live", 0, n), 0)) for n in turns]


def rows_of_turn(n: int) -> pa.Table:
    anchors = [{"topic": "orders", "partition": 0, "offset": n, "attempt": 1, "outcome": "acked"}]
    rows = [
        {"_topic": "orders", "_partition": 0, "_offset": n, "_attempt": 1, "_lane": "live", "_epoch": 0, "_turn": n,
         "_anchors": anchors, "day": day, "sum": n / 2}
        for day in DAYS
    ]  # fmt: skip
    schema = pa.schema([*OF_ROW.remove_metadata(), ("day", pa.string()), ("sum", pa.float64())])
    return pa.Table.from_pylist(rows, schema)


def rows(table: OutputTable, version: int | None = None) -> list[tuple[Any, ...]]:
    """Turn, day and sum of each row, with the offsets of its anchors."""
    dataset = delta(table, version).to_pyarrow_dataset(filesystem=table.storage.filesystem)
    read = dataset.to_table().to_pylist()
    found = [(row["_turn"], row["day"], row["sum"], [a["offset"] for a in row["_anchors"]]) for row in read]
    return sorted(found, key=str)


def expected(*turns: int) -> list[tuple[Any, ...]]:
    return sorted(((n, day, n / 2, [n]) for n in turns for day in DAYS), key=str)


def files(table: OutputTable) -> int:
    return len(delta(table).file_uris())


def of_outputs(root: str) -> list[Any]:
    """What maintenance reports of output tables."""
    return [done for done in maintain(root) if done.table.startswith("outputs/")]


# ---- what stays as it was ---------------------------------------------------------------------------------------


@ON_BOTH
def test_the_files_of_each_partition_become_one_and_every_row_stays(root: str, table: OutputTable) -> None:
    assert all(publish(table, 1, 2, 3))
    [done] = of_outputs(root)
    assert (done.pipeline, done.lane, done.table) == ("orders", "live", "outputs/totals")
    assert (done.files_before, done.files, done.compacted, done.busy, done.removed) == (9, 3, 9, 0, 0)
    assert rows(table) == expected(1, 2, 3)
    changes = [change for action in table.log.entry(4) or () for change in action.values() if "dataChange" in change]
    assert {change["dataChange"] for change in changes} == {False}, "a stream that reads the table gets no row again"
    assert delta(table).to_pyarrow_dataset(filesystem=table.storage.filesystem).schema.names[-2:] == ["day", "sum"]
    assert [(done.compacted, done.version) for done in of_outputs(root)] == [(0, done.version)]
    assert publish(table, 2, 3, 4) == [False, False, True]
    assert rows(table) == expected(1, 2, 3, 4)


def test_a_turn_is_refused_again_after_compaction_checkpoints_and_clean_ups_by_any_tool(
    root: str, table: OutputTable
) -> None:
    assert all(publish(table, *range(1, 13)))
    maintain(root)
    assert publish(table, 3, 12) == [False, False]
    by_user = delta(table)
    by_user.optimize.compact()
    by_user.optimize.z_order(["_turn"])
    by_user.create_checkpoint()
    by_user.cleanup_metadata()
    by_user.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert publish(opened_anew(table), 3, 12) == [False, False]
    maintain(root)
    assert publish(opened_anew(table), 1, 12) == [False, False]
    assert rows(table) == expected(*range(1, 13))


@pytest.mark.parametrize(
    "asked",
    [{}, {"delta.logRetentionDuration": "interval 99999 days"}, {"delta.enableExpiredLogCleanup": "false"}],
    ids=str,
)
def test_a_turn_is_refused_again_after_the_log_has_expired_its_entry_which_stays_as_long_as_the_tables_user_asks(
    root: str, table: OutputTable, asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackline.delta.table.CHECKPOINT_EVERY", 3)
    assert all(publish(table, *range(1, 8)))
    if asked:
        delta(table).alter.set_table_properties(asked)
    for entry in Path(table.uri, "_delta_log").iterdir():
        os.utime(entry, (0, 0))
    maintain(root)
    maintain(root)
    assert Path(table.uri, "_delta_log", f"{3:020}.json").exists() is bool(asked)
    assert publish(opened_anew(table), 3, 7, 8) == [False, False, True]
    assert rows(table) == expected(*range(1, 9))


def test_a_column_that_was_added_later_is_null_in_the_rows_before(root: str, table: OutputTable) -> None:
    assert all(publish(table, 1, 2))
    delta(table).alter.add_columns([Field("note", PrimitiveType("string"))])
    [done] = of_outputs(root)
    assert done.compacted == 6
    assert rows(table) == expected(1, 2)


def test_the_files_are_listed_once_however_many_partitions_there_are(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    list_files = DeltaTable.get_add_actions

    def listing(version: DeltaTable, flatten: bool = False) -> Any:
        listed.append(version.table_uri)
        return list_files(version, flatten)

    assert all(publish(table, 1, 2))
    monkeypatch.setattr(DeltaTable, "get_add_actions", listing)
    [done] = of_outputs(root)
    assert done.compacted == 2 * len(DAYS)
    # Once for the compaction, and once for the checkpoint, which is compared with the table and is listed, too.
    assert len([uri for uri in listed if "totals" in uri]) == 3


def test_partitions_and_groups_are_found_in_one_pass_over_the_files() -> None:
    compared = 0

    class Day(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    many = [{"partition.day": Day(n % 500), "size_bytes": 1} for n in range(10_000)]
    found = fragmented(many, ["day"])
    assert {len(of_day) for of_day in found.values()} == {20}
    assert compared <= 3 * len(many)
    assert [len(group) for group in joined(many, 400)] == [400] * 25


# ---- rivals -----------------------------------------------------------------------------------------------------


MOMENTS = {
    "after rewriting": (Compactor, "_rewrite", "after"),
    "before the entry": (OutputCompactor, "commit", "before"),
}
"""After a compaction has written its first file and before it looks for its files in the newest version, or after that
and before it commits: the function that is called then."""


def meet(monkeypatch: pytest.MonkeyPatch, moment: str, rival: Callable[[], object]) -> None:
    """Has something done once, at a moment of the next compaction."""
    owner, name, when = MOMENTS[moment]
    monkeypatch.setattr(owner, name, once(getattr(owner, name), **{when: rival}))


def once(
    function: Callable[..., Any], before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
) -> Callable[..., Any]:
    """The function, before or after whose first call something is done."""
    calls: Iterator[bool] = iter([True])

    def call(*arguments: Any, **more: Any) -> Any:
        first = next(calls, False)
        if first and before is not None:
            before()
        result = function(*arguments, **more)
        if first and after is not None:
            after()
        return result

    return call


def test_fault_33_a_publish_beside_a_compaction_loses_and_doubles_no_row(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(publish(table, 1, 2))
    meet(monkeypatch, "after rewriting", lambda: publish(opened_anew(table), 2, 3))
    [done] = of_outputs(root)
    # The files of the new turn are for the next maintenance.
    assert (done.compacted, done.busy) == (6, 0)
    assert rows(table) == expected(1, 2, 3)


@pytest.mark.parametrize("root", ["s3"], indirect=True)
def test_fault_33_without_a_lock_a_publish_goes_through_beside_a_compaction_right_before_its_commit(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(publish(table, 1, 2))
    monkeypatch.setattr(OutputTable, "commit", once(OutputTable.commit, before=lambda: maintain(root)))
    assert publish(table, 3) == [True]
    assert files(table) == 6
    assert rows(table) == expected(1, 2, 3)


@pytest.mark.parametrize("root", ["s3"], indirect=True)
def test_fault_33_without_a_lock_a_compaction_goes_through_beside_a_publish_right_before_its_commit(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(publish(table, 1, 2))
    meet(monkeypatch, "before the entry", lambda: publish(opened_anew(table), 3))
    assert [done.busy for done in of_outputs(root)] == [0]
    assert rows(table) == expected(1, 2, 3)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("deletes", [False, True], ids=["compacts", "deletes"])
def test_beside_a_users_tool_a_compaction_doubles_no_row_and_brings_no_deleted_one_back(
    root: str, table: OutputTable, moment: str, deletes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool() -> None:
        delta(table).delete("_turn = 1") if deletes else delta(table).optimize.compact()

    assert all(publish(table, 1, 2))
    meet(monkeypatch, moment, tool)
    [done] = of_outputs(root)
    assert deletes or (done.files, done.compacted, done.busy) == (3, 0, 0)
    assert rows(table) == (expected(2) if deletes else expected(1, 2))


def test_a_compaction_that_is_stored_without_an_answer_keeps_its_file(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise CommitFailedError("version is stored already")

    assert all(publish(table, 1, 2))
    monkeypatch.setattr(OutputCompactor, "commit", once(OutputCompactor.commit, after=lost))
    [done] = of_outputs(root)
    assert (done.files, done.compacted, done.busy) == (3, 6, 0)
    assert rows(table) == expected(1, 2)


@ON_BOTH
def test_a_compaction_that_always_loses_is_left_for_the_next_time_and_leaves_no_file(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise CommitFailedError("version is stored already")

    assert all(publish(table, 1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OutputCompactor, "commit", lose)
        [done] = of_outputs(root)
    assert (done.files, done.compacted, done.busy) == (6, 0, 3)
    unused = delta(table).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert [path for path in unused if path.endswith(".parquet")] == []
    assert remove_files(table.storage, unused) == 0
    assert [done.busy for done in of_outputs(root)] == [0]


# ---- clean-up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kept", "removed"), [(None, 7), ("interval 30 days", 0), ("interval 1 hour", 7)])
def test_unused_files_go_after_a_week_or_after_the_longer_time_that_the_tables_user_asks_for(
    root: str, table: OutputTable, kept: str | None, removed: int
) -> None:
    """Six files that a compaction replaced eight days ago, and one of a publish that was killed."""
    assert all(publish(table, 1, 2))
    if kept is not None:
        delta(table).alter.set_table_properties({"delta.deletedFileRetentionDuration": kept})
    orphan = Path(table.uri, "killed.parquet")
    orphan.write_bytes(b"")
    then = time.time() - 8 * 86_400
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: then)
        replaced = sum(done.removed for done in of_outputs(root))
    os.utime(orphan, (then, then))
    assert replaced + sum(done.removed for done in of_outputs(root)) == removed
    assert orphan.exists() is (removed == 0)
    assert rows(table) == expected(1, 2)


# ---- what is left alone -----------------------------------------------------------------------------------------


def test_tables_outside_the_root_of_another_kind_and_of_a_later_protocol_are_left_alone(
    root: str, table: OutputTable, tmp_path: Path
) -> None:
    """A reader of version 3 may have deletion vectors: a compaction of ours would bring deleted rows back."""
    assert all(publish(table, 1))
    newer = f"{Path(table.uri).parent}/newer"
    schema = Schema([*Schema.from_arrow(OF_ROW).fields, Field("n", PrimitiveType("long"))])
    DeltaTable.create(newer, schema, configuration={"delta.enableDeletionVectors": "true"})
    assert DeltaTable(newer).protocol().min_reader_version == 3
    outside = OutputTable(str(tmp_path / "elsewhere"), {"day": "string", "sum": "double"}, ["day"])
    assert all(publish(outside, 1, 2))
    foreign = f"{Path(table.uri).parent}/foreign"
    for _ in range(2):
        write_deltalake(foreign, pa.table({"a": [1]}), mode="append")
    assert [done.table for done in of_outputs(root)] == ["outputs/totals"]
    assert (files(outside), DeltaTable(foreign).version()) == (6, 1)


def test_a_table_that_can_not_be_read_holds_up_no_other(root: str, table: OutputTable) -> None:
    assert all(publish(table, 1, 2))
    torn = Path(table.uri).parent / "torn" / "_delta_log"
    torn.mkdir(parents=True)
    (torn / f"{0:020}.json").write_text("")
    with pytest.raises(Exception, match="2 tables were maintained, 1 were not: the table torn"):
        maintain(root)
    assert [(file.table, file.removable) for file in torn_files(root)] == [("torn", True)]
    assert files(table) == 3


def test_a_compaction_beside_a_change_of_the_protocol_commits_nothing(
    root: str, table: OutputTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that gets deletion vectors names the same files after a user has deleted rows of them."""

    def change() -> None:
        delta(table).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    assert all(publish(table, 1, 2))
    meet(monkeypatch, "after rewriting", change)
    version = delta(table).version()
    [done] = of_outputs(root)
    assert (done.files, done.compacted, done.busy) == (6, 0, 3)
    assert delta(table).version() == version + 1
