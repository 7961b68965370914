"""Which staged rows are published or kept: those of acked records, and what each names."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given
from hypothesis import strategies as st

from ackline.delta import append
from ackline.delta.files import DataFileWriter, partition_path
from ackline.delta.folder import Folder
from ackline.errors import ConfigError
from ackline.forms.form import EVERYTHING
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import OutputsOfTurn, StagedFile, StagedTable
from ackline.ledger.turns import TurnId, number_of
from ackline.outputs import written
from ackline.outputs.kept_rows import keep_rows
from ackline.outputs.output_table import OF_ROW, OutputTable, check_columns, table_of
from ackline.outputs.publish import publish_table
from ackline.outputs.written import AttemptOutcomes, entries, write_table
from ackline.pipeline.output_columns import STAGED_ANCHORS, arrow_type
from ackline.pipeline.outputs import ROW_COLUMNS
from tests.outputs.kept_lane import ROWS, TP, Store
from tests.tables.lanes import delta
from tests.tables.roots import ON_BOTH

TURN = TurnId("shop", "live", 2, 7)
WORDS = ["acked", "failed"]

Anchor = tuple[str, int, int]


def staged(*rows: tuple[list[Anchor], int]) -> pa.Table:
    """Staged rows: their anchors, and the value of their only column."""
    anchors = [
        [{"topic": topic, "partition": partition, "offset": offset, "attempt": 1} for topic, partition, offset in each]
        for each, _ in rows
    ]
    columns = [pa.array(anchors, STAGED_ANCHORS.type), pa.array([value for _, value in rows], pa.int64())]
    return pa.Table.from_arrays(columns, schema=pa.schema([STAGED_ANCHORS, ("value", pa.int64())]))


def outcomes(words: dict[Anchor, str]) -> AttemptOutcomes:
    """The outcomes of first attempts."""
    rows = [
        {"topic": topic, "partition": partition, "offset": offset, "attempt": 1, "outcome": word}
        for (topic, partition, offset), word in words.items()
    ]
    return AttemptOutcomes.of(pa.Table.from_pylist(rows, schema=ROWS).to_batches())


def published(rows: pa.Table, words: dict[Anchor, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = written._published(rows, TURN, outcomes(words)).to_pylist()
    return found


A0, A1, B0 = ("a", 0, 0), ("a", 0, 1), ("b", 3, 0)


def test_a_row_of_an_acked_record_names_record_attempt_and_turn() -> None:
    [row] = published(staged(([A0], 5), ([A1], 6)), {A0: "acked", A1: "failed"})
    anchor = {"topic": "a", "partition": 0, "offset": 0, "attempt": 1}
    of_turn = {"_lane": "live", "_epoch": 2, "_turn": 7, "_anchors": [{**anchor, "outcome": "acked"}]}
    assert row == {f"_{name}": value for name, value in anchor.items()} | of_turn | {"value": 5}


def test_a_row_of_several_records_is_published_once_by_the_first_that_is_acked_and_names_them_all() -> None:
    [row] = published(staged(([A0, A1, B0], 5)), {A0: "failed", A1: "acked", B0: "acked"})
    assert (row["_topic"], row["_partition"], row["_offset"]) == A1
    assert [anchor["outcome"] for anchor in row["_anchors"]] == ["failed", "acked", "acked"]


def test_a_row_of_no_record_is_published_with_its_turn() -> None:
    rows = published(staged(([A0], 4), ([], 5), ([], 6)), {A0: "failed"})
    assert [(row["_topic"], row["_anchors"], row["_turn"], row["value"]) for row in rows] == [
        (None, [], 7, 5),
        (None, [], 7, 6),
    ]


@given(st.lists(st.lists(st.sampled_from([A0, A1, B0, ("b", 3, 9)]), max_size=3, unique=True), max_size=6), st.data())
def test_what_is_published_is_what_a_loop_over_rows_finds(anchors: list[list[Anchor]], data: st.DataObject) -> None:
    words = data.draw(st.dictionaries(st.sampled_from([A0, A1, B0]), st.sampled_from(WORDS)))
    rows = published(staged(*((each, number) for number, each in enumerate(anchors))), words)
    expected = [
        (number, next((each for each in of_row if words.get(each) == "acked"), None))
        for number, of_row in enumerate(anchors)
        if not of_row or any(words.get(each) == "acked" for each in of_row)
    ]
    found = [(row["value"], row["_topic"] and (row["_topic"], row["_partition"], row["_offset"])) for row in rows]
    assert found == expected


def test_rows_are_divided_by_the_values_of_their_partition_columns() -> None:
    rows = pa.table({"day": ["x", None, "x", "a/b"], "ok": [True, True, True, False], "n": [1, 2, 3, 4]})
    parts = {tuple(values.items()): chosen for values, chosen in written._by_partition(rows, ["day", "ok"])}
    assert {values: chosen.to_pylist() for values, chosen in parts.items()} == {
        (("day", "x"), ("ok", "true")): [{"n": 1}, {"n": 3}],
        (("day", None), ("ok", "true")): [{"n": 2}],
        (("day", "a/b"), ("ok", "false")): [{"n": 4}],
    }
    assert partition_path({"day": "a/b", "ok": None}) == "day=a%2Fb/ok=__HIVE_DEFAULT_PARTITION__/"


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("us", "UTC"), pa.binary()])
def test_a_table_that_its_user_has_partitioned_by_values_without_one_text_is_refused_by_name(
    kind: pa.DataType, tmp_path: Path
) -> None:
    schema = pa.schema([*OF_ROW, ("at", kind), ("value", pa.int64())])
    DeltaTable.create(str(tmp_path / "t"), schema=schema, partition_by=["_lane", "at"])
    with pytest.raises(ConfigError, match=r"is partitioned by at of type \w+, which an output can't write"):
        OutputTable(str(tmp_path / "t")).columns()


def test_rows_are_divided_in_one_pass_however_many_partitions_there_are() -> None:
    rows = pa.table({"day": [f"{n % 5_000}" for n in range(20_000)], "n": range(20_000)})
    parts = {values["day"]: chosen for values, chosen in written._by_partition(rows, ["day"])}
    assert len(parts) == 5_000
    assert parts["17"].to_pylist() == [{"n": 17}, {"n": 5_017}, {"n": 10_017}, {"n": 15_017}]


def test_the_columns_of_ours_are_those_that_no_emitted_row_may_have() -> None:
    assert tuple(OF_ROW.names) == ROW_COLUMNS


def test_a_partitioned_table_takes_a_turn_once_and_any_reader_reads_it(tmp_path: Path) -> None:
    columns = {"day": "string", "value": "long"}
    anchors = staged(([A0], 1), ([A0], 2), ([A1], 3))
    rows = written._published(anchors.append_column("day", pa.array(["x", None, "y"])), TURN, outcomes({A0: "acked"}))
    table = OutputTable(str(tmp_path / "days"), columns, ["day"])
    for expected in (True, False):
        files = entries(written._write_files(table, rows))
        assert table.append(files, "ackline/id/shop/live/output", number_of(TURN, 0)) is expected
    assert OutputTable(table.uri).columns() == columns
    read = DeltaTable(table.uri).to_pyarrow_table().to_pylist()
    assert sorted((row["value"], row["day"], row["_offset"]) for row in read) == [(1, "x", 0), (2, None, 0)]
    with pytest.raises(ConfigError, match="exists with other columns than the file declares \\(value\\)"):
        check_columns("days", columns, {**columns, "value": "double"})


# ---- kept rows ----------------------------------------------------------------------------------------------------

ANCHOR = {"topic": "orders", "partition": 0, "offset": 3, "attempt": 1}
KEPT_COLUMNS = {"id": "long", "note": "string", "price": "double"}


def staged_file(root: Path, path: str, *columns: pa.Field, **values: Any) -> StagedFile:
    schema = pa.schema([STAGED_ANCHORS, *columns])
    writer = DataFileWriter(Folder(str(root)), path, schema)
    writer.write(pa.Table.from_pylist([{"_anchors": [ANCHOR], **values}], schema=schema))
    return StagedFile(0, path, writer.finish().size, 1)


def test_rows_of_files_with_fewer_columns_than_their_table_are_kept_with_nulls(tmp_path: Path) -> None:
    id_, note = pa.field("id", pa.int64()), pa.field("note", pa.string())
    files = [
        staged_file(tmp_path, "turn/0-1-a.parquet", id_, id=1),
        staged_file(tmp_path, "turn/0-2-b.parquet", id_, note, id=2, note="late"),
    ]
    outcomes = pa.Table.from_pylist([{**ANCHOR, "outcome": "in_flight"}], ROWS)
    result = keep_rows(
        Folder(str(tmp_path)),
        "turn",
        (),
        [StagedTable("t", KEPT_COLUMNS, (), files)],
        AttemptOutcomes.of(outcomes.to_batches()),
    )
    [kept] = result.kept
    [file] = kept.files
    assert kept.columns == KEPT_COLUMNS
    rows = pq.read_table(tmp_path / file.path).drop_columns(["_anchors"]).to_pylist()
    assert rows == [{"id": 1, "note": None, "price": None}, {"id": 2, "note": "late", "price": None}]


OF_LANE = TurnId("shop", "live", 0, 7)
OF_TOTALS = {"day": "string", "sum": "double"}
TOTALS: list[dict[str, Any]] = [{"day": "x", "sum": 0.5}, {"day": "a/b c%ü", "sum": 1.0}, {"day": None, "sum": 1.5}]


@pytest.fixture
def ledger(root: str) -> Any:
    """The ledger of a lane whose turn has acked the records of all rows."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    return Store(root, rows={OF_LANE: [OutcomeRow(number, 1, Outcome.ACKED, now) for number in range(100)]})


