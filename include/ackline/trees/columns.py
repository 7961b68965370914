"""Tuples as Arrow columns, as the handlers of Arrow steps get and emit them.

A batch of tuples has the column `key` and one column for each field of the values. A value that is no mapping has the
one field `value`, and a batch with this field alone holds such values. A field that a tuple lacks is null. So a batch
holds values of one type a field; whole numbers and fractions together make a `double`.

What no column can hold, such as a number of more than 64 bits, is refused one tuple at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.outcomes import UNIX_EPOCH
from ackline.pipeline.output_columns import SCALAR, as_row
from ackline.trees.payload import key_bytes
from ackline.trees.rows import Int64s

KEY = "key"
TUPLE = "_tuple"

TYPE_ERRORS = (pa.ArrowException, ValueError, OverflowError, TypeError, RecursionError)
"""What Arrow raises for a value that has no place in a column: RecursionError for one that is nested too deeply."""
_TIME = pa.timestamp("us")
_UTC_TIME = pa.timestamp("us", "UTC")
_FIRST_TIME, _LAST_TIME = (
    (moment.replace(tzinfo=UTC) - UNIX_EPOCH) // timedelta(microseconds=1)
    for moment in (datetime.min, datetime.max)  # noqa: DTZ901
)
"""The first and the last time that `datetime` holds, in microseconds since 1970."""


class NoColumn(Exception):
    """A value has no place in a column. The text gives the reason, and quotes no value."""


# ---- from values to columns, and back -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Converted:
    """Values as columns: batches, each with the numbers of its values, and the reasons why the others have none."""

    batches: Sequence[tuple[Int64s, pa.RecordBatch]]
    refused: dict[int, str]


def columns_of(keys: Sequence[Any], values: Sequence[Any]) -> Converted:
    """Returns keys and values as batches, as few as their types allow: in one batch, if they have one type a field."""
    try:
        return Converted([(np.arange(len(keys)), _batch_of(keys, values))], {})
    except (NoColumn, *TYPE_ERRORS):
        pass  # not all of them fit together: find out which do
    groups: list[tuple[pa.Schema, list[int]]] = []
    refused: dict[int, str] = {}
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            schema = _batch_of([key], [value]).schema
        except (NoColumn, *TYPE_ERRORS) as error:
            refused[number] = str(error) if isinstance(error, NoColumn) else "Arrow has no type for its value"
            continue
        for place, (of_group, numbers) in enumerate(groups):
            both = merged_schema([of_group, schema])
            if both is not None:
                groups[place] = both, [*numbers, number]
                break
        else:
            groups.append((schema, [number]))
    batches = [
        (np.array(part, np.int64), batch)
        for _, numbers in groups
        for part, batch in _batches_of_group(numbers, keys, values)
    ]
    return Converted(batches, refused)


def _batches_of_group(
    numbers: list[int], keys: Sequence[Any], values: Sequence[Any]
) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Yields batches of values whose types fit together. A number may be too large for the type that all of them have
    together; then each value has a batch of its own."""
    try:
        yield numbers, _batch_of([keys[number] for number in numbers], [values[number] for number in numbers])
    except (NoColumn, *TYPE_ERRORS):
        for number in numbers:
            yield [number], _batch_of([keys[number]], [values[number]])


def _batch_of(keys: Sequence[Any], values: Sequence[Any]) -> pa.RecordBatch:
    """Returns one batch of keys and values. Raises NoColumn or one of TYPE_ERRORS if there is none."""
    rows = [as_row(value) for value in values]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if type(name) is not str:
            raise NoColumn("its value is a mapping with a name that is not text")
        if name in (KEY, TUPLE):
            raise NoColumn(f"its value has a field {name}, which is a column that Ackline adds; rename the field")
    columns = [_array(keys), *(_array([row.get(name) for row in rows]) for name in names)]
    return pa.RecordBatch.from_arrays(columns, names=[KEY, *names])


def _array(values: list[Any] | Sequence[Any]) -> pa.Array:
    return pa.array(values, _type_of(values))


_SIMPLE: dict[type, pa.DataType] = {str: pa.string(), bytes: pa.binary(), bool: pa.bool_(), float: pa.float64()}


