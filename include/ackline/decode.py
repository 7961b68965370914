"""Decoders that need only the bytes: they make text or JSON of a key or value, before the handler sees it. Pure.

Avro and JSON Schema need the schema registry; their decoders are in `ackline.kafka.registry`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ackline.handler import Record

Decode = Callable[[bytes, Record], Any]
"""Returns the value that the bytes hold. The record is the one that they belong to, for its topic and headers.

Raises `Undecodable`, and no other error for what is wrong with the bytes.
"""


class Undecodable(Exception):
    """The decoder does not accept the bytes. The record fails with the class `Undecodable`; others are not affected.

    The text quotes nothing of the record.
    """


def strict_json(data: bytes) -> Any:
    """Returns the value of UTF-8 JSON. Raises ValueError or RecursionError."""
    # json.loads(bytes) would guess at UTF-16 and UTF-32, and would accept one half of a surrogate pair.
    return json.loads(data.decode())


def _utf8(field: str) -> Decode:
    def decode(data: bytes, record: Record) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(_why_not_utf8(field, error)) from None

    return decode


def _json(field: str) -> Decode:
    def decode(data: bytes, record: Record) -> Any:
        try:
            return strict_json(data)
        except Exception as error:  # the bytes also cause RecursionError and MemoryError
            raise Undecodable(why_not_json(field, error)) from None

    return decode


def _why_not_utf8(field: str, error: UnicodeDecodeError) -> str:
    return f"the {field} is not UTF-8: {error.reason} at byte {error.start}"


def why_not_json(field: str, error: Exception) -> str:
    """Returns the text for an error that `strict_json` raised. Quotes nothing of the bytes."""
    match error:
        case UnicodeDecodeError():
            return _why_not_utf8(field, error)
        case json.JSONDecodeError():
            return f"the {field} is not JSON: line {error.lineno}, column {error.colno}"
        case RecursionError():
            return f"the {field} is JSON nested too deep"
    return f"the {field} is not readable JSON: {type(error).__name__}"


DECODERS: Mapping[str, Callable[[str], Decode]] = {"utf8": _utf8, "json": _json}
"""Makes a decoder, by the name that a pipeline file gives it. The argument, `key` or `value`, is for error texts."""


def scalar_texts(value: Any) -> Iterator[bytes | str]:
    """Yields each scalar of a decoded value, and each key of its mappings, as text or bytes; not None and booleans.

    An error message must not repeat any of them.
    """
    waiting = [value]  # no recursion: a value may have more levels than the stack
    seen = set[int]()  # a value that a handler has made may contain itself, or one part many times
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict | list | tuple | set):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, bytes | str):
            yield item
        elif item is not None and not isinstance(item, bool):
            try:
                yield str(item)
            except Exception:  # no text for it (an integer of 5,000 digits), so no message can hold it either
                continue
