"""Strategies of what records, answers and rows may hold: names, values, keys, headers, timestamps, tokens.

An object here may have no text, or raise when it is compared. So no strategy and no example may show what it holds:
such objects are drawn by their index, and `Drawn` hides what is drawn.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from itertools import chain
from typing import Any, Generic, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from ackline import Dead, Emit, InFlight, Skip
from ackline.worker.settings import FIRST_UNREADABLE

T = TypeVar("T")
Strategy = st.SearchStrategy


def one_of(*values: Any) -> Strategy[Any]:
    """One of some values, of which Hypothesis shows nothing."""
    return st.integers(0, len(values) - 1).map(lambda number: values[number])


ENCODABLE = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
FIT_NAMES = [
    "id", "text", "flag", "value", "Value", "_anchors.x", "offset", "record_timestamp", "ß", "ss", "SS", "İ", "i", "ı",
    "K", "ſ", "s", "Σ", "aΣʕ", "é", "e\u0301", "a.b", ".a", "`", "a/b", "../a", "%41", "\u2028", "\ufeff", "n" * 255,
    "𝒳" * 255, "_id", "-", '"', "'", "\\",
]  # fmt: skip
"""Names of columns, of which no two are one."""
ODD_NAMES = [
    "", "ID", "iD", "Text", "_topic", "_OFFSET", "_anchors", "ẞ", "i̇", "I", "\u212a", "k", "S", "σ", "ς", "aςʕ",
    "\u1c89", "\u1c8a", "\ua7cb", "\u0264", "\U00010d50", "\U00010d70", "\ud800", "\udfff", "\x00", "\x1f", "\x7f",
    "\x9f", "a\nb", "a b", "a,b", ";", "{}", "()", "=", "\uffff", "n" * 256, "n" * 10_000,
]  # fmt: skip
NAMES: Strategy[str] = st.sampled_from([*FIT_NAMES, *ODD_NAMES]) | st.text(st.characters(), max_size=4)


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    ACKED = "acked"


class Text(str):
    """A text whose methods raise, and that no process can read back."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise ValueError("no part")

    def __reduce__(self) -> Any:
        return int, ("x",)

    def __hash__(self) -> int:
        raise ValueError("no hash")


class Mute:
    """An object without anything."""

    def __repr__(self) -> str:
        raise ValueError("no text")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    def __bool__(self) -> bool:
        raise ValueError("neither")

    __hash__ = None  # type: ignore[assignment]


def nested(levels: int, wrap: Callable[[Any], Any] = lambda value: [value]) -> Any:
    value: Any = None
    for _ in range(levels):
        value = wrap(value)
    return value


CYCLE: list[Any] = []
CYCLE.append({"again": CYCLE})
NAIVE = [
    datetime.fromisoformat(text)
    for text in ("0001-01-01", "9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.9", "1969-12-31", "1582-10-10")
]
ZONES = [
    UTC, timezone(timedelta(hours=1)), timezone(-timedelta(hours=1)), timezone(timedelta(microseconds=1)),
    timezone(timedelta(hours=23, minutes=59)), timezone(timedelta(), "\ud800"), ZoneInfo("Europe/Berlin"),
    ZoneInfo("Pacific/Kiritimati"),
]  # fmt: skip
ODD_SCALARS: list[Any] = [
    2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**28, 10**29, 10**38, 10**5000, -0.0, float("nan"), float("-inf"),
    Decimal("1E+28"), Decimal("1E+29"), Decimal("1E-9"), Decimal("1E-10"), Decimal("9" * 38), Decimal("1E+500"),
    Decimal("1E-500"), Decimal("-0"), Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity"), Decimal("0." + "1" * 5000),
    *NAIVE, *[moment.replace(tzinfo=zone) for moment in NAIVE for zone in ZONES],
    b"", b"\xff" * 9, "x" * 100_000, "\x00" * 99, "\ud800", "\ud800\udc00",
]  # fmt: skip
ODD_NESTED: list[Any] = [
    (), [], {}, [[]], [{}], {"a": {}}, [None], {"a": None}, nested(200), CYCLE, {f"f{n}": n for n in range(1500)},
    list(range(5000)), nested(12, lambda value: [value, value]), {1: 2}, {None: 1}, {(1, 2): 1}, {b"a": 1}, [b"a"],
    {1.5: 1, "1.5": 2}, [float("nan")], ["\ud800"], {"\ud800": "\ud800"}, [NAIVE[0]], [Decimal("sNaN")], [10**5000],
]  # fmt: skip
ODD: list[Any] = [
    *ODD_SCALARS, *ODD_NESTED, nested(900), nested(900, lambda value: {"a": value}), nested(3000),
    NAIVE[0].replace(tzinfo=timezone(timedelta(hours=1), Text("odd"))),
    timedelta(1), date.max, {1}, frozenset({1}), object(), Mute(), 1j, range(3), len, int, ..., bytearray(b"a"),
    memoryview(b"a"), np.int64(1), np.float64(0.5), np.str_("x"), np.datetime64("2020"), np.array([1]), pd.NaT,
    pd.Timestamp("2020-01-01", tz="UTC"), pd.Timedelta(1), Number.ONE, Word.ACKED, Text("x"), Fraction(1, 2),
    UUID(int=1), pa.scalar(1), Emit(1), InFlight(), Skip("x"), Dead, NotImplemented,
]  # fmt: skip
"""What may be emitted and what may not."""
AWARE = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9)), ZoneInfo("Europe/Berlin")]))
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES | st.binary(max_size=9)
    | st.decimals(allow_nan=True) | st.datetimes() | AWARE | one_of(*ODD)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