class Staging:
    """The staging folder of a lane. Each row that is staged there has a record of its own."""

    def __init__(self, root: str) -> None:
        self.storage = Folder(f"{root}/shop/.staging")
        self.rows = 0

    def table(
        self, rows: list[dict[str, Any]], columns: dict[str, str] = OF_TOTALS, partition_by: tuple[str, ...] = ("day",)
    ) -> StagedTable:
        """Stages rows for the table `totals`."""
        numbers = range(self.rows, self.rows + len(rows))
        self.rows += len(rows)
        anchors = [[{"topic": TP.topic, "partition": TP.partition, "offset": n, "attempt": 1}] for n in numbers]
        schema = pa.schema([STAGED_ANCHORS, *((name, arrow_type(kind)) for name, kind in columns.items())])
        writer = DataFileWriter(self.storage, f"live-0-7/{self.rows}.parquet", schema)
        writer.write(
            pa.Table.from_pylist([{"_anchors": a, **row} for a, row in zip(anchors, rows, strict=True)], schema)
        )
        file = writer.finish()
        return StagedTable("totals", columns, partition_by, [StagedFile(0, file.path, file.size, len(rows))])


@pytest.fixture
def staging(root: str) -> Staging:
    return Staging(root)


def publish_turn(ledger: Any, *sources: StagedTable) -> None:
    """Publishes rows as any process does that meets the settled turn."""
    root, application = Folder(f"{ledger.root}/shop/.staging"), "ackline/id/shop/live/output"
    of_turn = write_table(ledger, OF_LANE, sources, root, AttemptOutcomes.read(ledger, OF_LANE))
    number = number_of(OF_LANE, 1)
    outputs = OutputsOfTurn({"totals": {application: [number]}}, number, None, {"totals": of_turn}, released=sources)
    publish_table(SimpleNamespace(store=ledger, request=EVERYTHING), OF_LANE, outputs, "totals")  # type: ignore[arg-type]


