"""`decode: json` gives exactly what Python's json makes of the same UTF-8 text, value or error, whatever decodes it.

Values are compared by their repr: it shows each type (1, 1.0, True), each digit of a float, the sign of a zero, the
order of keys, NaN, and halves of surrogate pairs.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ackline.handler import Record
from ackline.pipeline.streams import DECODERS, Undecodable, why_not_json
from tests.ledger.strategies import REPEATABLE

RECORD = Record("orders", 0, 1, None, None, b"", (), 1)
Decode = Callable[[bytes], Any]


def by_python(data: bytes) -> Any:
    return json.loads(data.decode())


def expected(data: bytes, decode: Decode = by_python) -> str:
    try:
        return repr(decode(data))
    except Exception as error:
        return why_not_json("value", error)


def found(data: bytes) -> str:
    try:
        return repr(DECODERS["json"]("value")(data, RECORD))
    except Undecodable as error:
        return str(error)


def digits(most: int) -> st.SearchStrategy[str]:
    return st.text("0123456789", min_size=1, max_size=most)


SPACES = st.sampled_from(["", "", "", " ", "\n", "\t", "\r", " \r\n\t", "\v", "\f", "\0", "\xa0", "\ufeff", "/**/"])
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from([2**53, 2**63, 2**64, 10**19, 10**400]).flatmap(
        lambda middle: st.integers(-2, 2).flatmap(lambda by: st.sampled_from([str(middle + by), str(-middle + by)]))
    ),
    st.floats().map(repr),
    st.floats(width=32).map(repr),
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(["", "-", "-", "+"]), digits(30), st.sampled_from(["", "."]), digits(30) | st.just(""),
            st.sampled_from(["", "e", "E", "e-", "e+", "E-"]), digits(3) | st.just(""),
        ),
    ),
)  # fmt: skip
WORDS = st.sampled_from(
    ["null", "true", "false", "NaN", "Infinity", "-Infinity", "nan", "True", "nul", "", "undefined"]
)
PIECES = st.one_of(
    st.text(max_size=5),
    st.characters(codec="utf-8"),
    st.sampled_from(['"', "\\", "\x7f", "\u2028", "\0", "\x1f", "\n", "é", "😀"]),
    st.sampled_from(['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\x", "\\u", "\\u00", "\\U00e9"]),
    st.integers(0, 0xFFFF).map(lambda code: f"\\u{code:04x}"),
    st.integers(0xD7F0, 0xE00F).map(lambda code: f"\\u{code:04X}"),
    st.tuples(st.integers(0xD800, 0xDBFF), st.integers(0xDC00, 0xDFFF)).map(
        lambda pair: "".join(map("\\u{:04x}".format, pair))
    ),
)
STRINGS = st.lists(PIECES, max_size=5).map(lambda pieces: '"' + "".join(pieces) + '"')
KEYS = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"é"', '""', '"' + "k" * 40 + '"']) | STRINGS | NUMBERS


def spaced(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(SPACES, parts, SPACES).map("".join)


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(spaced(inner), max_size=4)
    pairs = st.lists(
        st.tuples(spaced(KEYS), st.sampled_from([":"] * 9 + [" "]), spaced(inner)).map("".join), max_size=4
    )
    commas = st.sampled_from([","] * 9 + [",,", " "])
    return st.one_of(
        st.builds(lambda comma, parts: f"[{comma.join(parts)}]", commas, items),
        st.builds(lambda comma, parts: f"{{{comma.join(parts)}}}", commas, pairs),
    )


TEXTS = spaced(st.recursive(NUMBERS | WORDS | STRINGS, containers, max_leaves=12))
VALID = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MORE = settings(REPEATABLE, max_examples=300)


@MORE
@given(TEXTS)
@example("-0")
@example("-0.0")
@example("1e999")
@example("123456789012345678901234567890")
@example('{"a": 1, "b": 2, "a": 3}')
@example('"\\ud800"')
@example('"\x7f"')
def test_text_that_is_nearly_or_truly_json(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    assert found(data) == expected(data)


@MORE
@given(VALID, st.booleans(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"]))
def test_json_in_any_encoding(value: object, plain: bool, encoding: str) -> None:
    data = json.dumps(value, ensure_ascii=plain).encode(encoding, "replace")
    assert found(data) == expected(data)


@MORE
@given(VALID, st.booleans(), st.integers(0), st.binary(max_size=2), st.integers(0, 2))
def test_json_with_some_bytes_replaced(value: object, plain: bool, at: int, by: bytes, removed: int) -> None:
    data = json.dumps(value, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    at %= len(data) + 1
    data = data[:at] + by + data[at + removed :]
    assert found(data) == expected(data)


@REPEATABLE
@given(st.integers(4290, 4310), st.sampled_from(["", "-"]), st.sampled_from(["", ".0", "e0"]))
def test_integers_as_long_as_python_reads_and_longer(count: int, sign: str, rest: str) -> None:
    data = f"{sign}{'7' * count}{rest}".encode()
    assert found(data) == expected(data)


NESTED = {
    "lists": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"a":' * depth + b"1" + b"}" * depth,
    "both": lambda depth: b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
def test_text_nested_as_deep_as_python_goes_and_deeper(nested: Callable[[int], bytes]) -> None:
    """The most levels are as many as before: those that Python's json reads when called from the same depth."""

    def reads(depth: int, decode: Callable[[bytes, Record], Any]) -> bool:
        try:
            decode(nested(depth), RECORD)
        except (Undecodable, RecursionError):
            return False
        return True

    def by_json(data: bytes, record: Record) -> Any:
        def decode(data: bytes) -> Any:
            return json.loads(data.decode())

        return decode(data)

    least, most = 1, 200_000
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if reads(middle, by_json) else (least, middle)
    for depth in [*range(380, 420), *range(least - 12, least + 13)]:
        assert reads(depth, DECODERS["json"]("value")) == reads(depth, by_json), depth
    if sys.version_info < (3, 12):
        assert least < sys.getrecursionlimit()


def test_long_text_with_many_brackets_and_without() -> None:
    flat = {"note": "x" * 100_000, "items": [[{}]] * 399}
    for value in (flat, {**flat, "items": list(range(100_000))}, [[1.5, {"a": None}]] * 5_000, "[" * 5_000):
        data = json.dumps(value).encode()
        assert found(data) == expected(data) == repr(value)