COLUMNS = {
    "plain": "long", "id": "long", "text": "string", "flag": "boolean", "real": "double", "raw": "binary",
    "at": "timestamp", "price": "decimal(9,2)", "ratio": "decimal(38,38)", "large": "decimal(38,0)", "ẞ": "string",
    "a.b": "long", "offset": "timestamp",
}  # fmt: skip
"""Names and types of all columns of a declared table."""


def mostly(usual: Strategy[Any], odd: Strategy[Any], odds: int = 30) -> Strategy[Any]:
    """The odd once in so many times: what a record does has many parts, and one that is refused hides all others."""
    return st.integers(1, odds).flatmap(lambda number: odd if number == odds // 2 else usual)


_DECIMALS = [Decimal("sNaN"), Decimal("-Infinity"), Decimal("1E-39"), Decimal("1E+500"), 10**39, 10**5000]
FIT: dict[str, list[Any]] = {
    "long": [-(2**63), 2**63 - 1], "boolean": [True, False], "binary": [b"", b"\xff" * 99],
    "double": [float("nan"), float("-inf"), -0.0, 2**53 + 1, 5e-324],
    "string": ["", "\0", "x" * 100_000, "𝒳" * 99, [], {}, nested(200), "\u2028/%=", "../.."],
    "timestamp": [moment.replace(tzinfo=UTC) for moment in NAIVE],
    "decimal(9,2)": [9_999_999, Decimal("-9999999.99")], "decimal(38,38)": [Decimal("0." + "9" * 38), Decimal("-0")],
    "decimal(38,0)": [10**38 - 1, Decimal("1E+37"), Decimal("-0")],
}  # fmt: skip
"""By type, the edges of what a column of the type holds."""
UNFIT: dict[str, list[Any]] = {
    "long": [2**63, -(2**63) - 1, 10**5000], "double": [10**400, Decimal(1)], "boolean": [1], "binary": ["x"],
    "string": ["\ud800", b"x", *ODD_NESTED[-7:]],
    "timestamp": [datetime.max.replace(tzinfo=ZONES[2]), datetime.min.replace(tzinfo=ZONES[1]), *NAIVE],
    "decimal(9,2)": _DECIMALS, "decimal(38,38)": _DECIMALS, "decimal(38,0)": _DECIMALS,
}  # fmt: skip
"""By type, what no column of the type holds, and is near to what it holds."""
OF_TYPE: dict[str, Strategy[Any]] = {
    "long": st.integers(-(2**63), 2**63 - 1), "string": ENCODABLE | VALUES, "boolean": st.booleans(),
    "binary": st.binary(max_size=9), "double": st.floats(), "timestamp": AWARE,
    "decimal(9,2)": st.decimals(-9_999_999, 9_999_999, places=2), "decimal(38,38)": st.decimals(-1, 1, places=38),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1),
}  # fmt: skip
_EMITTED = {name: kind for name, kind in COLUMNS.items() if name != "plain"}
ROWS = (
    st.fixed_dictionaries({}, optional={
        name: mostly(OF_TYPE[kind] | one_of(*FIT[kind]), one_of(*UNFIT[kind]) | SCALARS, 20)
        for name, kind in _EMITTED.items()
    })
    | st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"text": ENCODABLE})
    | one_of(*[
        {name: of_type[kind][number % len(of_type[kind])] for name, kind in _EMITTED.items()}
        for of_type in (FIT, UNFIT) for number in range(9)
    ])
)  # fmt: skip
"""Rows of the declared columns: some of any values, and some with an edge in each column."""
TWINS = [
    ("id", "ID"), ("ß", "ẞ"), ("İ", "i̇"), ("K", "k"), ("Σ", "σ"), ("aΣʕ", "aςʕ"), ("ſ", "S"), ("é", "e\u0301"),
    ("\u1c89", "\u1c8a"), ("\ua7cb", "\u0264"), ("\U00010d50", "\U00010d70"), ("_anchors.x", "_anchors"),
]  # fmt: skip
"""Names that are one where case counts for nothing, in Python or in some other program."""
_EVERY_NAME, _EVERY_VALUE = [*FIT_NAMES, *ODD_NAMES], [*ODD_SCALARS, *ODD_NESTED]
FREE_ROWS = (
    st.dictionaries(
        mostly(st.sampled_from(FIT_NAMES), NAMES, 9), mostly(st.integers(0, 9), SCALARS), min_size=1, max_size=9
    )
    | mostly(st.fixed_dictionaries({"id": st.integers(0, 9)}), VALUES, 3)
    | st.tuples(one_of(*TWINS), SCALARS, st.integers(0, 9)).map(lambda row: dict(zip(row[0], row[1:], strict=True)))
    | one_of(*[dict.fromkeys(_EVERY_NAME[start::3], start) for start in range(3)], dict.fromkeys(chain(*TWINS), 1))
    | one_of(*[{f"v{n}": value for n, value in enumerate(_EVERY_VALUE[start::3])} for start in range(3)])
)
"""Rows of any columns: some of any names and values, and some with each odd name or value."""


