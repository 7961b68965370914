"""The key `outputs`: which tables it may name, how their columns are inferred, and which rows fit."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ackline.outputs.output_table import output_folder
from ackline.pipeline.output_columns import arrow_type, as_row, fit_rows, infer_columns, type_text
from ackline.pipeline.outputs import ROW_COLUMNS, OutputBlock


@pytest.mark.parametrize(("written", "folder"), [
    ("totals", "/audit/shop/outputs/totals"),
    ("file:///lake/totals/", "/lake/totals"),
    ("file:///la ke/to.ta..ls", "/la ke/to.ta..ls"),
    ("s3a://lake/totals", "s3://lake/totals"),
])  # fmt: skip
def test_an_output_table_is_a_name_or_a_uri(written: str, folder: str) -> None:
    block = OutputBlock.model_validate({"from": "source", "table": written})
    assert output_folder("/audit/shop", block.table or "") == folder


@pytest.mark.parametrize(("written", "why"), [
    ("file://localhost/lake/totals", "three slashes"),
    ("file://lake/totals", "three slashes"),
    ("file:///", "three slashes"),
    ("s3://lake", "s3://BUCKET/FOLDER"),
    ("s3:///lake/totals", "s3://BUCKET/FOLDER"),
    ("file:///lake//totals", "an empty folder name, `.` or `..`"),
    ("file:///lake/./totals", "an empty folder name, `.` or `..`"),
    ("file:///lake/../totals", "an empty folder name, `.` or `..`"),
    ("s3://lake//totals", "an empty folder name, `.` or `..`"),
    ("gs://lake/totals", "it is in Google Cloud Storage, where .* proved for paths and for s3://"),
    ("abfss://lake@account.dfs.core.windows.net/totals", "it is in Azure Blob Storage, where"),
    ("file:///la%20ke/totals", "without `\\?`, `#` and `%`"),
])  # fmt: skip
def test_a_uri_that_may_name_another_folder_than_it_seems_to_is_refused(written: str, why: str) -> None:
    """Two outputs could write to one table, which takes a turn once: rows would be lost."""
    with pytest.raises(ValidationError, match=why):
        OutputBlock.model_validate({"from": "source", "table": written})


TYPES = ["string", "long", "double", "boolean", "binary", "timestamp", "decimal(10,2)"]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.decimals(), st.just(NOON),
    st.just(NOON.replace(tzinfo=None)), st.lists(st.integers()), st.dictionaries(st.text(), st.binary()),
    st.just("\ud800"),
)  # fmt: skip


def fitted(values: list[Any], kind: str) -> tuple[list[Any], dict[int, str]]:
    [column], problems = fit_rows([{"c": value} for value in values], {"c": kind})
    return column.to_pylist(), problems


def test_columns_are_inferred_from_most_values_and_numbers_with_a_fraction_make_a_double() -> None:
    rows = [{"a": 1, "b": "x", "c": None, "d": {"e": [1]}}, {"a": 2.5, "b": 7, "f": NOON}, {"b": "y", "g": Decimal(1)}]
    assert infer_columns(rows) == {"a": "double", "b": "string", "d": "string", "f": "timestamp", "g": "decimal(38,9)"}


def test_names_that_no_delta_table_has_are_not_inferred() -> None:
    assert infer_columns([{"": 1, "a b": 1, 5: 1, "_turn": 1, "Ok": 1, "oK": "x", "x" * 256: 1, "\ud800": 1}]) == {
        "Ok": "long"
    }


@pytest.mark.parametrize("name", [*(name.title() for name in ROW_COLUMNS), "_OFFSET", "a\0b", "a\x7f", "a\x85", "a\r"])
def test_a_field_that_delta_takes_for_a_column_of_ours_or_can_not_name_fails_its_record_alone(name: str) -> None:
    columns = infer_columns([{name: 1, "id": 2}])
    assert columns == {"id": "long"}
    shown = name if name.isprintable() else "***"
    assert fit_rows([{name: 1, "id": 2}, {"id": 3}], columns)[1] == {0: f"its field {shown} is none of the columns id"}


@pytest.mark.parametrize(
    ("first", "second"), [("id", "ID"), ("ß", "ẞ"), ("İ", "i̇"), ("k", "\u212a"), ("aΣʕ", "aςʕ"), ("σ", "ς")]
)
def test_i17_of_two_names_that_delta_may_take_for_one_the_first_is_a_column(first: str, second: str) -> None:
    assert infer_columns([{first: 1, second: 2}]) == {first: "long"}
    with pytest.raises(ValidationError, match="differ only in upper and lower case"):
        OutputBlock.model_validate({"from": "source", "table": "t", "columns": {first: "long", second: "long"}})


def test_i17_a_name_whose_case_this_python_does_not_know_is_no_column() -> None:
    """delta-rs may know a later version of Unicode, in which two such letters are one."""
    assert infer_columns([{"\U000c0000": 1, "id": 2}]) == {"id": "long"}
    with pytest.raises(ValidationError, match="does not know"):
        OutputBlock.model_validate({"from": "source", "table": "t", "columns": {"\U000c0000": "long"}})


def test_a_value_that_is_no_mapping_is_the_column_value() -> None:
    assert infer_columns([as_row(5)]) == {"value": "long"}


@pytest.mark.parametrize(("kind", "value", "stored"), [
    ("long", 5, 5),
    ("double", 5, 5.0),
    ("string", {"a": [1, Decimal("1.5"), NOON]}, '{"a":[1,"1.5","2026-01-31T12:00:00+00:00"]}'),
    ("string", [Decimal("1E+500")], '["1E+500"]'),
    ("timestamp", NOON, NOON),
    ("timestamp", NOON.astimezone(timezone(timedelta(hours=-5))), NOON),
    ("timestamp", datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
    ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
    ("binary", b"\xff", b"\xff"),
])  # fmt: skip
def test_a_value_of_the_type_of_its_column_is_stored(kind: str, value: Any, stored: Any) -> None:
    assert fitted([value, None], kind) == ([stored, None], {})


@pytest.mark.parametrize(("kind", "value"), [
    ("long", True),
    ("long", 2**63),
    ("long", "5"),
    ("double", "nan"),
    ("boolean", 1),
    ("string", 5),
    ("string", "\ud800"),
    ("string", {"a": b""}),
    ("string", [float("nan")]),
    ("timestamp", NOON.replace(tzinfo=None)),
    ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))),
    ("decimal(10,2)", Decimal("1.555")),
    ("decimal(10,2)", 10**9),
    ("binary", "x"),
])  # fmt: skip
def test_another_value_is_named_by_its_column_and_does_not_harm_its_neighbours(kind: str, value: Any) -> None:
    column, problems = fitted([None, value, None], kind)
    assert column == [None, None, None]
    assert problems[1] in (f"its c is no {kind}", f"its c is no {kind} (it is of type {type(value).__name__})")


def test_a_field_that_is_no_column_is_refused_unless_it_is_null() -> None:
    _, problems = fit_rows([{"c": 1, "d": None}, {"c": 1, "d": 1}], {"c": "long"})
    assert problems == {1: "its field d is none of the columns c"}


def test_the_columns_are_named_the_nearest_first_and_a_hidden_field_is_not_named() -> None:
    columns = {"order_id": "string", "items": "long", **{f"extra_{n}": "long" for n in range(9)}, "amount": "long"}
    rows: list[dict[Any, Any]] = [{"amuont": 1}, {"amuont": 1, "secret": 1}, {"secret": 1}, {5: 1}]
    _, problems = fit_rows(rows, columns, [(), {"secret"}, {"secret"}, {5}])
    named = "is none of the columns {}order_id, items, extra_0, extra_1, extra_2, extra_3, extra_4{} and {} more"
    assert problems[0] == problems[1] == f"its field amuont {named.format('amount, ', '', 4)}"
    assert problems[2] == problems[3] == f"its field *** {named.format('', ', extra_5', 4)}"


def test_a_column_that_may_be_of_a_record_is_not_named() -> None:
    rows: list[dict[Any, Any]] = [{"amuont": 1}, {"zebra": "x"}]
    _, problems = fit_rows(rows, {"zebra": "long", "amount": "long"}, [(), ()], {"amount"})
    assert problems == {
        0: "its field amuont is none of the columns amount and 1 more",
        1: "its *** is no long (it is of type str)",
    }
    _, problems = fit_rows(rows, {"zebra": "long"}, [(), ()], set())
    assert problems[0] == "its field amuont is no column of the table"


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES), max_size=5), st.sampled_from(TYPES))
def test_rows_of_any_values_make_columns_of_their_types(rows: list[dict[str, Any]], kind: str) -> None:
    for columns in ({"a": kind, "b": "string"}, infer_columns(rows)):
        arrays, problems = fit_rows(rows, columns)
        assert [array.type for array in arrays] == [arrow_type(each) for each in columns.values()]
        assert all(len(array) == len(rows) for array in arrays)
        assert all(0 <= number < len(rows) for number in problems)
        for row in set(range(len(rows))) - problems.keys():
            for name, array in zip(columns, arrays, strict=True):
                assert (array[row].as_py() is None) == (rows[row].get(name) is None)


@pytest.mark.parametrize("kind", TYPES)
def test_the_types_of_a_table_are_read_as_they_were_written(kind: str) -> None:
    assert type_text(arrow_type(kind)) == kind


def test_a_column_of_another_type_has_no_name() -> None:
    assert type_text(pa.list_(pa.int64())) is None


@pytest.mark.parametrize("text", ["decimal(10,2)", "decimal(10, 2)", "decimal(10, 02)"])
def test_a_type_of_the_file_is_written_as_that_of_a_table(text: str) -> None:
    """Both are compared as texts."""
    columns = OutputBlock.model_validate({"from": "source", "table": "totals", "columns": {"sum": text}}).columns
    assert columns is not None
    assert columns["sum"] == type_text(arrow_type(columns["sum"])) == "decimal(10,2)"