def rows_of(ledger: Any) -> list[dict[str, Any]]:
    """The emitted columns of the rows of the table, in their order."""
    table = table_of(ledger, "totals")
    read = delta(table).to_pyarrow_dataset(filesystem=table.storage.filesystem).to_table()
    emitted = [name for name in read.column_names if not name.startswith("_")]
    rows: list[dict[str, Any]] = read.sort_by("_offset").select(emitted).to_pylist()
    return rows


# ---- what the store answers -------------------------------------------------------------------------------------


def refused_once_stored(commit: Callable[..., None]) -> Callable[..., None]:
    """The commit, as one whose answer is lost: the writer repeats it, and is refused by its own entry."""

    def store_and_refuse(*arguments: Any, **more: Any) -> None:
        commit(*arguments, **more)
        raise CommitFailedError("version is stored already")

    return store_and_refuse


@ON_BOTH
def test_rows_of_a_commit_that_is_stored_and_reported_as_refused_stay(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staging.table(TOTALS)
    monkeypatch.setattr("ackline.delta.table.link_entry", refused_once_stored(append.link_entry))
    monkeypatch.setattr(OutputTable, "commit", refused_once_stored(OutputTable.commit))
    for _ in range(2):
        publish_turn(ledger, staged)
        assert rows_of(ledger) == TOTALS


def test_a_log_entry_whose_link_is_made_and_reported_as_existing_is_ours(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the server makes the link, its answer is lost, and the client's repeat finds the name taken."""

    def link(source: Any, target: Any) -> None:
        made(source, target)
        raise FileExistsError(target)

    made = os.link
    publish_turn(ledger, staging.table(TOTALS))
    table = table_of(ledger, "totals")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        assert table.append([], "another", 1) is True
    assert table.append([], "another", 1) is False
    assert delta(table).transaction_version("another") == 1


# ---- values of partition columns --------------------------------------------------------------------------------


@ON_BOTH
def test_rows_with_long_values_of_partition_columns_are_published(ledger: Any, staging: Staging) -> None:
    """30 CJK characters take 270 bytes in a path, where a file system allows 255 in a name and S3 1,024 in a key."""
    names = [f"c{number}" for number in range(12)]
    columns = {**dict.fromkeys(names, "string"), "n": "long"}
    long = {**dict.fromkeys(names, "漢" * 15), "n": 1}
    rows: list[dict[str, Any]] = [
        {**dict.fromkeys(names, "a"), "c0": "漢" * 30, "n": 0},
        long,
        {**long, "c11": "漢" * 14, "n": 2},
        {**long, "c11": None, "n": 3},
        {**dict.fromkeys(names, "a"), "c0": "x" * 50_000, "n": 4},
    ]
    publish_turn(ledger, staging.table(rows, columns, tuple(names)))
    assert rows_of(ledger) == rows
    assert len(delta(table_of(ledger, "totals")).file_uris()) == len(rows)


# ---- columns ----------------------------------------------------------------------------------------------------


def test_a_column_that_rows_lack_is_null_also_if_the_table_is_partitioned_by_it(ledger: Any, staging: Staging) -> None:
    """A user has created the table, or added columns to it, after the rows were staged."""
    uri = table_of(ledger, "totals").uri
    of_user = OutputTable(uri, {"note": "string", "sum": "double", "day": "string"}, ["day", "_lane"])
    assert of_user.append([], "a user", 1)
    only_sum = [{"sum": 0.5}, {"sum": 1.0}]
    publish_turn(ledger, staging.table(only_sum, {"sum": "double"}, ()), staging.table(TOTALS))
    assert rows_of(ledger) == [{"note": None, "day": None, **row} for row in (*only_sum, *TOTALS)]


def test_a_new_table_has_the_columns_of_all_rows_that_it_begins_with(ledger: Any, staging: Staging) -> None:
    sources = [
        staging.table([{"sum": 0.5}], {"sum": "double"}, ("day",)),
        staging.table([{"sum": 1.0, "day": "x"}], {"sum": "double", "day": "string"}, ("day",)),
        staging.table([{"n": 1, "sum": 1.5}], {"n": "long", "sum": "double"}, ()),
    ]
    publish_turn(ledger, *sources)
    expected: list[dict[str, Any]] = [{"sum": 0.5}, {"sum": 1.0, "day": "x"}, {"n": 1, "sum": 1.5}]
    assert rows_of(ledger) == [{"day": None, "n": None, **row} for row in expected]


def test_a_table_that_another_lane_creates_first_with_other_columns_gets_no_row_that_does_not_fit(
    ledger: Any, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = OutputTable.create

    def created_by_another_lane(table: OutputTable) -> None:
        create(OutputTable(table.uri, {"sum": "string"}))
        create(table)

    monkeypatch.setattr(OutputTable, "create", created_by_another_lane)
    with pytest.raises(ConfigError, match=r"differ from those of the table or of the pipeline file \(day, sum\)"):
        publish_turn(ledger, staging.table(TOTALS))
    assert rows_of(ledger) == []


@pytest.mark.parametrize("columns", [{"day": "string", "n": "long"}, {"day": "string", "sum": "long", "n": "long"}])
def test_rows_with_a_column_that_their_table_lacks_or_has_with_another_type_are_refused_by_its_name(
    root: str, ledger: Any, staging: Staging, columns: dict[str, str]
) -> None:
    assert OutputTable(table_of(ledger, "totals").uri, columns).append([], "a user", 1)
    with pytest.raises(ConfigError, match=r"or of the pipeline file \(sum\)"):
        publish_turn(ledger, staging.table(TOTALS))


def test_values_of_each_type_of_column_are_published_as_they_were_staged(ledger: Any, staging: Staging) -> None:
    columns = {
        "string": "string", "long": "long", "double": "double", "boolean": "boolean", "binary": "binary",
        "timestamp": "timestamp", "price": "decimal(9,2)", "large": "decimal(38,9)",
    }  # fmt: skip
    row = {
        "string": "", "long": -1, "double": 0.5, "boolean": False, "binary": b"\0",
        "timestamp": datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC), "price": Decimal("0.10"),
        "large": Decimal("-12345678901234567890.123456789"),
    }  # fmt: skip
    rows = [row, dict.fromkeys(columns)]
    publish_turn(ledger, staging.table(rows, columns, ()))
    assert rows_of(ledger) == rows
