"""The columns of an output table: their types in Arrow, how they are inferred from rows, and which rows fit. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from ackline.pipeline.outputs import obstacle_of_column, without_case
from ackline.scrub import MASK

ANCHOR_TYPE = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32())]
)
STAGED_ANCHORS = pa.field("_anchors", pa.list_(ANCHOR_TYPE))
"""The column of staged rows for the records that each is anchored to."""

SCALAR = "value"
"""The column of an emitted value that is not a mapping."""

MOST_INFERRED = 1_000
"""The most columns that are inferred for a table. Mappings with a key for each customer would make one for each."""

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_WORDS = {kind: word for word, kind in _ARROW.items()}
_INFERRED: Mapping[type, str] = {
    **dict.fromkeys((str, dict, list, tuple), "string"),
    bool: "boolean",
    int: "long",
    float: "double",
    bytes: "binary",
    datetime: "timestamp",
    Decimal: "decimal(38,9)",
}
_TAKEN: Mapping[str, frozenset[type]] = {
    "string": frozenset({str, dict, list, tuple}),
    "long": frozenset({int}),
    "double": frozenset({int, float}),
    "boolean": frozenset({bool}),
    "binary": frozenset({bytes}),
    "timestamp": frozenset({datetime}),
    "decimal": frozenset({Decimal, int}),
}
"""The Python types whose values a column takes, by the first word of its type."""

Columns = Mapping[str, str]
"""The type of each column, as a pipeline file writes it."""


def arrow_type(text: str) -> pa.DataType:
    """Returns the Arrow type of a column, as `string` or `decimal(10,2)`."""
    if text.startswith("decimal"):
        precision, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _ARROW[text]


def type_text(kind: pa.DataType) -> str | None:
    """Returns an Arrow type as a pipeline file writes it; None if no output can write a column of this type."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return "binary"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    return _WORDS.get(kind)


def as_row(value: Any) -> Mapping[Any, Any]:
    """Returns an emitted value as a row: a mapping as it is, and anything else as the column `value`."""
    return value if type(value) is dict else {SCALAR: value}


def infer_columns(rows: Iterable[Mapping[Any, Any]], known: Columns = MappingProxyType({})) -> dict[str, str]:
    """Returns a column for each field of the rows that has none yet; `known` are the columns that the table has.

    A column has the type that most of its values have, and numbers with and without a fraction make a `double`. A
    field that only holds nulls gets no column, nor does a name that a table can't have, nor a field after MOST_INFERRED
    columns.
    """
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        if row.keys() <= known.keys():
            continue
        for name, value in row.items():
            if name not in known and value is not None and obstacle_of_column(name) is None:
                kinds.setdefault(name, Counter())[_INFERRED[type(value)]] += 1
    columns: dict[str, str] = {}
    taken = set(map(without_case, known))
    for name, counts in kinds.items():
        if without_case(name) not in taken and len(taken) < MOST_INFERRED:
            columns[name] = _common(counts)
            taken.add(without_case(name))
    return columns


def _common(counts: Counter[str]) -> str:
    if counts["long"] and counts["double"]:
        counts["double"] += counts.pop("long")
    return min(counts, key=lambda kind: (-counts[kind], kind))


def fit_rows(
    rows: Sequence[Mapping[Any, Any]],
    columns: Columns,
    hidden: Sequence[Collection[Any]] = (),
    shown: Collection[str] | None = None,
) -> tuple[list[pa.Array], dict[int, str]]:
    """Returns the rows as arrays, one for each column, and why which rows do not fit, by their index.

    The arrays hold null where a value does not fit. The reasons name columns, fields and types, and no value; `hidden`
    has for each row the fields whose names they must not show, `shown` the columns that they may name; None: all.
    """
    named = list(columns) if shown is None else [name for name in columns if name in shown]
    problems: dict[int, str] = {}
    names = frozenset(columns)
    for number, row in enumerate(rows):
        if not row.keys() <= names:
            unknown = [name for name in row.keys() - names if row[name] is not None]
            secret = hidden[number] if hidden else ()
            fields = sorted(name for name in unknown if type(name) is str and name.isprintable() and name not in secret)
            if unknown:
                listed = _listed(fields[:1], named, len(columns))
                problems[number] = f"its field {fields[0] if fields else MASK} is {listed}"
    arrays = [
        _fit([row.get(name) for row in rows], name if name in named else MASK, kind, problems)
        for name, kind in columns.items()
    ]
    return arrays, problems


