"""Which files a read of a table opens: those whose statistics in the log allow a matching row.

delta-rs's own dataset gives each file a bound of null for a column without statistics. Arrow then takes every
comparison with that column for false, so a filter on an error class or a run id would drop all rows. Here a column
without statistics has no bound, and Arrow reads the file.

A file that the log names may be lost: it does not exist any more, or is cut short or damaged. Each read and compaction
that needs it fails.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from operator import and_
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.schema import Schema

from ackline.delta.append import missing_columns
from ackline.delta.errors import cause_of, storage_errors
from ackline.delta.files import SCAN_OPTIONS
from ackline.delta.handle import Action, LogState, TableHandle
from ackline.delta.object_store import options_of
from ackline.errors import ConfigError
from ackline.scrub import scrub_address

PRUNING = ("lane", "epoch", "turn", "topic", "partition", "offset", "attempt", "outcome", "kind")
"""Columns whose bounds let Arrow skip a file. A file without rows outside these bounds is not opened."""


def table_files(version: DeltaTable) -> pa.Table:
    """Returns the files of a version with their statistics, a row a file."""
    return pa.table(version.get_add_actions(flatten=True))


_AS_THEY_ARE = "/!$&'()+,-.:;=@_~"
"""What delta-rs leaves as it is, beside letters and digits, in the path of a file that it writes to the log."""


def is_removable(path: str) -> bool:
    """Returns whether delta-rs can remove the file that the log names by `path`. It spells the path in its own way, and
    to every reader another spelling is another file: the old one would stay, beside the one that takes its place."""
    return quote(unquote(path), safe=_AS_THEY_ARE) == path


def dataset_of(table: TableHandle, version: DeltaTable, bounded: Sequence[str] = ()) -> ds.FileSystemDataset:
    """Returns all files of a version; they are not opened yet. `bounded` are the columns by which Arrow skips files. A
    column that a table of an earlier version lacks is null."""
    files = table_files(version)
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=SCAN_OPTIONS)
    schema = table_schema(table, version.schema())
    names = [name for bound in bounded for name in (f"min.{bound}", f"max.{bound}", f"null_count.{bound}")]
    partitions = version.metadata().partition_columns
    known = {"path", *(f"partition.{name}" for name in partitions), *names}
    rows = files.select([name for name in files.column_names if name in known]).to_pylist() if files.num_rows else []
    filesystem = table.storage.filesystem
    # Do not pass the size that the log states: with it, Arrow does not ask S3 for the size of the object. If the object
    # is shorter, Arrow reads the missing end from what its buffer held before, so a cut file can read as a whole one.
    fragments = [
        format_.make_fragment(
            unquote(row["path"]), filesystem, partition_expression=_guarantee(row, partitions, bounded)
        )
        for row in rows
    ]
    return ds.FileSystemDataset(fragments, schema, format_, filesystem)


def at_version(table: TableHandle, version: int) -> DeltaTable:
    """Returns a table as it was at a version. Raises ConfigError if the Delta log does not hold that version."""

    def expired(error: BaseException) -> ConfigError:
        return ConfigError(
            f"version {version} of the table {table.name} at {scrub_address(table.uri)} can't be read: it does not "
            f"exist yet, or the Delta log has expired it after about a day. A time has no such limit. "
            f"({cause_of(error, table.uri)})",
            key="--as-of",
        )

    with storage_errors(table.uri, expired):
        return DeltaTable(table.uri, version=version, storage_options=options_of(table.uri))


def _guarantee(file: dict[str, Any], partitions: Sequence[str], bounded: Sequence[str]) -> ds.Expression:
    """Returns an expression that is true for every row of a file. Arrow skips the file if a filter contradicts it, and
    takes the values of the partition columns from it."""
    holds = partition_guarantee(file, partitions)
    for name in bounded:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        # With nulls among the values, a bound would have Arrow drop these rows from `IS NULL`.
        if low is not None and high is not None and file.get(f"null_count.{name}") == 0:
            holds = holds & (ds.field(name) >= low) & (ds.field(name) <= high)
    return holds


def partition_guarantee(file: Mapping[str, Any], partitions: Sequence[str]) -> ds.Expression:
    """Returns an expression with the values of the partition columns of a file, which its rows do not hold."""
    holds = ds.scalar(True)
    for name in partitions:
        value = file[f"partition.{name}"]
        holds = holds & (ds.field(name).is_null() if value is None else ds.field(name) == value)
    return holds


Where: TypeAlias = Mapping[str, str | int | None]
"""Columns with the values that a row must have, all of them; None is null."""


def pruned_dataset(handle: TableHandle, table: DeltaTable, where: Where | None) -> ds.Dataset:
    """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet. A column
    without statistics rules out no file."""
    dataset = dataset_of(handle, table, [name for name in PRUNING if name in handle.declared.names])
    if where is None:
        return dataset
    fragments = list(dataset.get_fragments(filter=as_expression(where)))
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def table_schema(handle: TableHandle, existing: Schema) -> pa.Schema:
    """Returns the columns of a version, and those that it lacks: they are null in a table of an earlier version."""
    return pa.schema([*pa.schema(existing.to_arrow()), *missing_columns(existing, handle.declared)])


def as_expression(where: Where) -> ds.Expression:
    """Returns Arrow's filter for the rows that match `where`."""
    return reduce(and_, (has_value(name, value) for name, value in where.items()))


