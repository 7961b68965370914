"""Reads of a table that open only the files whose statistics allow a matching row."""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.schema import Schema

from ackline.audit.creation import missing_columns
from ackline.audit.table_handle import TableHandle

Where: TypeAlias = Mapping[str, str | int]
"""Columns with the values that a row must have, all of them."""


def pruned_dataset(handle: TableHandle, table: DeltaTable, where: Where | None) -> ds.Dataset:
    """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet.

    Arrow itself reads them, and not delta-rs's Python file system (`object_store.arrow_filesystem`).
    """
    schema, pruning = table_schema(handle, table.schema()), None if where is None else _as_sql(where)
    return table.to_pyarrow_dataset(filesystem=handle.storage.filesystem, file_pruning_predicate=pruning, schema=schema)


def table_schema(handle: TableHandle, existing: Schema) -> pa.Schema:
    """Returns the columns of a version, and those that it lacks: they are null in a table of an earlier version."""
    schema = pa.schema(existing.to_arrow())
    for field in missing_columns(existing, handle.name):
        schema = schema.append(field)
    return schema


def as_expression(where: Where) -> ds.Expression:
    """Returns `where` as Arrow's filter."""
    return reduce(and_, (ds.field(name) == value for name, value in where.items()))


def _as_sql(where: Where) -> str:
    """Returns `where` as the SQL predicate by which delta-rs prunes files."""
    return " AND ".join(f"{name} = {_sql_literal(value)}" for name, value in where.items())


def _sql_literal(value: str | int) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
