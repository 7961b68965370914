"""What a key or value is made of before a handler sees it: bytes, text or JSON. Pure.

A decoder either answers or raises `Undecodable`, whatever it was given; what it says quotes nothing of the record.
Avro and JSON Schema need the schema registry: `ackline.kafka.registry`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ackline.handler import Record

Decode = Callable[[bytes, Record], Any]
"""Makes a value of the bytes; the record is the one they are of, with its topic and headers."""


class Undecodable(Exception):
    """These bytes are not what the pipeline file says: the failure of their record alone (ErrorClass.UNDECODABLE).

    Its text holds nothing of the record.
    """


def strict_json(data: bytes) -> Any:
    """UTF-8 JSON as Python's `json` reads it. Raises ValueError, RecursionError."""
    return json.loads(data.decode())  # not loads(bytes): it would guess at UTF-16 and let half a surrogate pass


def _utf8(field: str) -> Decode:
    def decode(data: bytes, record: Record) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(_not_text(field, error)) from None

    return decode


def _json(field: str) -> Decode:
    def decode(data: bytes, record: Record) -> Any:
        try:
            return strict_json(data)
        except Exception as error:  # RecursionError and MemoryError are the value's doing, too
            raise Undecodable(not_json(field, error)) from None

    return decode


def _not_text(field: str, error: UnicodeDecodeError) -> str:
    return f"the {field} is not UTF-8: {error.reason} at byte {error.start}"


def not_json(field: str, error: Exception) -> str:
    """Why `strict_json` did not answer, in words that hold nothing of what it was given."""
    match error:
        case UnicodeDecodeError():
            return _not_text(field, error)
        case json.JSONDecodeError():
            return f"the {field} is not JSON: line {error.lineno}, column {error.colno}"
        case RecursionError():
            return f"the {field} is JSON nested too deep"
    return f"the {field} is not JSON that can be read: {type(error).__name__}"


PLAIN: Mapping[str, Callable[[str], Decode]] = {"utf8": _utf8, "json": _json}
"""Decoders that need nothing but the bytes, each made for the field it names when it fails."""


def leaves(value: Any) -> Iterator[bytes | str]:
    """All that a decoded value says, keys of mappings too, as texts: what an error message must not repeat."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.keys())
            waiting.extend(one.values())
        elif isinstance(one, list | tuple | set):
            waiting.extend(one)
        elif isinstance(one, bytes | str):
            yield one
        elif one is not None and not isinstance(one, bool):
            yield str(one)
