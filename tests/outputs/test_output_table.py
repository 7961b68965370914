"""Which tables of a user an output appends to, and which it refuses before a record is handled."""

import json
import unicodedata
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema, TableFeatures
from deltalake.schema import PrimitiveType

from ackline.delta.folder import Folder
from ackline.delta.object_store import options_of
from ackline.errors import ConfigError
from ackline.ledger.turns import TurnId, number_of
from ackline.outputs.output_table import (
    ANCHORS,
    OF_ROW,
    OUTPUT_LAYOUT,
    WRITABLE_FEATURES,
    OutputCompactor,
    OutputTable,
)
from ackline.outputs.written import _write_files, entries
from ackline.pipeline.output_columns import MOST_INFERRED, infer_columns
from tests.tables.spark_statements import spark

N = Field("n", PrimitiveType("long"))
CREATED = {
    "appendOnly": TableFeatures.AppendOnly,
    "changeDataFeed": TableFeatures.ChangeDataFeed,
    "checkConstraints": TableFeatures.CheckConstraints,
    "columnMapping": TableFeatures.ColumnMapping,
    "deletionVectors": TableFeatures.DeletionVectors,
    "generatedColumns": TableFeatures.GeneratedColumns,
    "invariants": TableFeatures.Invariants,
    "timestampNtz": TableFeatures.TimestampWithoutTimezone,
    "variantType": TableFeatures.VariantType,
}
"""Features that an output can write, as delta-rs adds them to a table."""
TURNS = range(1, 13)
"""So many that a checkpoint is written."""


def create(
    uri: str, column: Field = N, configuration: Mapping[str, str] | None = None, of_row: pa.Schema = OF_ROW
) -> DeltaTable:
    """A table that a user creates for the rows of an output, with one column."""
    Folder(uri).make_durably("_delta_log")
    schema = Schema([*Schema.from_arrow(of_row).fields, column])
    return DeltaTable.create(uri, schema, configuration=dict(configuration or {}), storage_options=options_of(uri))


def publish(uri: str, *turns: int) -> None:
    """Publishes a row a turn, as settle does."""
    table = OutputTable(uri)
    assert table.columns() == {"n": "long"}
    schema = pa.schema([*OF_ROW.remove_metadata(), ("n", pa.int64())])
    for n in turns:
        row = {"_topic": "orders", "_partition": 0, "_offset": n, "_attempt": 1, "_lane": "live", "_epoch": 0}
        anchors = [{"topic": "orders", "partition": 0, "offset": n, "attempt": 1, "outcome": None}]
        rows = pa.Table.from_pylist([{**row, "_turn": n, "_anchors": anchors, "n": n}], schema)
        number = number_of(TurnId("shop", "live", 0, n), 0)
        assert table.append(entries(_write_files(table, rows)), "ackline/output", number)


def test_a_table_takes_no_second_execution_of_a_turn(root: str) -> None:
    """Of two copies of a ledger, which publish the same turn at the same moment."""
    create(f"{root}/t")
    table, turn = OutputTable(f"{root}/t"), TurnId("shop", "live", 0, 7)
    assert [table.append([], "ackline/output", number_of(turn, n)) for n in (5, 9, 5, 1)] == [True, False, False, False]
    assert table.append([], "ackline/output", number_of(turn._replace(n=8), 1))


def test_i17_delta_takes_every_name_that_is_inferred_as_a_column_of_its_own(tmp_path: Path) -> None:
    """The names are each letter that has a case in some version of Unicode, and one with a sigma."""
    every = [chr(code) for code in (*range(0x20000), 0x2FFFF) if not 0xD800 <= code < 0xE000]
    letters = [letter for letter in every if letter.lower() != letter.upper() or unicodedata.category(letter) == "Cn"]
    names = ["aΣʕ", "aςʕ", *letters]
    for number, start in enumerate(range(0, len(names), MOST_INFERRED)):
        columns = infer_columns([dict.fromkeys(names[start : start + MOST_INFERRED], 1)])
        if columns:
            OutputTable(f"{tmp_path}/{number}", columns).create()


def test_each_feature_that_an_output_can_write_is_tried_here() -> None:
    assert CREATED.keys() == WRITABLE_FEATURES


@pytest.mark.parametrize("feature", sorted(CREATED))
def test_a_table_with_a_feature_that_an_output_can_write_takes_all_turns(root: str, feature: str) -> None:
    uri = f"{root}/table"
    create(uri).alter.add_feature(CREATED[feature], allow_protocol_versions_increase=True)
    publish(uri, *TURNS)
    table = DeltaTable(uri, storage_options=options_of(uri))
    assert feature in (table.protocol().writer_features or ())
    read = QueryBuilder().register("t", table).execute("SELECT n FROM t ORDER BY n").read_all()
    assert pa.table(read)["n"].to_pylist() == list(TURNS)


@pytest.mark.parametrize(
    "configuration", [{"delta.appendOnly": "true"}, {"delta.enableChangeDataFeed": "true"}], ids=str
)
def test_a_table_with_a_property_that_does_not_matter_takes_all_turns(
    root: str, configuration: Mapping[str, str]
) -> None:
    create(f"{root}/table", configuration=configuration)
    publish(f"{root}/table", *TURNS)