def fit_columns(batch: pa.RecordBatch, columns: Columns) -> list[pa.Array] | None:
    """Returns the columns of a table for rows that are columns already: `batch` has the keys of the rows, and then
    their fields. Returns None unless each field has the type of its column, so that `fit_rows` has nothing to decide:
    whole numbers may also be a `double`, and a field that only holds nulls needs no column.
    """
    count, fields = batch.num_rows, dict(zip(batch.schema.names[1:], batch.columns[1:], strict=True))
    if not columns or any(name not in columns and field.null_count < count for name, field in fields.items()):
        return None
    arrays = []
    for name, kind in columns.items():
        field, arrow = fields.get(name, pa.nulls(count)), arrow_type(kind)
        is_number = pa.types.is_integer(field.type) and kind in ("long", "double")
        if not (field.type.equals(arrow) or is_number or field.null_count == count):
            return None
        try:
            arrays.append(pa.nulls(count, arrow) if field.null_count == count else field.cast(arrow))
        except pa.ArrowException:
            return None
    return arrays


_LISTED = 8
"""How many columns a message names."""


def _listed(unknown: Sequence[str], columns: Sequence[str], number: int) -> str:
    """Returns what a message says of an unknown field: it names the `columns`, those most like the field first, and
    counts the others of the `number` that there are."""
    near = get_close_matches(unknown[0], columns, 1) if unknown else []
    names = [*near, *(name for name in columns if name not in near)][:_LISTED]
    more = f" and {number - len(names)} more" if number > len(names) else ""
    return f"none of the columns {', '.join(names)}{more}" if names else "no column of the table"


def _fit(values: list[Any], name: str, kind: str, problems: dict[int, str]) -> pa.Array:
    taken, arrow, convert = _TAKEN[kind.partition("(")[0]], arrow_type(kind), _converter(kind)
    if (kinds := set(map(type, values)) - {type(None)}) <= taken:
        try:  # Arrow itself refuses half of a surrogate pair
            return pa.array(values if convert is None or kinds <= {str} else list(map(convert, values)), arrow)
        except (pa.ArrowException, ValueError, OverflowError, TypeError, RecursionError):
            pass  # one of them does not fit: find out which
    fitting = []
    for number, value in enumerate(values):
        fitting.append(value if _fits(value, taken, arrow, convert) else None)
        if value is not None and fitting[-1] is None:
            found = "" if type(value) in taken else f" (it is of type {type(value).__name__})"
            problems.setdefault(number, f"its {name} is no {kind}{found}")
    return pa.array(fitting if convert is None else list(map(convert, fitting)), arrow)


def _fits(value: Any, taken: frozenset[type], arrow: pa.DataType, convert: Callable[[Any], Any] | None) -> bool:
    if type(value) not in taken:
        return False
    try:
        pa.array([value if convert is None else convert(value)], arrow)
    except (pa.ArrowException, ValueError, OverflowError, TypeError, RecursionError):
        return False
    return True


def _converter(kind: str) -> Callable[[Any], Any] | None:
    """Returns what makes a value ready for Arrow, which raises ValueError or OverflowError for one that the column
    can't hold."""
    if kind == "string":
        return _text
    return _utc if kind == "timestamp" else None


def _text(value: Any) -> str | None:
    """Returns a text, and a list or mapping as JSON."""
    if value is None or type(value) is str:
        if value is not None:
            value.encode()  # raises for half of a surrogate pair, which no file can hold
        return value
    return json_text(value)


def _utc(value: datetime | None) -> datetime | None:
    """Returns a time in UTC. Raises ValueError for a time without a zone, OverflowError for one beyond the calendar."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise ValueError("a time without a zone")
    return value.astimezone(UTC)


def json_text(value: Any) -> str:
    """Returns a value as JSON: times as ISO 8601, decimals as text. Raises ValueError for what JSON can't hold, such as
    bytes or NaN."""
    return json.dumps(value, default=_json_scalar, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _json_scalar(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    raise ValueError(f"JSON holds no {type(value).__name__}")
