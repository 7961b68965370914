"""Compacts one table of the ledger or of an output: merges small files, removes unused ones, checkpoints its log.

No row and no transaction id changes. A new file is written and synced outside the lock, and no log entry names it until
the commit, which is made upon a version that still has all the files that it replaces. Its log entry has `dataChange`
false, so a stream that reads the table does not get the rows again. The files are listed once for all partitions, and
again only after another process has committed.
"""

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.append import retry_beside_rivals
from ackline.delta.errors import cause_of, is_outage, is_storage_error, storage_errors, unusable
from ackline.delta.files import SCAN_OPTIONS, DataFile, DataFileWriter, partition_path, partition_text
from ackline.delta.folder import Folder
from ackline.delta.reads import is_removable
from ackline.delta.table import FencedTable
from ackline.errors import FatalError
from ackline.scrub import scrub_address
from ackline.stored import DamagedError

COMPACTION_TRIES = 3
"""How many times maintenance tries a compaction while other processes commit. The next maintenance tries again."""
_NO_VERSION = -1
_NAMED_FILES = 3
READ_OPTIONS = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
"""Times in Parquet's INT96, which Spark writes on request, are read in microseconds, the unit of Delta. In Arrow's own
choice, nanoseconds, a time before 1677 or after 2262 would become another one."""

Table = TypeVar("Table", bound=FencedTable)
File = dict[str, Any]
"""A file of a version, as delta-rs lists it with its statistics. Its path is the one on the disk."""
Values = tuple[Any, ...]
"""The values of the partition columns of a file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of the files that compaction writes."""

    size: int
    """Bytes of a compacted file, roughly. Larger files stay as they are."""
    rows: int
    """Rows of a row group, at most."""


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
    """How many files were merged into larger ones."""
    busy: int
    """Days, or partitions of an output table, that stay fragmented until the next maintenance, because another process
    replaced their files at the same time."""
    removed: int
    version: int


class ReplacedError(Exception):
    """Another process has replaced files of a compaction, or changed the protocol of the table. Nothing was stored."""


class DamagedFilesError(Exception):
    """Files of a compaction can't be read, or hold another number of rows than the log states. Nothing was stored.
    `causes` holds what is wrong with each, by path."""

    def __init__(self, causes: dict[str, str]) -> None:
        super().__init__(", ".join(causes))
        self.causes = causes