@pytest.mark.parametrize(
    "feature",
    [
        "allowColumnDefaults", "checkpointProtection", "clustering", "domainMetadata", "icebergCompatV1",
        "icebergCompatV2", "identityColumns", "inCommitTimestamp", "materializePartitionColumns", "rowTracking",
        "v2Checkpoint", "typeWidening", "vacuumProtocolCheck", "a feature of 2030",
    ],
)  # fmt: skip
def test_a_table_with_a_feature_that_an_output_can_not_write_is_refused_by_its_name(
    feature: str, tmp_path: Path
) -> None:
    """Before that, the turn was settled, and its rows were refused for good."""
    create(str(tmp_path))
    for_readers = feature in ("v2Checkpoint", "typeWidening", "vacuumProtocolCheck")
    protocol: dict[str, Any] = {"minReaderVersion": 3 if for_readers else 1, "minWriterVersion": 7}
    protocol |= {"writerFeatures": ["appendOnly", feature]} | ({"readerFeatures": [feature]} if for_readers else {})
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(ConfigError, match=f"has the table feature {feature}, which an output can't write"):
        OutputTable(str(tmp_path)).columns()


def anchors_without_nulls(*but: str) -> pa.DataType:
    """The type of `_anchors`, in which nothing may be null but the fields that are named."""
    fields = [pa.field(field.name, field.type, field.name in but) for field in ANCHORS.value_type]
    return pa.list_(pa.field("element", pa.struct(fields), nullable=False))


def test_a_table_whose_anchors_may_not_be_null_takes_all_turns_and_is_compacted(tmp_path: Path) -> None:
    uri = f"{tmp_path}/table"
    create(uri, of_row=OF_ROW.set(7, pa.field("_anchors", anchors_without_nulls("outcome"))))
    publish(uri, *TURNS)
    maintained = OutputCompactor(OutputTable(uri), OUTPUT_LAYOUT, timedelta(days=7)).maintain("shop", "live", "table")
    assert maintained is not None
    assert maintained.compacted
    read = pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT _anchors FROM t").read_all())
    assert sorted(row["_anchors"][0]["offset"] for row in read.to_pylist()) == list(TURNS)


@pytest.mark.parametrize(("column", "kind", "message"), [
    ("_anchors", anchors_without_nulls(), "other types .* need _anchors ARRAY<STRUCT<topic"),
    ("_offset", pa.int32(), "other types .*: they need _offset BIGINT; name another"),
    ("_anchors", pa.list_(pa.struct([("topic", pa.string())])), "other types .* need _anchors ARRAY<STRUCT<topic"),
    ("_turn", None, r"ALTER TABLE delta\.`.*` ADD COLUMNS \(_turn BIGINT\)"),
], ids=["outcome not null", "number", "list", "missing"])  # fmt: skip
def test_a_table_whose_row_columns_are_missing_or_of_other_types_is_refused_with_the_types_that_they_need(
    column: str, kind: pa.DataType | None, message: str, tmp_path: Path
) -> None:
    """Rows of other types were stored, and then no reader could read the table."""
    fields = {field.name: field.type for field in OF_ROW} | {column: kind}
    schema = pa.schema([(name, type_) for name, type_ in fields.items() if type_ is not None])
    DeltaTable.create(str(tmp_path), Schema.from_arrow(schema))
    with pytest.raises(ConfigError, match=message):
        OutputTable(str(tmp_path)).columns()


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_with_column_mapping_is_refused(mode: str, tmp_path: Path) -> None:
    """Its files have columns under other names: readers get null for rows that are written under the names of the
    table."""
    create(str(tmp_path), configuration={"delta.columnMapping.mode": mode})
    with pytest.raises(ConfigError, match=rf"has column mapping \(delta.columnMapping.mode is {mode}\)"):
        OutputTable(str(tmp_path)).columns()


def test_a_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    create(str(tmp_path)).alter.add_constraint({"small": "n < 5"})
    with pytest.raises(ConfigError, match="has the constraint small"):
        OutputTable(str(tmp_path)).columns()


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({}, "that is NOT NULL"),
        ({"delta.generationExpression": "_turn"}, "with a generation expression"),
        ({"delta.identity.start": 1}, "with identity values"),
        ({"delta.invariants": '{"expression": {"expression": "n < 5"}}'}, "with an invariant"),
    ],
)
def test_a_table_with_a_column_that_asks_something_of_its_writers_is_refused(
    metadata: dict[str, Any], what: str, tmp_path: Path
) -> None:
    create(str(tmp_path), Field("n", PrimitiveType("long"), nullable=bool(metadata), metadata=metadata))
    with pytest.raises(ConfigError, match=f"has the column n {what}"):
        OutputTable(str(tmp_path)).columns()


@pytest.mark.real
def test_rows_that_spark_has_deleted_by_deletion_vectors_stay_deleted_beside_publishes_and_their_checkpoints(
    tmp_path: Path,
) -> None:
    folder, table = tmp_path / "table", f"delta.`{tmp_path}/table`"
    create(str(folder), configuration={"delta.enableDeletionVectors": "true"})
    with spark() as run:
        run(f"INSERT INTO {table} (_turn, n) SELECT 0L, id - 100 FROM range(0, 90, 1, 1)")
        run(f"DELETE FROM {table} WHERE n = -50")
        assert list(folder.glob("deletion_vector_*.bin"))
        publish(str(folder), *TURNS)
        assert list(folder.glob("_delta_log/*.checkpoint.parquet"))
        rows = run(f"DELETE FROM {table} WHERE n = 4", f"SELECT n FROM {table} ORDER BY n")
    assert [n for (n,) in rows] == [n for n in (*range(-100, -10), *TURNS) if n not in (-50, 4)]
