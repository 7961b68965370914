"""Keeps output tables quick, as maintenance does with the tables of the ledger.

What maintenance of the ledger's tables and of output tables share: which files are merged, and what it reports.

Compacts, vacuums and checkpoints the output tables below an audit root, as maintenance does with the ledger's.

Users read these tables, at older versions too, and may compact and clean them with tools that take no lock of ours. So
a compaction commits only as the version right after the one that it has read. If another commit comes first, the
compaction fails, and is tried again if its files are still in the newest version. Its log entry has `dataChange` false,
so a stream that reads the table does not get the rows again. No commit here changes a transaction id, so a turn that a
table already has can't be appended again.
"""

import contextlib
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.errors import FatalError
from ackline.ledger.turns import LIVE
from ackline.pipeline.outputs import ROW_COLUMNS, output_folder
from ackline.scrub import scrub_address
from ackline.tables.append import retry_beside_rivals
from ackline.tables.files import DataFile, DataFileWriter, Storage
from ackline.tables.layout import LaneFolder, folders_in
from ackline.tables.output_table import OutputTable, obstacle_of, partition_path, partition_text

COMPACTION_TRIES = 3
"""How many times maintenance tries a compaction while other processes commit. The next maintenance tries again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is compacted."""

    size: int
    """Bytes of a compacted file, roughly. Larger files stay as they are."""
    rows: int
    """Rows of a row group."""


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did to one table of one lane, or to one output table of a pipeline."""

    pipeline: str
    lane: str
    table: str
    """The name of the table; `outputs/NAME` for an output table."""
    files_before: int
    files: int
    compacted: int
    """Files that were merged into larger ones."""
    busy: int
    """Days, or partitions of an output table, that stay fragmented until the next maintenance, because another process
    replaced their files at the same time."""
    removed: int
    """Unused files that were removed."""
    version: int


def small_files(version: DeltaTable, layout: Layout) -> list[dict[str, Any]]:
    """Returns the files below the size of a compacted one, with their statistics, oldest first."""
    files = pa.table(version.get_add_actions(flatten=True)).to_pylist()
    small = [file for file in files if file["size_bytes"] < layout.size]
    return sorted(small, key=lambda file: (file["modification_time"], file["path"]))


def joined(files: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Yields groups of at least two files, each of which makes up about one compacted file."""
    together: list[dict[str, Any]] = []
    for file in files:
        if together and sum(other["size_bytes"] for other in together) + file["size_bytes"] > size:
            if len(together) > 1:
                yield together
            together = []
        together.append(file)
    if len(together) > 1:
        yield together


def paths_of(version: DeltaTable) -> set[str]:
    """Returns the paths of the files of a version, as its log holds them."""
    return set(pa.table(version.get_add_actions(flatten=True))["path"].to_pylist())


def remove_files(storage: Storage, paths: Sequence[str]) -> int:
    """Removes files of a table. Returns how many.

    Arrow leaves an empty object in an object store for the folder of a file that it removed. delta-rs takes it for an
    unused file once it is old; it is no file for Arrow, and stays.
    """
    infos = storage.filesystem.get_file_info(list(paths))
    files = [info.path for info in infos if info.type is pafs.FileType.File]
    for path in files:
        storage.filesystem.delete_file(path)
    return len(files)


LAYOUT = Layout(64 << 20, 131_072)
_READERS = 1
"""The version of Delta's protocol for readers whose files hold all rows and columns as they are. A later one may have
columns under other names, or rows that a deletion vector hides."""

Values = tuple[Any, ...]
"""The values of the partition columns of a file."""


def output_tables(lane: LaneFolder) -> list[OutputTable]:
    """Returns the output tables below the folder of a live lane; none for another lane, which writes to the same ones.

    A table that the pipeline file names by a URI is not among them: it belongs to the user.
    """
    if lane.lane != LIVE:
        return []
    names = sorted(folders_in(output_folder(lane.folder, "").rstrip("/")))
    return [OutputTable(output_folder(lane.folder, name)) for name in names]


def maintain_output(lane: LaneFolder, table: OutputTable, retention: timedelta) -> Maintained | None:
    """Compacts, vacuums and checkpoints an output table. Returns what it did.

    Returns None and changes nothing if the folder holds no output table, or one with a feature that Ackline does not
    rewrite: its user has changed it, and maintains it. Raises FatalError or TransientError if the
    table can't be read or written.
    """
    with table.errors():
        version = table.open()
        if version is None or not _is_plain(version):
            return None
        before = len(version.file_uris())
        compacted = busy = 0
        for values in _fragmented(version):
            done = _compact(table, values)
            compacted, busy = compacted + (done or 0), busy + (done is None)
        removed = _vacuum(table, retention)
        table.checkpoint()
        after = table.opened()
        name = f"outputs/{table.name}"
        files = len(after.file_uris())
        return Maintained(lane.pipeline, lane.lane, name, before, files, compacted, busy, removed, after.version())


def _is_plain(version: DeltaTable) -> bool:
    """Returns whether this is an output table whose files Ackline can rewrite."""
    names = {field.name for field in version.schema().fields}
    is_old = version.protocol().min_reader_version <= _READERS
    return is_old and set(ROW_COLUMNS) <= names and obstacle_of(version) is None