_TOO_DEEP = "its value has more than 32 lists and mappings within one another"
_MOST_LEVELS = 32
"""Lists and mappings within one another, at most: Arrow sends no more than 64 between two processes."""


def _type_of(values: Sequence[Any], level: int = 0) -> pa.DataType:
    """Returns the type of a column of these values, which are `level` lists and mappings deep, or raises NoColumn.
    Arrow's own inference would turn texts beside bytes into bytes, and drop time zones."""
    if level > _MOST_LEVELS:
        raise NoColumn(_TOO_DEEP)
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {int, float}:
        return pa.float64()
    if kinds <= {list, tuple} and kinds:
        return pa.list_(_type_of([item for value in values if value is not None for item in value], level + 1))
    if len(kinds) > 1:
        raise NoColumn("values of several types are in one field or list")
    kind = kinds.pop() if kinds else None
    given = [value for value in values if value is not None]
    if kind is None:
        return pa.null()
    if kind is int:
        if not -(1 << 63) <= min(given) <= max(given) < 1 << 63:
            raise NoColumn("its value holds a number of more than 64 bits")
        return pa.int64()
    if kind is datetime:
        return _type_of_times(given)
    if kind is dict:
        names = list(dict.fromkeys(name for value in given for name in value))
        if any(type(name) is not str for name in names):
            raise NoColumn("its value holds a mapping with a name that is not text")
        return pa.struct([(name, _type_of([value.get(name) for value in given], level + 1)) for name in names])
    return pa.array(given).type if kind is Decimal else _SIMPLE[kind]


def _type_of_times(times: Sequence[datetime]) -> pa.DataType:
    zoned = {time.tzinfo is not None for time in times}
    if len(zoned) > 1:
        raise NoColumn("times with and without a zone are in one field or list")
    if not zoned.pop():
        return _TIME
    for time in times:
        time.astimezone(UTC)  # raises OverflowError for one that is beyond the calendar there
    return _UTC_TIME


def values_of(batch: pa.RecordBatch) -> list[tuple[Any, Any]]:
    """Returns key and value of each tuple of a batch."""
    keys, names = batch.column(0).to_pylist(), batch.schema.names[1:]
    columns = [column.to_pylist() for column in batch.columns[1:]]
    if names == [SCALAR]:
        return list(zip(keys, columns[0], strict=True))
    rows = zip(*columns, strict=True) if columns else ((),) * len(keys)
    return [(key, dict(zip(names, row, strict=True))) for key, row in zip(keys, rows, strict=True)]


# ---- batches together -----------------------------------------------------------------------------------------------


def merged_schema(schemas: Sequence[pa.Schema]) -> pa.Schema | None:
    """Returns the schema of a batch with the columns of all schemas; None if a column has types that do not fit
    together."""
    first = schemas[0]
    if all(first.equals(schema) for schema in schemas[1:]):
        return first
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            if not _fit_together(types.get(field.name, pa.null()), field.type):
                return None
            types[field.name] = field.type if pa.types.is_null(types.get(field.name, pa.null())) else types[field.name]
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException:
        return None


