"""The shape of some records: of what kind their values are, and which fields JSON objects have in common. Pure.

A shape holds no value. It holds the name of a field only if most of the records have it: the name of such a field is
part of the format, and a key that is data (a customer's id) is not in most records.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_MOST = 0.8
"""The share of records by which their kind, or a field, is part of the format."""
_MAX_FIELDS = 20
_FIELD = re.compile(r"[A-Za-z_]\w{0,39}")
_REGISTRY_HEADER = 5
"""Length of the header of a value that was written with a schema registry: a zero byte, and the schema's id."""
_TYPES: Mapping[type, str] = {
    str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object", type(None): "null",
}  # fmt: skip


class ValueKind(StrEnum):
    """Of what kind most values are."""

    JSON_OBJECT = "JSON objects"
    JSON = "JSON"
    TEXT = "text"
    REGISTRY = "in the format of a schema registry"
    BINARY = "binary"
    NONE = "unknown"
    """There is no record with a value."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The shape of `records` records, of which `nulls` have no value; `fields` are the types of common fields."""

    kind: ValueKind
    records: int
    nulls: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)


def shape_of(values: Iterable[bytes | None]) -> RecordShape:
    """Returns the shape of records with these values."""
    kinds: Counter[ValueKind] = Counter()
    types: dict[str, Counter[str]] = {}
    records = nulls = 0
    for value in values:
        records += 1
        if value is None:
            nulls += 1
            continue
        kind, content = _read(value)
        kinds[kind] += 1
        for name, word in _types_of_fields(content).items():
            types.setdefault(name, Counter())[word] += 1
    objects = kinds[ValueKind.JSON_OBJECT]
    common = [name for name, words in types.items() if words.total() >= _MOST * objects and _FIELD.fullmatch(name)]
    kind = _most_common(kinds, records - nulls)
    fields = {name: types[name].most_common(1)[0][0] for name in common[:_MAX_FIELDS]}
    return RecordShape(kind, records, nulls, fields if kind is ValueKind.JSON_OBJECT else {})


def _most_common(kinds: Counter[ValueKind], values: int) -> ValueKind:
    if not values:
        return ValueKind.NONE
    kind, number = kinds.most_common(1)[0]
    if number >= _MOST * values:
        return kind
    return (
        ValueKind.JSON if kinds[ValueKind.JSON_OBJECT] + kinds[ValueKind.JSON] >= _MOST * values else ValueKind.BINARY
    )


def _read(value: bytes) -> tuple[ValueKind, Any]:
    if len(value) > _REGISTRY_HEADER and value[0] == 0:
        return ValueKind.REGISTRY, None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ValueKind.BINARY, None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return ValueKind.TEXT, None
    return (ValueKind.JSON_OBJECT if isinstance(content, dict) else ValueKind.JSON), content


def _types_of_fields(content: object) -> dict[str, str]:
    return {name: _TYPES[type(value)] for name, value in content.items()} if isinstance(content, dict) else {}
