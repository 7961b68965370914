"""Which staged rows are published or kept: those of acked records, and what each names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from ackline.errors import ConfigError
from ackline.ledger.turns import TurnId
from ackline.pipeline.output_columns import STAGED_ANCHORS
from ackline.pipeline.outputs import ROW_COLUMNS, StagedFile, StagedTable
from ackline.tables import publish
from ackline.tables.files import DataFileWriter
from ackline.tables.folder import Folder
from ackline.tables.kept_rows import keep_rows
from ackline.tables.output_table import OF_ROW, OutputTable, check_columns, partition_path
from ackline.tables.publish import AttemptOutcomes

TURN = TurnId("shop", "live", 2, 7)
ROWS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("end_offset", pa.int64()),
     ("attempt", pa.int32()), ("outcome", pa.string()), ("answer", pa.string())]
)  # fmt: skip
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
    found: list[dict[str, Any]] = publish._published(rows, TURN, outcomes(words)).to_pylist()
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


def test_a_record_without_an_outcome_in_the_turn_has_no_row() -> None:
    assert published(staged(([A1], 5), ([B0], 6)), {A0: "acked"}) == []


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
    parts = {tuple(values.items()): chosen for values, chosen in publish._by_partition(rows, ["day", "ok"])}
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
    parts = {values["day"]: chosen for values, chosen in publish._by_partition(rows, ["day"])}
    assert len(parts) == 5_000
    assert parts["17"].to_pylist() == [{"n": 17}, {"n": 5_017}, {"n": 10_017}, {"n": 15_017}]


def test_the_columns_of_ours_are_those_that_no_emitted_row_may_have() -> None:
    assert tuple(OF_ROW.names) == ROW_COLUMNS


@pytest.mark.parametrize("rows", [staged(), staged(([], 1))])
def test_turns_without_outcomes_publish_nothing_of_a_record(rows: pa.Table) -> None:
    assert [row["_topic"] for row in published(rows, {})] == [None] * rows.num_rows


def test_a_partitioned_table_takes_a_turn_once_and_any_reader_reads_it(tmp_path: Path) -> None:
    columns = {"day": "string", "value": "long"}
    anchors = staged(([A0], 1), ([A0], 2), ([A1], 3))
    rows = publish._published(anchors.append_column("day", pa.array(["x", None, "y"])), TURN, outcomes({A0: "acked"}))
    table = OutputTable(str(tmp_path / "days"), columns, ["day"])
    for expected in (True, False):
        files = list(publish._write(table, iter([rows])))
        assert table.append(files, "ackline/id/shop/live/2/output", 7) is expected
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
