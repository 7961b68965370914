"""The files that `ackline init` and `ackline adopt` write: a pipeline file, a handler and its test. Pure: texts alone.

What is written is a working example of its own: the pipeline file is valid, the handler acks records of the shape that
was found, and the test passes. A shape holds no value. It holds the name of a field only if each of the records has
it: the name of such a field is part of the format, and a key that is data (a customer's id) is not in each record.

The handler that is written gives no record up: a sample does not show all that a topic may hold.
"""

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from ackline.errors import SETTINGS_PAGE

_MOST = 0.8
"""The share of records that must have a kind for it to be part of the format."""
BREAKER = "{failure_ratio: 0.5, min_records: 100}"
"""The value of the key `breaker` for a pipeline of which nothing is known yet."""
_MAX_FIELDS = 20
_FIELD = re.compile(r"[A-Za-z_]\w{0,39}")
_REGISTRY_HEADER = 5
"""Length of the header of a value that was written with a schema registry: a zero byte, and the schema's id."""
_TYPES: Mapping[type, str] = {
    str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object", type(None): "null",
}  # fmt: skip


class ValueKind(StrEnum):
    """The kind of most values of a topic."""

    JSON_OBJECT = "JSON objects"
    JSON = "JSON"
    TEXT = "text"
    REGISTRY = "in the format of a schema registry"
    BINARY = "binary"
    NONE = "unknown"
    """There is no record with a value."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """What `records` records, of which `nulls` have no value, share; `fields` are the types of the fields that
    each JSON object has."""

    kind: ValueKind
    records: int
    nulls: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)


def shape_of(values: Iterable[bytes | None]) -> RecordShape:
    """Returns what these values of records have in common: their kind, and the types of the fields in all objects."""
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
        for name, item in content.items() if isinstance(content, dict) else ():
            types.setdefault(name, Counter())[_TYPES[type(item)]] += 1
    objects = kinds[ValueKind.JSON_OBJECT]
    common = [name for name, words in types.items() if words.total() == objects and _FIELD.fullmatch(name)]
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


_DECODERS = {ValueKind.JSON_OBJECT: "json", ValueKind.JSON: "json", ValueKind.TEXT: "utf8"}
_EXAMPLES: Mapping[str, Any] = {
    "text": "text", "boolean": True, "number": 1, "list": [], "object": {}, "null": None,
}  # fmt: skip
_VALUES: Mapping[ValueKind, Any] = {ValueKind.JSON: [], ValueKind.TEXT: "text"}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The facts from which the files are written. `dead_letter_topic` exists, or is None; `bootstrap_servers` of None
    names the connection `kafka_default`."""

    name: str
    topics: tuple[str, ...]
    group_id: str
    bootstrap_servers: str | None
    dead_letter_topic: str | None
    shape: RecordShape
    adopted: bool = False
    """Whether the group has commits of another client, from which the pipeline goes on."""

    @property
    def module(self) -> str:
        """The name of the handler's module in the folder `handlers`."""
        module = re.sub(r"\W", "_", self.name, flags=re.ASCII).lower()
        return f"t_{module}" if module[0].isdigit() or keyword.iskeyword(module) else module

    @property
    def needs_value(self) -> bool:
        """Whether the handler can check the value that it gets."""
        return self.shape.kind is ValueKind.JSON_OBJECT and bool(self.shape.fields)


