"""Writes the data files of a table: the ledger's own rows, the outcomes of Spark's tasks, and compacted files.

delta-rs writes its data files without syncing them, so a power cut could leave a log entry without its data. Ackline
therefore writes and syncs each data file itself, and only then has a log entry name it.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial, reduce
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ackline.delta.errors import IgnoredStorageErrors, cause_of, is_outage, storage_errors
from ackline.delta.folder import Folder
from ackline.stored import DamagedError

SCAN_OPTIONS, UNBUFFERED = (
    ds.ParquetFragmentScanOptions(pre_buffer=buffered, page_checksum_verification=True) for buffered in (True, False)
)
"""How Arrow reads files. It verifies the checksums of pages, so a damaged page is an error even if it can be decoded; a
page without a checksum is read as it is. UNBUFFERED holds less in memory."""
_CHUNK = 8 << 20

_DELTAS = {"offset": pa.types.is_int64, "record_timestamp": pa.types.is_timestamp}
"""Columns of nearly consecutive numbers, which are stored as differences of a few bits each, and their types. An output
table may have a column of this name and another type, for which Parquet has no such encoding."""
_FILTERED = "key_hash64"
"""A column with a Bloom filter (`ackline.delta.bloom`), of two bytes a row: its values are in no order, so bounds rule
out no file. The log has no bounds of it."""
_TEXTS_WITH_BOUNDS = ("pipeline", "lane", "topic", "_topic", "outcome", "kind", "answer")
"""Columns of text whose smallest and largest value go into the log: readers skip files by them, and `answer` shows
which files hold answers from outside. The log keeps them whole: delta-rs shortens them, and could then skip a file that
holds a long topic name."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file, with what its log entry needs. `path` is relative to the table, `modification_time` in
    milliseconds since 1970, `stats` Delta's JSON."""

    path: str
    size: int
    modification_time: int
    stats: str