class Compactor(ABC, Generic[Table]):
    """Compacts, vacuums and checkpoints one table. A subclass gives `commit`, and may override `may_rewrite`,
    `prepare`, `chooser` and `keep_unused_for`."""

    def __init__(self, table: Table, layout: Layout, retention: timedelta) -> None:
        self.table, self.layout, self.retention = table, layout, retention
        self._listed = (_NO_VERSION, set[str]())
        """A version, and the paths of its files."""
        self._damaged: dict[str, str] = {}
        """Files that can't be merged, by path, each with what is wrong."""

    def may_rewrite(self, version: DeltaTable) -> bool:
        """Returns whether Ackline may rewrite the files of a version."""
        return True

    def prepare(self) -> None:
        """Runs once before the compaction. This one does nothing."""

    def chooser(self) -> Callable[[File], bool]:
        """Returns a function that is True for a file that may be merged. The caller has opened the version before."""
        return lambda _: True

    @abstractmethod
    def commit(self, upon: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commits the replacement of files. Raises CommitFailedError if a rival may have replaced some of them since
        the version `upon`."""

    def keep_unused_for(self, version: DeltaTable) -> timedelta:
        """Returns how long a file stays after the newest version stopped naming it."""
        return self.retention

    def maintain(self, pipeline: str, lane: str, name: str) -> Maintained | None:
        """Compacts, vacuums and checkpoints the table. Returns what it did.

        Returns None and changes nothing if the table does not exist, or if Ackline may not rewrite it. Raises
        FatalError or TransientError if the table can't be read or written. A damaged file stays as it is: the others
        are merged, unused files removed and the log checkpointed, before the FatalError that names it.
        """
        with self.table.errors():
            version = self.table.open()
            if version is None or not self.may_rewrite(version):
                return None
            before = len(version.file_uris())
            self.prepare()
            compacted, busy = self._compact()
            removed = self._vacuum()
            self.table.checkpoint()
            if self._damaged:
                raise self._damage()
            after = self.table.opened()
            files = len(after.file_uris())
            return Maintained(pipeline, lane, name, before, files, compacted, busy, removed, after.version())

    def _damage(self) -> FatalError:
        named = [f"{path} ({cause})" for path, cause in sorted(self._damaged.items())[:_NAMED_FILES]]
        more = f", and {len(self._damaged) - _NAMED_FILES} more" if len(self._damaged) > _NAMED_FILES else ""
        return FatalError(
            f"the table {self.table.name} at {scrub_address(self.table.uri)} has damaged files, which were left as "
            f"they are: {', '.join(named)}{more}. The rest of the table was maintained. Restore these files from a "
            f"backup, then run `ackline maintain` again"
        )

    def _compact(self) -> tuple[int, int]:
        """Merges the small files of each partition. Returns how many files it merged, and how many partitions stay as
        they are because another process was faster at each of COMPACTION_TRIES tries."""
        merged, wanted = 0, set[Values]()
        for number in range(COMPACTION_TRIES):
            version = self.table.opened()
            if not self.may_rewrite(version):
                break
            # Chosen after the version: a file of it can't be of a turn that opens later.
            chosen = filter(self.chooser(), self._small_files(version))
            lost = set[Values]()
            for values, files in fragmented(chosen, version.metadata().partition_columns).items():
                if number and values not in wanted:
                    continue
                try:
                    for together in joined(files, self.layout.size):
                        merged += self._merge_whole(values, together)
                except (CommitFailedError, ReplacedError):
                    lost.add(values)
            wanted = lost
            if not wanted:
                break
        return merged, len(wanted)

    def _small_files(self, version: DeltaTable) -> list[File]:
        """Returns the files below the size of a compacted one that can be removed, with their statistics, oldest
        first."""
        files = pa.table(version.get_add_actions(flatten=True)).to_pylist()
        self._listed = version.version(), {unquote(file["path"]) for file in files}
        files = [{**file, "path": unquote(file["path"])} for file in files if is_removable(file["path"])]
        small = [file for file in files if file["size_bytes"] < self.layout.size and file["path"] not in self._damaged]
        return sorted(small, key=lambda file: (file["modification_time"], file["path"]))

    def _paths(self, version: DeltaTable) -> set[str]:
        """Returns the paths of the files of a version. It lists them only if another process has committed since."""
        if self._listed[0] != version.version():
            paths = pa.table(version.get_add_actions(flatten=True))["path"].to_pylist()
            self._listed = version.version(), {unquote(path) for path in paths}
        return self._listed[1]

    def _merge_whole(self, values: Values, files: Sequence[File]) -> int:
        """Merges the files that are not damaged, if there are at least two. Returns how many it merged."""
        whole = list(files)
        while len(whole) > 1:
            try:
                return self._merge(values, whole)
            except DamagedFilesError as error:
                self._damaged.update(error.causes)
                whole = [file for file in whole if file["path"] not in self._damaged]
        return 0

    def _merge(self, values: Values, files: Sequence[File]) -> int:
        """Replaces files by one that holds their rows. Returns how many it replaced. Raises ReplacedError or
        CommitFailedError if another process was faster, and DamagedFilesError if a file is damaged; then the new file
        does not stay."""
        version = self.table.opened()
        columns = version.metadata().partition_columns
        texts = {name: partition_text(value) for name, value in zip(columns, values, strict=True)}
        merged = self._rewrite(version, texts, files)
        paths = {file["path"] for file in files}

        def commit() -> None:
            with self.table.lock():
                newest = self.table.opened()
                there = self._paths(newest)
                if merged.path in there:  # a commit that was stored, and whose answer got lost
                    return
                if not paths <= there or not self.may_rewrite(newest):
                    raise ReplacedError
                now = int(time.time() * 1000)
                added = AddAction(merged.path, merged.size, texts, merged.modification_time, False, merged.stats)
                removed = [RemoveAction(file["path"], False, now, file["size_bytes"], texts) for file in files]
                self.commit(newest, [added, *removed])
                # If delta-rs has made the commit upon a later version, its number is higher: `_paths` lists it anew.
                self._listed = newest.version() + 1, (there - paths) | {merged.path}

        try:
            retry_beside_rivals(commit)
        except (CommitFailedError, ReplacedError):
            # Not if the commit may have been stored: then this file is the only one that holds the rows.
            if merged.path in self._paths(self.table.opened()):
                return len(files)
            self.table.storage.filesystem.delete_file(merged.path)
            raise
        return len(files)

    def _rewrite(self, version: DeltaTable, texts: dict[str, str | None], files: Sequence[File]) -> DataFile:
        """Writes the rows of files to one new file, a row group at a time. If that fails, the new file does not stay.
        Raises DamagedFilesError if a file can't be read, or does not have as many rows as the log states."""
        fields = pa.schema(version.schema().to_arrow())
        schema = pa.schema([field.remove_metadata() for field in fields if field.name not in texts])
        path = f"{partition_path(texts)}compacted-{uuid.uuid4()}.parquet"
        writer = DataFileWriter(self.table.storage, path, schema)
        written = 0
        try:
            for rows in self._groups(schema, files):
                writer.write(rows, self.layout.rows)
                written += rows.num_rows
            counts: list[int | None] = [file.get("num_records") for file in files]
            stated = sum(count for count in counts if count is not None)
            if None not in counts and stated != written:
                self._raise_damaged(schema, files)
                raise FatalError(  # reading each file alone found nothing, so another process changes them
                    f"the table {self.table.name} at {scrub_address(self.table.uri)}: its log states {stated} "
                    f"rows for {len(files)} files that hold {written}; nothing was changed. Run `ackline maintain` "
                    f"again"
                )
        except BaseException as error:
            writer.discard()
            if is_storage_error(error) and not is_outage(error):
                self._raise_damaged(schema, files)
            raise
        return writer.finish()

    def _raise_damaged(self, schema: pa.Schema, files: Sequence[File]) -> None:
        """Reads each file alone, and raises DamagedFilesError if at least one is damaged."""
        causes = {}
        for file in files:
            try:
                with storage_errors(self.table.uri, self._unreadable):
                    rows, stated = sum(rows.num_rows for rows in self._groups(schema, [file])), file.get("num_records")
                if stated is not None and rows != stated:
                    raise DamagedError(f"it holds {rows} rows, and the log states {stated}")
            except DamagedError as damage:
                causes[file["path"]] = str(damage)
        if causes:
            raise DamagedFilesError(causes)

    def _unreadable(self, error: BaseException) -> Exception:
        """Returns the error for a file that can't be read: DamagedError, or TransientError if the object store does not
        answer."""
        if is_outage(error):
            return unusable(f"the table {self.table.name}", error, self.table.uri)
        return DamagedError(cause_of(error, self.table.uri))

    def _groups(self, schema: pa.Schema, files: Sequence[File]) -> Iterator[pa.Table]:
        """Yields the rows of files in row groups. A column that was added after a file was written is null in its
        rows."""
        parquet, filesystem = ds.ParquetFileFormat(READ_OPTIONS, SCAN_OPTIONS), self.table.storage.filesystem
        fragments = [parquet.make_fragment(file["path"], filesystem) for file in files]
        size, waiting = self.layout.rows, schema.empty_table()
        for batch in ds.FileSystemDataset(fragments, schema, parquet, filesystem).to_batches():
            waiting = pa.concat_tables([waiting, pa.table(batch).cast(schema)])
            while waiting.num_rows >= size:
                yield waiting.slice(0, size)
                waiting = waiting.slice(size)
        if waiting.num_rows:
            yield waiting

    def _vacuum(self) -> int:
        """Removes files that no version within the retention names. Returns how many. No lock is needed: a commit names
        a file right after it was written, or while its turn is open."""
        version = self.table.opened()
        hours = math.ceil(self.keep_unused_for(version) / timedelta(hours=1))
        unused = version.vacuum(hours, dry_run=True, full=True)  # without dry_run it adds two commits, unsynced
        return remove_files(self.table.storage, unused)


def fragmented(files: Iterable[File], partition_columns: Sequence[str]) -> dict[Values, list[File]]:
    """Returns the partitions that have at least two of these files, each with its files."""
    by_values: dict[Values, list[File]] = {}
    for file in files:
        by_values.setdefault(tuple(file[f"partition.{name}"] for name in partition_columns), []).append(file)
    return {values: of_partition for values, of_partition in by_values.items() if len(of_partition) > 1}


def joined(files: Iterable[File], size: int) -> Iterator[list[File]]:
    """Yields groups of at least two files that have about `size` bytes together. Each becomes one compacted file."""
    together: list[File] = []
    total = 0
    for file in files:
        if together and total + file["size_bytes"] > size:
            if len(together) > 1:
                yield together
            together, total = [], 0
        together.append(file)
        total += file["size_bytes"]
    if len(together) > 1:
        yield together


def remove_files(storage: Folder, paths: Sequence[str]) -> int:
    """Removes files of a table. Returns how many it removed. Paths that are no files are left out: in an object store
    Arrow leaves an empty object for the folder of a file that it removed, and delta-rs lists it as an unused file once
    it is old."""
    infos = storage.filesystem.get_file_info(list(paths))
    files = [info.path for info in infos if info.type is pafs.FileType.File]
    for path in files:
        storage.filesystem.delete_file(path)
    return len(files)
