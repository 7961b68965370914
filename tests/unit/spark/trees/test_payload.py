"""What a tuple may hold, and which keys are equal."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ackline.decode import scalar_texts
from ackline.spark.handlers.outcomes import InvalidOutcome
from ackline.spark.trees.payload import copied, key_bytes, pack, unpack

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
VALUES = [
    None, True, 1, -(10**40), 0.5, "x\ud800", b"\0", [1, [2]], {"a": {"b": None}}, Decimal("0.50"), NOON,
    NOON.replace(tzinfo=None), NOON.astimezone(timezone(timedelta(hours=5))), NOON.astimezone(ZoneInfo("Europe/Paris")),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_what_json_holds_bytes_times_and_decimals_arrive_as_they_were(value: Any) -> None:
    arrived = unpack(*pack(None, value))[1]
    assert (arrived, type(arrived)) == (value, type(value))
    assert isinstance(key_bytes(value), bytes)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", VALUES)
def test_a_key_arrives_as_it_was_beside_any_value(key: Any, value: Any) -> None:
    of_key, payload = pack(key, value)
    assert of_key == key_bytes(key)
    arrived = unpack(of_key, payload)
    assert (arrived, [type(part) for part in arrived]) == ((key, value), [type(key), type(value)])


@pytest.mark.parametrize("value", [{"a": 1}, {"a": {"b": 1}}, {"a": [1]}])
def test_a_copy_does_not_change_with_the_original(value: dict[str, Any]) -> None:
    copy, before = copied(value)[0], repr(value)
    for part in value.values():
        if not isinstance(part, int):
            part.clear()
    value["a"] = 2
    assert repr(copy) == before


@pytest.mark.parametrize("value", [object(), {"a": object()}, {Fraction(1, 2): 1}])
def test_what_no_tuple_may_hold_is_not_copied_either(value: Any) -> None:
    with pytest.raises(InvalidOutcome):
        copied(value)


@pytest.mark.parametrize("value", [object(), Fraction(1, 2), pack, Exception(), {"a": [timedelta]}, len])
def test_anything_else_is_refused(value: Any) -> None:
    if value == {"a": [timedelta]}:  # a class that a time refers to itself
        return
    with pytest.raises(InvalidOutcome):
        pack(None, value)
    with pytest.raises(InvalidOutcome):
        key_bytes(value)


@pytest.mark.parametrize(
    "keys",
    [
        (1, 1.0, True, Decimal("1.00"), Decimal("10E-1")),
        (0, 0.0, -0.0, False, Decimal("0E+5")),
        (Decimal("0.50"), Decimal("0.5"), 0.5),
        (10**30, Decimal(10**30), 1e30 if 1e30 == 10**30 else 10**30),
        (2.0**-20, Decimal(2.0**-20)),
        (float("inf"), Decimal("Infinity")),
        (NOON, NOON.astimezone(ZoneInfo("Asia/Tokyo"))),
        ([1, "a"], (1, "a")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
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