@dataclass(frozen=True, slots=True)
class Drawn(Generic[T]):
    """Hides what is drawn from what Hypothesis shows."""

    values: T

    def __repr__(self) -> str:
        return "…"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6,
)  # fmt: skip
PAYLOADS = mostly(
    st.binary(max_size=9) | ENCODABLE.map(str.encode), st.none() | one_of(b"v" * 300_000, b"\xff" * 99), 9
)
JSON_TEXTS = st.sampled_from(
    [b"", b"{", b"nul", b"NaN", b"-Infinity", b"1e999999", b"1" * 5000, b'"\\ud800"', b'"\xff"',
     b"[" * 100_000, b'{"id": 1, "id": 2}', b"\xef\xbb\xbf{}", '{"id": 1}'.encode("utf-16"), b'{"\\u0000": {}}',
     b"[" * 500 + b"]" * 500]
) | JSON.map(lambda value: json.dumps(value).encode())  # fmt: skip
STAMPS = mostly(
    st.sampled_from([1_700_000_000_000, 0, -1]),
    st.sampled_from([-2, 253_402_300_799_999, 253_402_300_800_000, FIRST_UNREADABLE - 1, FIRST_UNREADABLE,
                     -FIRST_UNREADABLE, 2**63 - 1, -(2**63)]),
)  # fmt: skip
UNREADABLE = "not UTF-8"
"""Stands for the name of a header that the Kafka client can't decode."""
HEADERS = st.lists(
    st.tuples(ENCODABLE | st.sampled_from(["twice", "a\0b"]), PAYLOADS)
    | mostly(st.tuples(ENCODABLE, PAYLOADS), st.tuples(st.just(UNREADABLE), PAYLOADS)),
    max_size=3,
)

ANSWERS = mostly(
    st.sampled_from(
        [b"ack", b" ack\n", b"ack now", b"ACK", b"fail", b"fail \xff", b"fail " + b"x" * 100_000, b"fail \0\x1f",
         b"renew", b"renew 1h", b"renew 20s", b"renew 3000000d", b"renew 999999999d", b"renew 99999999999d",
         b"renew 0s", b"renew -1s", b"renew 1.5s", b"renew nan", "renew ٣s".encode(), b"renew " + b"9" * 63 + b"s",
         b"", b"\0", None]
    ),
    st.binary(max_size=12) | NAMES.map(lambda name: b"fail " + name.encode("utf-8", "surrogatepass")), 5,
)  # fmt: skip


def _forged(body: Any) -> bytes:
    """A token with this body, signed with no key of the lane."""
    return base64.urlsafe_b64encode(json.dumps(body).encode() + b"\0" * 32).rstrip(b"=")


def _encoded_anew(token: bytes) -> bytes:
    content = base64.urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    return base64.urlsafe_b64encode(content[:-32].replace(b",", b", ") + content[-32:]).rstrip(b"=")


MANGLED: Strategy[Callable[[bytes], bytes | None]] = one_of(
    *[lambda token: token] * 9, lambda token: token[:-1], lambda token: token + b"=", bytes.swapcase, _encoded_anew,
    lambda token: b"\xff" + token, lambda token: token + b"\n", lambda token: token * 50, lambda _: None,
    lambda token: token[:60] + bytes([token[60] ^ 1]) + token[61:],
)  # fmt: skip
"""What makes another key of a token."""
_BODY = [1, "lane", "live", 0, 1, "orders", 0, 0, 1]
_PARTS = ["", "\ud800", None, True, -1, 2**63, 10**400, 1.5, [], {}, nested(200)]
FORGED = one_of(
    *[_forged([*_BODY[:place], part, *_BODY[place + 1 :]]) for place in range(len(_BODY)) for part in _PARTS],
    _forged(nested(900)), _forged({str(place): 1 for place in range(9)}), _forged(_BODY[1:]), b"A" * 99, b"A" * 2001,
) | st.binary(max_size=99)  # fmt: skip
"""Keys that Ackline has not signed: tokens with one part of another kind, and what is no token."""
