"""The files of a table as an Arrow dataset, each with the bounds that its log entry states.

delta-rs's own dataset gives each file a bound of null for a column without statistics. Arrow then takes every
comparison with that column for false, so a filter on an error class or a run id would drop all rows. Here a column
without statistics has no bound, and Arrow reads the file.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ackline.audit.object_store import cause_of, options_of
from ackline.audit.schemas import TABLES
from ackline.audit.table_handle import TableHandle
from ackline.errors import ConfigError
from ackline.scrub import scrub_address

PRUNING = ("lane", "epoch", "turn", "topic", "partition", "offset", "attempt", "outcome", "kind")
"""Columns whose bounds let Arrow skip a file. A file without rows outside these bounds is not opened."""


def table_files(version: DeltaTable) -> pa.Table:
    """Returns the files of a version with their statistics, a row a file."""
    return pa.table(version.get_add_actions(flatten=True))


def dataset_of(table: TableHandle, version: DeltaTable, bounded: Sequence[str] = ()) -> ds.FileSystemDataset:
    """Returns all files of a version; they are not opened yet. `bounded` are the columns by which Arrow skips files.

    It has every column of the schema, null in a table of an earlier version.
    """
    files, format_ = table_files(version), _parquet_format()
    existing = pa.schema(version.schema().to_arrow())
    schema = pa.schema([*existing, *(field for field in TABLES[table.name] if field.name not in existing.names)])
    names = [name for bound in bounded for name in (f"min.{bound}", f"max.{bound}", f"null_count.{bound}")]
    known = {"path", "partition.plan_date", *names}
    rows = files.select([name for name in files.column_names if name in known]).to_pylist() if files.num_rows else []
    filesystem = table.storage.filesystem
    # Do not pass the size that the log states: with it, Arrow does not ask S3 for the size of the object. If the object
    # is shorter, Arrow reads the missing end from what its buffer held before, so a cut file can read as a whole one.
    fragments = [
        format_.make_fragment(row["path"], filesystem, partition_expression=_guarantee(row, bounded)) for row in rows
    ]
    return ds.FileSystemDataset(fragments, schema, format_, filesystem)


def at_version(table: TableHandle, version: int) -> DeltaTable:
    """Returns a table as it was at a version. Raises ConfigError if the Delta log does not hold that version."""
    try:
        return DeltaTable(table.uri, version=version, storage_options=options_of(table.uri))
    except (DeltaError, OSError, ValueError) as error:
        raise ConfigError(
            f"version {version} of the table {table.name} at {scrub_address(table.uri)} can't be read: it does not "
            f"exist yet, or the Delta log has expired it after about a day. A time has no such limit. "
            f"({cause_of(error, table.uri)})",
            key="--as-of",
        ) from error


def _parquet_format() -> ds.ParquetFileFormat:
    return ds.ParquetFileFormat(default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True))


def _guarantee(file: dict[str, Any], bounded: Sequence[str]) -> ds.Expression:
    """Returns what holds for every row of a file."""
    holds = ds.field("plan_date") == file["partition.plan_date"]
    for name in bounded:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        # With nulls among the values, a bound would have Arrow drop these rows from `IS NULL`.
        if low is not None and high is not None and file.get(f"null_count.{name}") == 0:
            holds = holds & (ds.field(name) >= low) & (ds.field(name) <= high)
    return holds