def _small_files(version: DeltaTable) -> list[dict[str, Any]]:
    """Returns the files below the size of a compacted one, each with its path on the disk: the log escapes it."""
    return [{**file, "path": unquote(file["path"])} for file in small_files(version, LAYOUT)]


def _paths(version: DeltaTable) -> set[str]:
    return {unquote(path) for path in paths_of(version)}


def _values(version: DeltaTable, file: dict[str, Any]) -> Values:
    return tuple(file[f"partition.{name}"] for name in version.metadata().partition_columns)


def _fragmented(version: DeltaTable) -> list[Values]:
    """Returns the values of partitions that have at least two files below the size of a compacted one."""
    values = [_values(version, file) for file in _small_files(version)]
    return [each for each in dict.fromkeys(values) if values.count(each) > 1]


def _compact(table: OutputTable, values: Values) -> int | None:
    """Merges the small files of a partition. Returns how many they were; None if another
    process committed first at each of COMPACTION_TRIES tries."""
    merged = 0
    for _ in range(COMPACTION_TRIES):
        version = table.opened()
        if not _is_plain(version):
            return None
        files = [file for file in _small_files(version) if _values(version, file) == values]
        with contextlib.suppress(CommitFailedError):
            for together in joined(files, LAYOUT.size):
                merged += _merge(table, version, values, together)
            return merged
    return None


def _merge(table: OutputTable, version: DeltaTable, values: Values, files: Sequence[dict[str, Any]]) -> int:
    """Replaces files by one that holds their rows. Returns how many they were.

    The new file is written and synced first, and no log entry names it until the commit. Raises CommitFailedError if
    another process has replaced some of the files.
    """
    columns = version.metadata().partition_columns
    texts = {name: partition_text(value) for name, value in zip(columns, values, strict=True)}
    merged = _rewrite(table, version, texts, files)
    paths = {file["path"] for file in files}

    def commit() -> None:
        with table.lock():
            newest = table.opened()
            if not _is_plain(newest):
                raise CommitFailedError("another process has changed the protocol of the table")
            there = _paths(newest)
            if merged.path in there:  # a commit that was stored, and whose answer got lost
                return
            if not paths <= there:
                raise CommitFailedError("another process has replaced these files")
            now = int(time.time() * 1000)
            added = AddAction(merged.path, merged.size, texts, merged.modification_time, False, merged.stats)
            removed = [RemoveAction(file["path"], False, now, file["size_bytes"], texts) for file in files]
            table.replace(newest, [added, *removed])

    try:
        retry_beside_rivals(commit)
    except CommitFailedError:
        # Not if the commit may have been stored: then this file is the only one that holds the rows.
        if merged.path not in _paths(table.opened()):
            table.storage.filesystem.delete_file(merged.path)
        raise
    return len(files)


def _rewrite(
    table: OutputTable, version: DeltaTable, texts: dict[str, str | None], files: Sequence[dict[str, Any]]
) -> DataFile:
    """Writes the rows of files to one new file, a row group at a time. Raises FatalError if they have not as many rows
    as the log states, and then the new file does not stay."""
    fields = pa.schema(version.schema().to_arrow())
    schema = pa.schema([field.remove_metadata() for field in fields if field.name not in texts])
    writer = DataFileWriter(table.storage, f"{partition_path(texts)}{uuid.uuid4()}.parquet", schema)
    written = 0
    try:
        for rows in _groups(table, schema, [file["path"] for file in files]):
            writer.write(rows, LAYOUT.rows)
            written += rows.num_rows
        counts = [file.get("num_records") for file in files]
        stated = sum(count for count in counts if count is not None)
        if None not in counts and stated != written:
            raise FatalError(
                f"the table at {scrub_address(table.uri)}: its log states {stated} rows for {len(files)} files that "
                f"hold {written}; nothing was changed. Check the table with the tool that wrote it last"
            )
    except BaseException:
        writer.discard()
        raise
    return writer.finish()


def _groups(table: OutputTable, schema: pa.Schema, paths: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the rows of files in row groups. A column that a file does not have, because it was added later, is
    null."""
    parquet = ds.ParquetFileFormat()
    filesystem = table.storage.filesystem
    fragments = [parquet.make_fragment(path, filesystem) for path in paths]
    waiting = schema.empty_table()
    for batch in ds.FileSystemDataset(fragments, schema, parquet, filesystem).to_batches():
        waiting = pa.concat_tables([waiting, pa.table(batch).cast(schema)])
        while waiting.num_rows >= LAYOUT.rows:
            yield waiting.slice(0, LAYOUT.rows)
            waiting = waiting.slice(LAYOUT.rows)
    if waiting.num_rows:
        yield waiting


def _vacuum(table: OutputTable, retention: timedelta) -> int:
    """Removes files that no version within the retention names. Returns how many.

    A user may have set a longer retention as a property of the table. No lock is needed: a publish commits its files
    right after it has written them, and these are much younger than the retention.
    """
    version = table.opened()
    hours = math.ceil(table.file_retention(version, retention) / timedelta(hours=1))
    unused = version.vacuum(hours, dry_run=True, full=True)  # without dry_run it adds two commits, unsynced
    return remove_files(table.storage, unused)