def _fit_together(one: pa.DataType, other: pa.DataType) -> bool:
    """Returns False for texts beside bytes, of which Arrow would make bytes; also within lists and structs."""
    if one.equals(other) or pa.types.is_null(one) or pa.types.is_null(other):
        return True
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _fit_together(one.value_type, other.value_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = {field.name for field in one} & {field.name for field in other}
        return all(_fit_together(one.field(name).type, other.field(name).type) for name in names)
    return bool(pa.types.is_string(one) == pa.types.is_string(other))


MOST_BYTES = 1_000_000_000
"""Bytes of a batch of tuples, at most: Arrow holds 2 GiB of text in a column."""


def joined_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Returns the rows of all batches as one, null where a batch lacks a column; None if their columns do not fit
    together, or if they have more than MOST_BYTES."""
    if len(batches) == 1:
        return batches[0]
    schema = merged_schema([batch.schema for batch in batches])
    if schema is None or sum(batch.nbytes for batch in batches) > MOST_BYTES:
        return None
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    try:
        table = pa.concat_tables(tables, promote_options="permissive").select(schema.names)
    except pa.ArrowException:  # a number is too large for the type that both have together
        return None
    return pa.RecordBatch.from_arrays([one_array(column) for column in table.columns], schema=table.schema)


def without_types_of_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with Arrow's null type for each column that holds nulls alone."""
    count = batch.num_rows
    columns = [pa.nulls(count) if column.null_count == count else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def joined(batches: Sequence[pa.RecordBatch]) -> list[tuple[list[int], pa.RecordBatch]]:
    """Returns the rows of all batches as one batch, or as several where their columns do not fit together; each with
    the numbers of those batches whose rows it has."""
    if (whole := joined_batches(batches)) is not None:
        return [(list(range(len(batches))), whole)]
    groups: list[tuple[list[int], pa.RecordBatch]] = []
    for number, batch in enumerate(batches):
        for place, (numbers, of_group) in enumerate(groups):
            if (both := joined_batches([of_group, batch])) is not None:
                groups[place] = [*numbers, number], both
                break
        else:
            groups.append(([number], batch))
    return groups


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a column as one array; that of an extension type as its storage."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


# ---- what an Arrow handler emits ------------------------------------------------------------------------------------


def emitted_column(column: pa.Array, name: str) -> pa.Array:
    """Returns a column that a handler has emitted, with one of the types that tuples have. Raises NoColumn for a type
    or a time that no tuple may hold."""
    kind = _emitted_type(column.type, name)
    if not kind.equals(column.type):
        try:
            column = column.cast(kind)
        except pa.ArrowException:
            raise NoColumn(f"its column {name} does not fit the type {kind}; cast it in the handler") from None
    _check_times(column, name)
    return column


def _emitted_type(kind: pa.DataType, name: str, level: int = 0) -> pa.DataType:
    types = pa.types
    if level > _MOST_LEVELS:
        raise NoColumn(_TOO_DEEP)
    if types.is_dictionary(kind):
        return _emitted_type(kind.value_type, name)
    if types.is_boolean(kind) or types.is_null(kind) or types.is_integer(kind):
        return kind
    if types.is_decimal(kind):
        return kind if kind.bit_width >= 128 else pa.decimal128(kind.precision, kind.scale)
    if types.is_floating(kind):
        return pa.float64()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _TIME if kind.tz is None else _UTC_TIME
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_emitted_type(kind.value_type, name, level + 1))
    if types.is_struct(kind):
        return pa.struct([(field.name, _emitted_type(field.type, name, level + 1)) for field in kind])
    raise NoColumn(f"its column {name} has the type {kind}, which no tuple may hold; cast it in the handler")


def _check_times(column: pa.Array, name: str) -> None:
    kind = column.type
    if pa.types.is_list(kind):
        _check_times(column.flatten(), name)
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            _check_times(part, name)
    elif pa.types.is_timestamp(kind):
        ends = pc.min_max(column.cast(pa.int64()))
        first, last = ends["min"].as_py(), ends["max"].as_py()
        if first is not None and not _FIRST_TIME <= first <= last <= _LAST_TIME:
            raise NoColumn(f"its column {name} holds a time beyond the years 1 to 9999")


_MARK_OF_TEXT, _MARK_OF_NONE = pa.scalar(b"s", pa.binary()), pa.scalar(b"n", pa.binary())


def bytes_of_keys(keys: pa.Array) -> pa.Array:
    """Returns what `ackline.trees.payload.key_bytes` makes of each key, as a binary column. Raises InvalidOutcome for a
    key that no tuple may have."""
    if pa.types.is_null(keys.type):
        return pa.repeat(_MARK_OF_NONE, len(keys))
    if pa.types.is_string(keys.type):  # usual
        marked = pc.binary_join_element_wise(_MARK_OF_TEXT, keys.cast(pa.binary()), pa.scalar(b"", pa.binary()))
        return pc.fill_null(marked, _MARK_OF_NONE)
    if pa.types.is_nested(keys.type):
        return pa.array([key_bytes(key) for key in keys.to_pylist()], pa.binary())
    distinct = keys.dictionary_encode()
    made = pa.array([key_bytes(key) for key in distinct.dictionary.to_pylist()], pa.binary())
    return pc.fill_null(made.take(distinct.indices), _MARK_OF_NONE)
