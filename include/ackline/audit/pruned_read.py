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
from ackline.audit.file_bounds import PRUNING, dataset_of
from ackline.audit.schemas import TABLES
from ackline.audit.table_handle import TableHandle

Where: TypeAlias = Mapping[str, str | int]
"""Columns with the values that a row must have, all of them."""


def pruned_dataset(handle: TableHandle, table: DeltaTable, where: Where | None) -> ds.Dataset:
    """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet.

    A column without statistics rules out no file. So a filter on it finds its rows, which delta-rs's own dataset drops
    (`file_bounds`).
    """
    dataset = dataset_of(handle, table, [name for name in PRUNING if name in TABLES[handle.name].names])
    if where is None:
        return dataset
    fragments = list(dataset.get_fragments(filter=as_expression(where)))
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def table_schema(handle: TableHandle, existing: Schema) -> pa.Schema:
    """Returns the columns of a version, and those that it lacks: they are null in a table of an earlier version."""
    schema = pa.schema(existing.to_arrow())
    for field in missing_columns(existing, handle.name):
        schema = schema.append(field)
    return schema


def as_expression(where: Where) -> ds.Expression:
    """Returns `where` as Arrow's filter."""
    return reduce(and_, (ds.field(name) == value for name, value in where.items()))
