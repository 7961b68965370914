"""Packs the key and value of a tuple as bytes, as they travel between two Spark tasks.

The bytes of two keys are equal if the keys are, and only then: by them Spark brings the tuples of a key together. A
value is what JSON holds, bytes, datetime and Decimal, at any depth.
"""

import pickle
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from ackline.worker.outcomes import InvalidOutcome

_SCALARS = frozenset({str, bytes, int, float, bool, NoneType})
_NAMES = frozenset({str})
_TEXT = ord("s")
"""The first byte of a payload that is a text, and of the bytes of a key that is a text. A pickle begins with another
byte."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONES = frozenset({NoneType, timezone, ZoneInfo})
_OPCODES_TO_CHECK = (
    pickle.STACK_GLOBAL, pickle.EMPTY_SET, pickle.FROZENSET, pickle.BYTEARRAY8, pickle.EXT1, pickle.EXT2, pickle.EXT4,
)  # fmt: skip
"""A pickle of protocol 5 without any of these bytes holds nothing but scalars, bytes, mappings, lists and tuples: it
names other types by STACK_GLOBAL or EXT. A search for these bytes takes a tenth of the time of `_check`. Texts and
numbers may contain them too; then `_check` decides."""


def pack(key: Any, value: Any) -> tuple[bytes, bytes]:
    """Returns the bytes of a key, as `key_bytes` does, and a payload. `unpack` returns key and value from both. Raises
    InvalidOutcome if key or value hold something else than what JSON holds, bytes, datetime and Decimal."""
    if type(value) is str and (key is None or type(key) is str):  # usual, and several times as fast as a pickle
        try:
            return (b"n" if key is None else b"s" + key.encode()), b"s" + value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            return key_bytes(key), b"s" + value.encode("utf-8", "surrogatepass")
    payload = _pickled((key, value), _is_flat(key) and _is_flat(value))
    return key_bytes(key), payload


def unpack(key: bytes, payload: bytes) -> tuple[Any, Any]:
    """Returns key and value as `pack` was given them. Only for bytes of the same job: unpickling may run any code."""
    if payload[0] != _TEXT:
        content: tuple[Any, Any] = pickle.loads(payload)
        return content
    try:
        return (key[1:].decode() if key[0] == _TEXT else None), payload[1:].decode()
    except UnicodeDecodeError:
        of_key = key[1:].decode("utf-8", "surrogatepass") if key[0] == _TEXT else None
        return of_key, payload[1:].decode("utf-8", "surrogatepass")


def copied(value: Any) -> tuple[Any, int]:
    """Returns a copy of a value, which no later change of the original changes, and about how many bytes it has. Raises
    InvalidOutcome for what `pack` does not take."""
    if type(value) is dict and _is_flat(value):
        sizes = [len(field) for field in value.values() if type(field) is str or type(field) is bytes]
        return dict(value), 50 * len(value) + sum(sizes)
    payload = _pickled(value, _is_flat(value))
    return pickle.loads(payload), len(payload)


def _is_flat(value: Any) -> bool:
    """Returns whether a value has nothing within it to check: a scalar, or a mapping of names to scalars."""
    kind = type(value)
    if kind is dict:
        return _SCALARS.issuperset(map(type, value.values())) and _NAMES.issuperset(map(type, value))
    return kind in _SCALARS


def _pickled(content: Any, flat: bool) -> bytes:
    """Returns the pickle of a value. Raises InvalidOutcome if no tuple may hold it; a `flat` value is not checked."""
    try:
        payload = pickle.dumps(content, 5)
    except RecursionError:
        raise InvalidOutcome("an emitted value is nested too deeply") from None
    except Exception:
        _check(content)  # a value of another type, which has no pickle
        raise
    for opcode in () if flat else _OPCODES_TO_CHECK:
        if opcode in payload:
            _check(content)
            break
    return payload


def _check(content: Any) -> None:
    """Raises InvalidOutcome if a value holds something else than what JSON holds, bytes, datetime and Decimal."""
    waiting = [content]  # no recursion: a value may have more levels than the stack
    seen = set[int]()  # a value may contain itself, or one part many times
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is dict or kind is list or kind is tuple:
            if id(value) in seen:
                continue
            seen.add(id(value))
            parts: Iterable[Any] = value
            if kind is dict:
                if not _NAMES.issuperset(map(type, value)):
                    waiting += value
                parts = value.values()
            if not _SCALARS.issuperset(map(type, parts)):
                waiting += [part for part in parts if type(part) not in _SCALARS]
        elif kind is datetime:
            zone = value.tzinfo
            # A name of another type may be pickled and not read back.
            if type(zone) not in _ZONES or (type(zone) is timezone and type(zone.tzname(None)) is not str):
                raise InvalidOutcome("an emitted time has a zone of another type; write timezone or ZoneInfo")
        elif kind not in _SCALARS and kind is not Decimal:
            raise InvalidOutcome(
                f"an emitted value holds {kind.__name__}; write what JSON holds, bytes, datetime or Decimal"
            )


def key_bytes(key: Any) -> bytes:
    """Returns bytes that are equal for equal keys, and only for them: 1, 1.0 and True are one key, as in Python. Raises
    InvalidOutcome for what `pack` does not take, and for a mapping with names that are not text."""
    kind: type = type(key)
    if kind is str:
        return b"s" + str(key).encode("utf-8", "surrogatepass")
    if kind is bytes:
        return b"b" + bytes(key)
    if key is None:
        return b"n"
    if kind in (int, bool, float, Decimal):
        return _number_bytes(Decimal(key))
    if kind is datetime:
        if key.tzinfo is None:
            return f"D{key.isoformat()}".encode()
        return f"d{(key - _EPOCH) // timedelta(microseconds=1)}".encode()
    if kind in (list, tuple):
        return b"l" + b"".join(_counted(key_bytes(part)) for part in key)
    if kind is dict:
        if any(type(name) is not str for name in key):
            raise InvalidOutcome("a key holds a mapping with a name that is not text")
        return b"m" + b"".join(_counted(key_bytes(name)) + _counted(key_bytes(key[name])) for name in sorted(key))
    raise InvalidOutcome(f"a key is {kind.__name__}; write what JSON holds, bytes, datetime or Decimal")


def _number_bytes(number: Decimal) -> bytes:
    """Returns sign, exponent and digits without zeros at the end: linear in the digits, whatever the exponent."""
    if number.is_infinite():
        return b"f-inf" if number.is_signed() else b"finf"
    if number.is_nan():
        return b"fnan"
    sign, digits, exponent = number.as_tuple()
    kept = bytes(digits).rstrip(b"\0")
    if not kept:
        return b"i0"
    assert isinstance(exponent, int)
    return b"i%d:%d:%s" % (sign, exponent + len(digits) - len(kept), kept)


def _counted(part: bytes) -> bytes:
    return b"%d:%s" % (len(part), part)