class DataFileWriter:
    """Writes one Parquet file. At the end call `finish`, which makes the file durable, or `discard`."""

    def __init__(self, storage: Folder, path: str, schema: pa.Schema) -> None:
        self._storage, self._path = storage, path
        self._footers: list[pq.FileMetaData] = []
        storage.make_folder_of(path)
        self._schema = schema
        self._stream = storage.filesystem.open_output_stream(path)
        self._writer: Any = None

    def _writer_of(self, rows: pa.RecordBatch | pa.Table, row_group_size: int | None) -> Any:
        """Returns the writer. It is made for the first rows, by whose number the size of a Bloom filter is chosen."""
        if self._writer is not None:
            return self._writer
        schema, size = self._schema, min(rows.num_rows, row_group_size or rows.num_rows)
        deltas = [field.name for field in schema if field.name in _DELTAS and _DELTAS[field.name](field.type)]
        has_hashes = pa.field(_FILTERED, pa.int64()) in schema and rows[_FILTERED].null_count < rows.num_rows
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name not in deltas],
            column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
            store_schema=False,
            write_page_checksum=True,  # readers verify it: a damaged page may decode without an error
            version="2.6",
            metadata_collector=self._footers,
            bloom_filter_options={_FILTERED: {"ndv": size, "fpp": 0.01}} if has_hashes else None,
        )
        return self._writer

    def write(self, rows: pa.RecordBatch | pa.Table, row_group_size: int | None = None) -> None:
        """Adds rows, in row groups of at most `row_group_size` rows. If that fails, the file is discarded."""
        try:
            self._writer_of(rows, row_group_size).write(rows, row_group_size=row_group_size)
        except BaseException:
            self.discard()
            raise

    def finish(self) -> DataFile:
        """Closes the file, makes it and its folders durable, and returns it. Raises OSError if the storage refuses."""
        try:
            self._writer_of(self._schema.empty_table(), None).close()
            self._stream.close()
        except BaseException:
            self.discard()
            raise
        self._storage.sync(self._path)
        info = self._storage.filesystem.get_file_info(self._path)
        return DataFile(self._path, info.size, info.mtime_ns // 1_000_000, delta_stats(self._footers[0]))

    def discard(self) -> None:
        """Removes the file as far as possible. What stays does no harm, because no log entry names it."""
        if self._writer is not None:
            self._writer.is_open = False  # it has nothing more to write; on a full disk that would fail again
        with IgnoredStorageErrors():
            self._stream.close()
        with IgnoredStorageErrors():
            self._storage.filesystem.delete_file(self._path)


def row_groups(storage: Folder, path: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yields the row groups of a data file, with all columns or those that are named. Raises DamagedError if the
    content is not as its writer wrote it, FileNotFoundError if the file does not exist, and another OSError if the disk
    or the store can't be read."""
    with (
        storage_errors(storage.uri, partial(_unreadable, storage, path)),
        storage.filesystem.open_input_file(path) as stream,
        pq.ParquetFile(stream, page_checksum_verification=True) as content,
    ):
        for number in range(content.num_row_groups):
            yield content.read_row_group(number, columns)


def _unreadable(storage: Folder, path: str, error: BaseException) -> Exception:
    """Returns the error for a file that can't be read: FileNotFoundError, ConnectionError or DamagedError. Arrow raises
    a plain OSError also for a page that can't be decompressed. An error of the disk or the store proves nothing about
    the content, so the bytes are read once more: if that fails, its error is raised."""
    text = f"{path}: {cause_of(error, storage.uri)}"
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(text)
    if is_outage(error):
        return ConnectionError(text)
    with (
        storage_errors(storage.uri, lambda unread: OSError(f"{path}: {cause_of(unread, storage.uri)}")),
        storage.filesystem.open_input_stream(path) as stream,
    ):
        while stream.read(_CHUNK):
            pass
    return DamagedError(text)


def write_rows(storage: Folder, rows: pa.Table, partition_by: Sequence[str]) -> list[tuple[DataFile, dict[str, str]]]:
    """Writes rows to one durable file a table partition. Returns each file with the values of its partition."""
    written = []
    for values in rows.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist():
        chosen = _having(rows, values).drop_columns(list(partition_by))
        # In a ledger table they are texts and dates.
        partition = {name: value.isoformat() if isinstance(value, date) else value for name, value in values.items()}
        writer = DataFileWriter(storage, f"{partition_path(partition)}{uuid.uuid4()}.parquet", chosen.schema)
        writer.write(chosen)
        written.append((writer.finish(), partition))
    return written


def _having(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Returns the rows with these values. If all have them, which is usual, they are not copied: a settlement may have
    millions of pending ranges."""
    wanted = [pc.equal(rows[name], pa.scalar(value, rows[name].type)) for name, value in values.items()]
    chosen = reduce(pc.and_, wanted)
    return rows if pc.all(chosen).as_py() else rows.filter(chosen)


def delta_stats(footer: pq.FileMetaData) -> str:
    """Returns the statistics of a file for the Delta log, as JSON, from those that Parquet's writer has collected. A
    column without known bounds is left out, so readers open the file whatever value of it they look for."""
    bounds: dict[str, tuple[Any, Any]] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            name, stats = column.path_in_schema, column.statistics
            if "." in name:  # a nested column
                continue
            if stats is None or not stats.has_null_count or (stats.num_values and not stats.has_min_max):
                unknown.add(name)  # bounds of the other row groups alone would have readers skip the rows of this one
                continue
            nulls[name] = nulls.get(name, 0) + stats.null_count
            try:
                if stats.has_min_max and _has_bounds(name, stats.min):
                    low, high = bounds.get(name, (stats.min, stats.max))
                    bounds[name] = (min(low, stats.min), max(high, stats.max))
            except (OverflowError, ValueError):  # Parquet holds times beyond the calendar of Python
                unknown.add(name)
    texts: dict[str, tuple[Any, Any]] = {}
    for name, (low, high) in bounds.items():
        with contextlib.suppress(OverflowError):  # rounded up, the time is beyond the calendar
            texts[name] = (_json_value(low, 0), _json_value(high, 999))
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": {name: low for name, (low, _) in texts.items() if name not in unknown},
            "maxValues": {name: high for name, (_, high) in texts.items() if name not in unknown},
            "nullCount": {name: count for name, count in nulls.items() if name not in unknown},
        }
    )


def _has_bounds(name: str, value: object) -> bool:
    if isinstance(value, str):
        return name in _TEXTS_WITH_BOUNDS
    return isinstance(value, int | datetime) and not isinstance(value, bool) and name != _FILTERED


def _json_value(value: Any, rounding: int) -> Any:
    """Returns a bound as Delta writes it: a time in milliseconds, rounded down (0) or up (999) by `rounding` µs."""
    if isinstance(value, datetime):
        rounded = value + timedelta(microseconds=rounding)
        return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # Hive's name for null
_LONGEST_FOLDER, _LONGEST_PATH = 150, 400
"""The longest name of one folder of a partition, and of all its folders together, in bytes. A file system takes 255
bytes a name, S3 1,024 bytes a key. The limits are lower, because the log writes each `%` of a path as three bytes, and
some tools use that text as a local path."""


def partition_text(value: object) -> str | None:
    """Returns any partition value as the Delta log writes it; None for null."""
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def partition_path(values: Mapping[str, str | None]) -> str:
    """Returns the folder of a table partition, relative to the table; "" without partition columns. It has Hive's form
    `NAME=VALUE/`, or is a hash of that form where it may be too long for a file system or an object store: the log
    holds the values, and readers do not parse the path."""
    folders = [f"{name}={quote(value or _NO_VALUE, safe='')}" for name, value in values.items()]
    path = "".join(f"{folder}/" for folder in folders)
    sizes = [len(folder.encode()) for folder in folders]
    if sum(sizes) > _LONGEST_PATH or max(sizes, default=0) > _LONGEST_FOLDER:
        return f"{sha256(path.encode()).hexdigest()}/"
    return path
