"""How a tuple travels between two Spark tasks: its value and key as bytes, and its key as bytes that compare."""

import io
import json
import pickle
from datetime import datetime
from decimal import Decimal
from typing import Any

from ackline.spark.handlers.outcomes import InvalidOutcome

_ALLOWED = (datetime, Decimal)


class _Pickler(pickle.Pickler):
    """Pickles what a tuple may hold. C code handles the built-in types, and asks here about all others."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) in _ALLOWED or getattr(value, "__module__", "") in ("datetime", "decimal"):
            return NotImplemented
        raise InvalidOutcome(
            f"an emitted value holds {type(value).__name__}; write what JSON holds, bytes, datetime or Decimal"
        )


def pack(value: Any) -> bytes:
    """Returns a value as bytes. Raises InvalidOutcome if it holds something else than what JSON holds, bytes, datetime
    and Decimal."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, 5).dump(value)
    except RecursionError:
        raise InvalidOutcome("an emitted value is nested too deeply") from None
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """Returns the value of `pack`. The bytes come from another task of the same job."""
    return pickle.loads(data)


def key_bytes(key: Any) -> bytes:
    """Returns bytes that are equal for equal keys. Raises InvalidOutcome for what `pack` does not take."""
    kind = type(key)
    if kind is str:
        return b"s" + str(key).encode("utf-8", "surrogatepass")
    if kind is bytes:
        return b"b" + bytes(key)
    if key is None:
        return b"n"
    if kind in (int, bool, float, Decimal):
        return b"i%d" % int(key) if key == key and abs(key) != float("inf") and key == int(key) else f"f{key}".encode()
    if kind is datetime:
        return b"d" + str(key.timestamp() if key.tzinfo else key).encode()
    if kind in (list, tuple):
        parts = [key_bytes(part) for part in key]
        return b"l" + b"".join(b"%d:%s" % (len(part), part) for part in parts)
    if kind is dict:
        pairs = sorted((json.dumps(name), key_bytes(part)) for name, part in key.items())
        return b"m" + b"".join(b"%s%d:%s" % (name.encode(), len(part), part) for name, part in pairs)
    raise InvalidOutcome(f"a key is {kind.__name__}; write what JSON holds, bytes, datetime or Decimal")
