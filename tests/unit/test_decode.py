"""A decoder returns a value or raises Undecodable, and the error quotes nothing of the bytes."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackline.handler import Record
from ackline.pipeline.streams import DECODERS, Undecodable, scalar_texts
from tests.unit.strategies import REPEATABLE

RECORD = Record("orders", 0, 0, None, None, None, (), 1)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def decoded(decoder: str, data: bytes) -> object:
    return DECODERS[decoder]("value")(data, RECORD)


@REPEATABLE
@given(VALUES, st.booleans())
def test_json_reads_what_json_wrote(value: object, plain: bool) -> None:
    assert decoded("json", json.dumps(value, ensure_ascii=plain).encode("utf-8", "strict")) == value


@REPEATABLE
@given(st.text())
@example("\0 is a character like any other")
def test_utf8_is_the_text_that_was_encoded(text: str) -> None:
    assert decoded("utf8", text.encode()) == text


@REPEATABLE
@given(st.sampled_from(sorted(DECODERS)), st.binary())
def test_s44_any_bytes_are_decoded_or_refused_and_nothing_else(decoder: str, data: bytes) -> None:
    with suppress(Undecodable):
        decoded(decoder, data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1, column 1"), (b"secret", "line 1, column 1"), (b'{"name": "secret", \n}', "line 2, column 1"),
        (b'{"name": "secret"} {"name": "secret"}', "line 1, column 20"), (b'"sec\0ret"', "line 1, column 5"),
        (b'"secret\\q"', "line 1, column 8"), (b'"secret', "line 1, column 1"),
        (b"\xef\xbb\xbf{}", "line 1, column 1"), (b'"secret\xff"', "invalid start byte at byte 7"),
        (b'"\xed\xa0\x80"', "invalid continuation byte at byte 1"),
        ('{"secret": 1}'.encode("utf-16"), "invalid start byte at byte 0"), (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"), (b"9" * 5_000, "ValueError"),
        (b'["' + b"secret" * 9_000_000, "line 1, column 2"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_json_are_refused_without_a_quotation(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        decoded("json", data)
    message = str(caught.value)
    assert message.startswith("the value is")
    assert reason in message
    assert "secret" not in message


def test_the_field_that_does_not_decode_is_named() -> None:
    with pytest.raises(Undecodable, match="the key is not UTF-8: unexpected end of data at byte 1"):
        DECODERS["utf8"]("key")(b"a\xc3", RECORD)


def test_the_scalar_texts_of_a_value_hold_all_of_its_scalars_and_keys() -> None:
    value = {"name": "Zoé", "n": [1, 2.5, {"deep": (True, None, b"raw")}]}
    assert sorted(map(str, scalar_texts(value))) == sorted(["name", "Zoé", "n", "1", "2.5", "deep", "b'raw'"])


def test_a_value_with_many_levels_has_scalar_texts() -> None:
    value: object = "scalar"
    for _ in range(100_000):
        value = [value]
    assert list(scalar_texts(value)) == ["scalar"]
