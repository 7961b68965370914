"""What a tuple may hold, and which keys are equal."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ackline.pipeline.streams import scalar_texts
from ackline.trees.parcels import numbers_of_keys
from ackline.trees.payload import key_bytes, pack, pack_row, unpack
from ackline.worker.outcomes import InvalidOutcome

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
VALUES = [
    None, True, 1, -(10**40), 0.5, "x\ud800", b"\0", [1, [2]], {"a": {"b": None}}, Decimal("0.50"), NOON,
    NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=5))), NOON.astimezone(ZoneInfo("Europe/Paris")),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", VALUES)
def test_a_key_arrives_as_it_was_beside_any_value(key: Any, value: Any) -> None:
    for packed in (pack(key, value), pack_row(key, value)):
        arrived = unpack(*packed)
        assert (arrived, [type(part) for part in arrived]) == ((key, value), [type(key), type(value)])
    same = key_bytes(key) == key_bytes(value)
    assert numbers_of_keys([pack(key, value)[0], pack(value, key)[0]]).tolist() == [0, int(not same)]


@pytest.mark.parametrize("value", [{"a": 1}, {"a": {"b": 1}}, {"a": [1]}])
def test_a_copy_does_not_change_with_the_original(value: dict[str, Any]) -> None:
    packed, before = pack(None, value), repr(value)
    for part in value.values():
        if not isinstance(part, int):
            part.clear()
    value["a"] = 2
    assert repr(unpack(*packed)[1]) == before


class _Zone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "a zone"


class _Text(str):
    """A text that is pickled and can't be read back."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return int, ("x",)


REFUSED = [
    NOON.replace(tzinfo=timezone(timedelta(hours=1), _Text("odd"))),
    object(), Fraction(1, 2), pack, Exception(), len, iter([1]), {1}, frozenset({"a"}), bytearray(b"a"),
    timedelta(1), UTC, ZoneInfo("Europe/Paris"), datetime, NOON.date(), NOON.replace(tzinfo=_Zone()),
    OrderedDict({"a": 1}), ..., range(2),
]  # fmt: skip


@pytest.mark.parametrize("value", REFUSED)
@pytest.mark.parametrize("within", [lambda value: value, lambda value: {"a": [1, value]}, lambda value: (None, value)])
def test_what_no_tuple_may_hold_is_refused(value: Any, within: Callable[[Any], Any]) -> None:
    for refuses in (
        lambda given: pack(None, given),
        lambda given: pack(given, None),
        lambda given: pack_row(given, None),
    ):
        with pytest.raises(InvalidOutcome):
            refuses(within(value))  # type: ignore[no-untyped-call]
    if not isinstance(value, datetime):  # a time is one moment in any zone
        with pytest.raises(InvalidOutcome):
            key_bytes(within(value))


def test_a_name_in_a_mapping_is_checked_as_a_value_is() -> None:
    assert unpack(*pack("k", {Decimal(1): 1, (NOON, 2): 2})) == ("k", {Decimal(1): 1, (NOON, 2): 2})
    for name in (Fraction(1, 2), frozenset({1}), timedelta(1), (1, (UTC,))):
        with pytest.raises(InvalidOutcome):
            pack(None, {name: 1})


def test_bytes_that_pickle_also_uses_for_sets_are_content_like_any_other() -> None:
    value = {"a": [bytes(range(256)), "".join(map(chr, range(0x400, 0x500))), 0x938F91]}
    assert unpack(*pack(None, value))[1] == value


def test_a_value_with_too_many_levels_is_refused() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidOutcome, match="too deeply"):
        pack(None, value)


@pytest.mark.parametrize("keys", [
    (1, 1.0, True, Decimal("1.00"), Decimal("10E-1")),
    (0, 0.0, -0.0, False, Decimal("0E+5")),
    (Decimal("0.50"), Decimal("0.5"), 0.5),
    (10**30, Decimal(10**30), 1e30 if 1e30 == 10**30 else 10**30),
    (2.0**-20, Decimal(2.0**-20)),
    (float("inf"), Decimal("Infinity")),
    (NOON, NOON.astimezone(ZoneInfo("Asia/Tokyo"))),
    ([1, "a"], (1, "a")),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
])  # fmt: skip
def test_equal_keys_are_one_key(keys: tuple[Any, ...]) -> None:
    assert len({key_bytes(key) for key in keys}) == 1


def test_unequal_keys_are_not() -> None:
    late = datetime(9999, 1, 1, tzinfo=UTC)
    keys = [
        1, "1", b"1", None, 0.1, Decimal("0.1"), -1, 10, 100, Decimal("1E+999999"), 10**5000, late,
        late + timedelta(microseconds=1), late.replace(tzinfo=None), [1], [[1]], {"a": 1}, {"a": "1"}, ["a", 1],
        float("inf"), float("-inf"), float("nan"), "", [], {}, {"1": "ab516:s" + "x" * 15}, {"12": "ab", "5": "x" * 15},
    ]  # fmt: skip
    assert len({key_bytes(key) for key in keys}) == len(keys)


def test_a_mapping_with_names_that_are_not_text_is_no_key() -> None:
    with pytest.raises(InvalidOutcome):
        key_bytes({1: "a"})


def _cycle() -> Any:
    value: list[Any] = ["secret"]
    value.append(value)
    return value


def _shared() -> Any:
    value: Any = ["secret"]
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize("make", [_cycle, _shared])
def test_a_value_that_holds_itself_or_one_part_many_times_is_masked_in_time(make: Callable[[], Any]) -> None:
    assert list(scalar_texts(unpack(*pack(None, make()))[1])) == ["secret"]
