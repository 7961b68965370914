"""The shape of some records: their kind and their common fields, and no value of theirs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.pipeline.scaffold import RecordShape, ValueKind, shape_of

ORDER = json.dumps({"id": "o-1", "amount": 5, "items": [], "paid": True, "note": None, "to": {}}).encode()
FIELDS = {"id": "text", "amount": "number", "items": "list", "paid": "boolean", "note": "null", "to": "object"}


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([], RecordShape(ValueKind.NONE, 0)),
        ([None, None], RecordShape(ValueKind.NONE, 2, 2)),
        ([ORDER] * 3, RecordShape(ValueKind.JSON_OBJECT, 3, 0, FIELDS)),
        ([ORDER] * 9 + [None, b"{cut off"], RecordShape(ValueKind.JSON_OBJECT, 11, 1, FIELDS)),
        ([ORDER, b"[1]", b"5", b'"x"'], RecordShape(ValueKind.JSON, 4)),
        ([b"plain", b"text"], RecordShape(ValueKind.TEXT, 2)),
        ([b"\0\0\0\0\x07avro"] * 2, RecordShape(ValueKind.REGISTRY, 2)),
        ([b"\xff\xfe"], RecordShape(ValueKind.BINARY, 1)),
        ([b"[" * 100_000], RecordShape(ValueKind.TEXT, 1)),
    ],
)
def test_the_shape_is_that_of_most_records(values: list[bytes | None], shape: RecordShape) -> None:
    assert shape_of(values) == shape


def test_i13_a_key_that_is_data_is_no_field() -> None:
    """Some formats have the customer's id as a key. Such a key is in one record, or is no identifier."""
    values = [json.dumps({f"customer_{number}": 1, "a b": 1, "id": number}).encode() for number in range(20)]
    assert shape_of(values).fields == {"id": "number"}


@given(st.lists(st.none() | st.binary(max_size=30)))
def test_any_bytes_have_a_shape(values: list[bytes | None]) -> None:
    shape = shape_of(values)
    assert (shape.records, shape.nulls) == (len(values), values.count(None))