def name_for(topic: str) -> str:
    """Returns a pipeline name for a topic or a group."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", topic)[:200]
    return name if name[:1].isalnum() else f"p{name}"[:200]


def text_of_pipeline(scaffold: Scaffold) -> str:
    """Returns the text of the pipeline file, in YAML."""
    broker = (
        f"bootstrap_servers: {_scalar(scaffold.bootstrap_servers)}"
        if scaffold.bootstrap_servers
        else "connection: kafka_default   # an Airflow connection; if it is not defined: the broker of `ackline dev up`"
    )
    topics = ", ".join(map(_scalar, scaffold.topics))
    start = "the group's committed offsets; a partition without one starts at its log start"
    if scaffold.dead_letter_topic:
        dead_letter = f"dead_letter: {{topic: {_scalar(scaffold.dead_letter_topic)}}}"
    else:
        dead_letter = (
            "# A record that is given up leaves no copy in Kafka. To keep one, create a topic and write its name:\n"
            f"# dead_letter: {{topic: {_scalar(f'{scaffold.topics[0]}.dead'[:249])}}}\n"
            "dead_letter: none"
        )
    group = "Ackline goes on from its commits" if scaffold.adopted else "only this pipeline may commit its offsets"
    return (
        f"# {SETTINGS_PAGE} lists every key.\n# `ackline plan` shows what a run reads.\n"
        f"name: {_scalar(scaffold.name)}\n"
        "kafka:\n"
        f"  {broker}\n"
        f"  group_id: {_scalar(scaffold.group_id)}   # {group}\n"
        f"  topics: [{topics}]\n"
        f"handler: handlers.{scaffold.module}:handle\n"
        f"{_decode_text(scaffold.shape)}"
        f"start: uncommitted_earliest   # {start}\n"
        "# The first retry is due at once, the next ones after 2, 4, 8 and 16 minutes; then the record is dead.\n"
        "retry: {initial_delay: 0s, period: 1m, multiplier: 2, max_delay: 1h, max_retries: 5}\n"
        f"{dead_letter}\n"
        f"breaker: {BREAKER}   # a turn in which more than half of the new records fail is void\n"
        'schedule: "*/10 * * * *"   # in Airflow: every ten minutes, in UTC\n'
    )


def text_of_handler(scaffold: Scaffold) -> str:
    """Returns the source code of the handler's module."""
    shape = scaffold.shape
    what = (
        f"{shape.kind}" if shape.kind is not ValueKind.NONE else "not known yet: the topic has no record with a value"
    )
    checks = "    # Your work comes here, with record.value.\n"
    fields = ""
    if scaffold.needs_value:
        lines = "".join(f"    {_python(name)},\n" for name in sorted(shape.fields))
        fields = f'FIELDS = (\n{lines})\n"""All records of the sample have these. Remove what you do not need."""\n\n\n'
        checks = (
            "    if not isinstance(record.value, dict):\n"
            '        raise ValueError("not an object")\n'
            "    for name in FIELDS:\n"
            "        if name not in record.value:\n"
            '            raise ValueError(f"{name} is missing")\n'
        ) + checks
    return (
        f'"""Handles the records of {_doc(", ".join(scaffold.topics))}.\n\n'
        f"Their values are {what}, by the first {shape.records} records of the log. A killed run is repeated, so a\n"
        "record may come twice: write by a key, or send an idempotency key.\n"
        '"""\n\n'
        "from ackline import Record\n\n" + (fields or "\n") + "def handle(record: Record) -> None:\n"
        '    """Return: the record is acked. Raise: it failed, and is tried again after a backoff.\n\n'
        "    Raise `ackline.Skip(reason)` to settle it as skipped, `ackline.Dead(reason)` if no retry can help.\n"
        "    Reasons are stored: put no data of the record into them.\n"
        '    """\n' + checks
    )


def text_of_test(scaffold: Scaffold) -> str:
    """Returns the source code of the handler's test."""
    more = ""
    value: Any = _VALUES.get(scaffold.shape.kind, b"value")
    if scaffold.shape.kind is ValueKind.JSON_OBJECT:
        value = {name: _EXAMPLES[word] for name, word in sorted(scaffold.shape.fields.items())}
    if scaffold.needs_value:
        more = (
            '\n\n@pytest.mark.parametrize("value", [None, [], {}])\n'
            "def test_a_record_of_another_shape_fails(value: object) -> None:\n"
            "    with pytest.raises(ValueError):\n"
            "        handle(record(value))\n"
        )
    return (
        f'"""The handler of the pipeline {scaffold.name}, called as Ackline calls it, without Kafka and Spark."""\n\n'
        "from datetime import UTC, datetime\n\n"
        + ("import pytest\n\n" if scaffold.needs_value else "")
        + "from ackline import Record\n"
        "from ackline.pipeline.folder import make_handlers_importable\n\n"
        "make_handlers_importable()\n\n"
        f"from handlers.{scaffold.module} import handle  # noqa: E402\n\n\n"
        "def record(value: object) -> Record:\n"
        f"    return Record({_python(scaffold.topics[0])}, 0, 0, datetime.now(UTC), None, value, (), attempt=1)\n\n\n"
        "def test_a_record_of_the_usual_shape_is_acked() -> None:\n"
        f"    handle(record({_python(value)}))\n" + more
    )


def _decode_text(shape: RecordShape) -> str:
    decoder = _DECODERS.get(shape.kind)
    if decoder is not None:
        return f"decode: {{value: {decoder}}}\n"
    if shape.kind is ValueKind.REGISTRY:
        return (
            "# The values seem to be written with a schema registry. To have them decoded, remove the two #:\n"
            "# decode: {value: avro}   # or json_schema, protobuf\n"
            "# schema_registry: {url: https://registry:8081}\n"
        )
    return ""


def _scalar(text: str) -> str:
    """Returns a text as YAML, in quotes where it needs them."""
    return yaml.safe_dump(text, width=1000, default_flow_style=True).removesuffix("\n").removesuffix("\n...")


def _python(value: object) -> str:
    """Returns a value as Python source, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python(key)}: {_python(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _doc(text: str) -> str:
    return text.replace("\\", "").replace('"""', "")