def has_value(name: str, value: str | int | None) -> ds.Expression:
    """Returns Arrow's filter for the rows with a value in a column; None is null."""
    return ds.field(name).is_null() if value is None else ds.field(name) == value


BOUNDS = ("min", "max")


def is_within(low: Any, value: Any, high: Any) -> bool:
    """Returns whether the bounds of a column allow a value. A bound of None is not known, so each value is allowed; so
    is null, of which bounds say nothing."""
    return None in (low, value, high) or low <= value <= high


class TurnFile(NamedTuple):
    """A data file that may hold rows of a turn. `low` and `high` are the bounds of each column that has statistics."""

    name: str
    rows: int | None
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    path: str
    """The path, relative to the table."""
    size: int
    """The size in bytes that the log states."""

    def value(self, column: str) -> Any:
        """Returns the value that all rows have in a column; None if they differ, or if that is not known."""
        return self.low.get(column) if self.low.get(column) == self.high.get(column) else None

    def may_hold(self, where: Where) -> bool:
        """Returns whether the statistics allow a row that matches `where`."""
        return all(is_within(self.low.get(name), value, self.high.get(name)) for name, value in where.items())


@dataclass(frozen=True, slots=True)
class TurnFiles:
    """Data files that may hold rows of a turn, and the dataset that reads them; its fragments have their names."""

    files: Sequence[TurnFile]
    dataset: ds.Dataset


def no_files(handle: TableHandle) -> TurnFiles:
    """Returns an empty selection, which has the columns of the table."""
    # Arrow ends the process with a segmentation fault if a dataset without a file system is scanned.
    return TurnFiles((), ds.FileSystemDataset([], handle.declared, ds.ParquetFileFormat(), handle.storage.filesystem))


def files_of_entries(handle: TableHandle, state: LogState, added: Iterable[Action], where: Where) -> TurnFiles:
    """Returns the files of those `add` actions whose statistics allow rows that match `where`."""
    files, fragments = [], []
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=SCAN_OPTIONS)
    filesystem = handle.storage.filesystem
    for action in added:
        path, stats = unquote(action["path"]), json.loads(action.get("stats") or "{}")
        low, high = stats.get("minValues", {}), stats.get("maxValues", {})
        file = TurnFile(file_name(path), stats.get("numRecords"), low, high, path, action["size"])
        if file.may_hold(where):
            files.append(file)
            day = pa.scalar(date.fromisoformat(action["partitionValues"]["plan_date"]))
            fragments.append(parquet.make_fragment(path, filesystem, ds.field("plan_date") == day))
    return TurnFiles(files, ds.FileSystemDataset(fragments, table_schema(handle, state.schema), parquet, filesystem))


def files_of_version(handle: TableHandle, table: DeltaTable, where: Where) -> TurnFiles:
    """Returns the files of a version whose statistics allow rows that match `where`. It lists all files."""
    return TurnFiles(list(_of_listing(table_files(table), where)), pruned_dataset(handle, table, where))


def _of_listing(listed: pa.Table, where: Where) -> Iterator[TurnFile]:
    columns = [name for name in listed.column_names if name.partition(".")[0] in BOUNDS]
    possible = [
        pc.fill_null(compare(listed[f"{bound}.{name}"], value), True)  # without statistics a file may hold any row
        for name, value in where.items()
        for bound, compare in zip(BOUNDS, (pc.less_equal, pc.greater_equal), strict=True)
        if f"{bound}.{name}" in columns
    ]
    chosen = listed.filter(reduce(pc.and_, possible)) if possible else listed
    for row in chosen.select(["path", "num_records", "size_bytes", *columns]).to_pylist():
        low, high = (
            {name.partition(".")[2]: row[name] for name in columns if name.startswith(bound) and row[name] is not None}
            for bound in BOUNDS
        )
        yield TurnFile(file_name(row["path"]), row["num_records"], low, high, row["path"], row["size_bytes"])


def file_name(path: str) -> str:
    """Returns the name of a file without its folders."""
    return path.rsplit("/", 1)[-1]
