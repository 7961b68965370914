"""The files that may hold rows of one turn, with their statistics: from the newest log entries, or from a version that
delta-rs has loaded."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ackline.audit.log_state import Action, LogState, stats_of
from ackline.audit.pruned_read import Where, pruned_dataset, table_schema
from ackline.audit.schemas import TABLES
from ackline.audit.table_handle import TableHandle

_BOUNDS = ("min", "max")


class TurnFile(NamedTuple):
    """A file by its name. `low` and `high` hold the bounds of those columns whose statistics exist."""

    name: str
    rows: int | None
    low: Mapping[str, Any]
    high: Mapping[str, Any]
    path: str
    """Relative to the table."""
    size: int
    """In bytes, as the log names it."""

    def value(self, column: str) -> Any:
        """Returns the value that all rows have in a column; None if they differ, or if that is not known."""
        return self.low.get(column) if self.low.get(column) == self.high.get(column) else None

    def may_hold(self, where: Where) -> bool:
        """Returns whether the statistics allow a row that matches."""
        bounds = ((self.low.get(column), value, self.high.get(column)) for column, value in where.items())
        return all(low is None or high is None or low <= value <= high for low, value, high in bounds)


@dataclass(frozen=True, slots=True)
class TurnFiles:
    """Files of one version of a table. The dataset reads them; its fragments have the names of the files."""

    files: Sequence[TurnFile]
    dataset: ds.Dataset


def no_files(handle: TableHandle) -> TurnFiles:
    """Returns no file of a table."""
    # Arrow ends the process with a segmentation fault if a dataset without a file system is scanned.
    return TurnFiles(
        (), ds.FileSystemDataset([], TABLES[handle.name], ds.ParquetFileFormat(), handle.storage.filesystem)
    )


def files_of_entries(handle: TableHandle, state: LogState, added: Iterable[Action], where: Where) -> TurnFiles:
    """Returns those of the `add` actions of log entries whose statistics allow rows that match `where`."""
    chosen = [(action, file) for action in added if (file := _of_entry(action)).may_hold(where)]
    schema, parquet = table_schema(handle, state.schema), ds.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(unquote(action["path"]), handle.storage.filesystem, _partition(action))
        for action, _ in chosen
    ]
    dataset = ds.FileSystemDataset(fragments, schema, parquet, handle.storage.filesystem)
    return TurnFiles([file for _, file in chosen], dataset)


def _of_entry(action: Action) -> TurnFile:
    stats = stats_of(action)
    path = unquote(action["path"])
    low, high = stats.get("minValues", {}), stats.get("maxValues", {})
    return TurnFile(file_name(path), stats.get("numRecords"), low, high, path, action["size"])


def _partition(action: Action) -> ds.Expression:
    day = action["partitionValues"]["plan_date"]
    return ds.field("plan_date") == pa.scalar(date.fromisoformat(day))


def files_of_version(handle: TableHandle, table: DeltaTable, where: Where) -> TurnFiles:
    """Returns the files of a version whose statistics allow rows that match `where`. The cost grows with all files."""
    listed = pa.table(table.get_add_actions(flatten=True))
    return TurnFiles(list(_of_listing(listed, where)), pruned_dataset(handle, table, where))


def _of_listing(listed: pa.Table, where: Where) -> Iterator[TurnFile]:
    columns = [name for name in listed.column_names if name.partition(".")[0] in _BOUNDS]
    possible = [
        pc.fill_null(compare(listed[f"{bound}.{name}"], value), True)  # without statistics a file may hold any row
        for name, value in where.items()
        for bound, compare in zip(_BOUNDS, (pc.less_equal, pc.greater_equal), strict=True)
        if f"{bound}.{name}" in columns
    ]
    chosen = listed.filter(reduce(pc.and_, possible)) if possible else listed
    for row in chosen.select(["path", "num_records", "size_bytes", *columns]).to_pylist():
        low, high = (
            {name.partition(".")[2]: row[name] for name in columns if name.startswith(bound) and row[name] is not None}
            for bound in _BOUNDS
        )
        yield TurnFile(file_name(row["path"]), row["num_records"], low, high, row["path"], row["size_bytes"])


def file_name(path: str) -> str:
    """Returns the name of a file without its folders."""
    return path.rsplit("/", 1)[-1]
