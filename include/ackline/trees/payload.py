"""Packs the key and value of a tuple, as they wait for a step or an output, and as they travel between two Spark tasks.

A value is packed when it is yielded, because its handler may change it afterwards. A value is what JSON holds, bytes,
datetime and Decimal, at any depth. The bytes of two keys are equal if the keys are, and only then: by them the tuples
of a key come together.
"""

import pickle
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any
from zoneinfo import ZoneInfo

from msgspec.msgpack import Decoder, Encoder

from ackline.worker.outcomes import InvalidOutcome

Key = str | bytes | None
"""The key of a packed tuple: a text or None as it is. Bytes are those of `key_bytes`, and mean that the payload is a
pickle of key and value."""
Payload = str | bytes
"""The value of a packed tuple: a text as it is, a MessagePack of a scalar or of a mapping of texts to scalars, or a
pickle."""

_SCALARS = frozenset({str, bytes, int, float, bool, NoneType})
_NAMES = frozenset({str})
_encode, _decode = Encoder().encode, Decoder().decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONES = frozenset({NoneType, timezone, ZoneInfo})
_OPCODES_TO_CHECK = (
    pickle.STACK_GLOBAL, pickle.EMPTY_SET, pickle.FROZENSET, pickle.BYTEARRAY8, pickle.EXT1, pickle.EXT2, pickle.EXT4,
)  # fmt: skip
"""A pickle of protocol 5 without any of these bytes holds nothing but scalars, bytes, mappings, lists and tuples: it
names other types by STACK_GLOBAL or EXT. A search for these bytes takes a tenth of the time of `_check`. Texts and
numbers may contain them too; then `_check` decides."""


def pack(key: Any, value: Any) -> tuple[Key, Payload]:
    """Returns a packed key and value. `unpack` returns both as they were. Raises InvalidOutcome if they hold something
    else than what JSON holds, bytes, datetime and Decimal."""
    if key is None or type(key) is str:
        if type(value) is str:
            return key, value
        if _is_flat(value):
            try:
                return key, _encode(value)
            except (OverflowError, UnicodeEncodeError):  # more than 64 bits, half of a surrogate pair
                pass
    return pickled(key, value)


def pickled(key: Any, value: Any) -> tuple[bytes, bytes]:
    """Returns a packed key and value as `pack` does for those that are no texts and no flat values."""
    payload = _pickled(key, value)
    return key_bytes(key), payload


def pack_row(key: Any, value: Any) -> tuple[Key, Payload]:
    """Returns a packed key and value, as `pack` does, for outputs alone: they do not compare keys, so each value that a
    tuple may hold is a key."""
    if key is None or type(key) is str:
        return pack(key, value)
    return b"", _pickled(key, value)


def unpack(key: Key, payload: Payload) -> tuple[Any, Any]:
    """Returns key and value as `pack` was given them. Only for bytes of the same job: unpickling may run any code."""
    if type(payload) is str:
        return key, payload
    if type(key) is bytes:
        content: tuple[Any, Any] = pickle.loads(payload)  # type: ignore[arg-type]
        return content
    return key, _decode(payload)  # type: ignore[arg-type]


def _is_flat(value: Any) -> bool:
    """Returns whether a value has nothing within it to check: a scalar, or a mapping of names to scalars."""
    kind = type(value)
    if kind is dict:
        return _SCALARS.issuperset(map(type, value.values())) and _NAMES.issuperset(map(type, value))
    return kind in _SCALARS


def _pickled(key: Any, value: Any) -> bytes:
    """Returns the pickle of a key and value. Raises InvalidOutcome if no tuple may hold them."""
    content = key, value
    try:
        payload = pickle.dumps(content, 5)
    except RecursionError:
        raise InvalidOutcome("an emitted value is nested too deeply") from None
    except Exception:
        _check(content)  # a value of another type, which has no pickle
        raise
    for opcode in () if _is_flat(key) and _is_flat(value) else _OPCODES_TO_CHECK:
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
    if kind is Decimal:
        return _number_bytes(key)
    if kind in (int, bool, float):
        return _bytes_of_number(key)
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


@lru_cache(4096)
def _bytes_of_number(number: float) -> bytes:
    """Returns the bytes of a number. Equal numbers have the same bytes, so it does not matter which one comes first."""
    return _number_bytes(Decimal(number))


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
