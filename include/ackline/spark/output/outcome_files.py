"""Writes outcomes to Parquet files, column by column.

A file holds one outcome of one topic-partition. So settle counts acked records by the statistics in the Delta log, and
opens only the files of the other outcomes.

A file belongs to the audit table once a commit names it. No commit names the files of a failed Spark task, nor the
second files of a task that ran twice.

Spark's own writer works row by row; it would take longer than reading the records.
"""

import contextlib
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.output.file_stats import FileStats, WrittenFile
from ackline.spark.records import TIMESTAMP, Int64s, timestamp_column
from ackline.turns import TurnId

FILE_COLUMNS = pa.schema(
    [
        ("pipeline", pa.string()),
        ("lane", pa.string()),
        ("epoch", pa.int32()),
        ("turn", pa.int64()),
        ("run_id", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("attempt", pa.int32()),
        ("outcome", pa.string()),
        ("error_class", pa.string()),
        ("error_message", pa.string()),
        ("record_timestamp", TIMESTAMP),
        ("handled_at", TIMESTAMP),
    ]
)
"""The table's columns, without the plan's date: its value is in the path."""

# The writer writes a dictionary as it is. Given plain strings, it would first have to find that all are equal.
_CONSTANT = ("pipeline", "lane", "run_id", "topic", "outcome")
_WRITTEN = pa.schema(
    [(f.name, pa.dictionary(pa.int32(), pa.string()) if f.name in _CONSTANT else f.type) for f in FILE_COLUMNS]
)

_FLUSH_ROWS = 250_000
_FLUSH_ERRORS = 20_000  # with messages of up to 200 characters


@dataclass(frozen=True, slots=True)
class OutcomeTarget:
    """Where the outcomes of a turn are written, and what all of them have in common. `root` is the table's path, or its
    URI in an object store."""

    root: str
    turn: TurnId
    plan_date: date
    run_id: str

    @property
    def folder(self) -> str:
        """The folder of the table partition, relative to the table's root."""
        return f"plan_date={self.plan_date.isoformat()}"


@dataclass(slots=True)
class Chunk:
    """Rows of one file as columns; times are in microseconds since 1970. `classes` and `messages` are the error
    columns, None if no row has an error."""

    offsets: Int64s
    timestamps: Int64s
    attempts: npt.NDArray[np.int32]
    handled_at: Int64s
    classes: Sequence[str | None] | None = None
    messages: Sequence[str | None] | None = None


class OutcomeFiles:
    """All files of one Spark task. At the end call `close`, which makes them durable, or `discard`."""

    def __init__(self, target: OutcomeTarget) -> None:
        self._target = target
        self._files: dict[tuple[TopicPartition, Outcome], _OutcomeFile] = {}

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        """Adds rows of one topic-partition with the same outcome, in the order of their offsets."""
        if not len(chunk.offsets):
            return
        file = self._files.get((tp, outcome))
        if file is None:
            file = self._files[tp, outcome] = _OutcomeFile(self._target, tp, outcome)
        file.add(chunk)

    def close(self) -> list[WrittenFile]:
        """Finishes all files. On a local disk they are durable when this returns."""
        return [file.close() for file in self._files.values()]

    def discard(self) -> None:
        """Removes the files as far as possible. What stays does no harm, because nothing refers to it."""
        for file in self._files.values():
            file.discard()


class OutcomeCounter(OutcomeFiles):
    """Counts outcomes and writes no file, for a pipeline with `record_outcomes: false`."""

    def __init__(self, target: OutcomeTarget) -> None:
        super().__init__(target)
        self._counts: Counter[tuple[TopicPartition, Outcome]] = Counter()

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        """Counts the rows of `chunk`."""
        self._counts[tp, outcome] += len(chunk.offsets)

    def close(self) -> list[WrittenFile]:
        """Returns the counts as files without a path."""
        return [WrittenFile("", 0, rows, *tp, outcome, "", 0) for (tp, outcome), rows in self._counts.items() if rows]


@dataclass(slots=True)
class _OutcomeFile:
    target: OutcomeTarget
    tp: TopicPartition
    outcome: Outcome
    stats: FileStats = field(init=False)
    path: str = field(init=False)
    _pending: list[Chunk] = field(default_factory=list)
    _pending_rows: int = 0
    _writer: Any = None
    _stored: "_StoredFile" = field(init=False)

    def __post_init__(self) -> None:
        turn = self.target.turn
        name = f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}-{uuid.uuid4()}.parquet"
        self.path = f"{self.target.folder}/{name}"
        self._stored = _StoredFile(self.target.root, self.path)
        self.stats = FileStats(self.tp, self.outcome, turn)

    def add(self, chunk: Chunk) -> None:
        self._pending.append(chunk)
        self._pending_rows += len(chunk.offsets)
        if self._pending_rows >= (_FLUSH_ROWS if chunk.messages is None else _FLUSH_ERRORS):
            self._flush()

    def close(self) -> WrittenFile:
        self._flush()
        self._writer.close()
        size, modified = self._stored.finish()
        return self.stats.written_file(self.path, size, modified)

    def discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
            self._stored.remove()

    def _flush(self) -> None:
        if not self._pending:
            return
        columns = _Columns.of(self._pending)
        self._pending, self._pending_rows = [], 0
        if self._writer is None:
            self._writer = self._stored.open(_WRITTEN)
        self.stats.add(columns.offsets, columns.attempts, columns.handled_at, columns.timestamps, columns.nulls)
        self._writer.write_batch(self._batch(columns), row_group_size=len(columns.offsets))

    def _batch(self, columns: "_Columns") -> pa.RecordBatch:
        turn, tp, count = self.target.turn, self.tp, len(columns.offsets)
        same = np.zeros(count, dtype=np.int32)
        arrays = [
            _constant(turn.pipeline, same),
            _constant(turn.lane, same),
            pa.repeat(pa.scalar(turn.epoch, pa.int32()), count),
            pa.repeat(pa.scalar(turn.n, pa.int64()), count),
            _constant(self.target.run_id, same),
            _constant(tp.topic, same),
            pa.repeat(pa.scalar(tp.partition, pa.int32()), count),
            pa.array(columns.offsets),
            pa.nulls(count, pa.int64()),
            pa.array(columns.attempts),
            _constant(self.outcome.value, same),
            columns.classes,
            columns.messages,
            timestamp_column(columns.timestamps),
            pa.array(columns.handled_at).cast(TIMESTAMP),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_WRITTEN)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Several chunks joined."""

    offsets: Int64s
    timestamps: Int64s
    attempts: npt.NDArray[np.int32]
    handled_at: Int64s
    classes: pa.Array
    messages: pa.Array

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "_Columns":
        return cls(
            np.concatenate([chunk.offsets for chunk in chunks]),
            np.concatenate([chunk.timestamps for chunk in chunks]),
            np.concatenate([chunk.attempts for chunk in chunks]),
            np.concatenate([chunk.handled_at for chunk in chunks]),
            _texts([(chunk.classes, len(chunk.offsets)) for chunk in chunks]),
            _texts([(chunk.messages, len(chunk.offsets)) for chunk in chunks]),
        )

    @property
    def nulls(self) -> dict[str, int]:
        """The number of nulls in each nullable column."""
        return {
            "end_offset": len(self.offsets),
            "error_class": self.classes.null_count,
            "error_message": self.messages.null_count,
            "record_timestamp": int((self.timestamps < 0).sum()),
        }


def _texts(columns: Sequence[tuple[Sequence[str | None] | None, int]]) -> pa.Array:
    return pa.concat_arrays(
        [pa.nulls(count, pa.string()) if texts is None else pa.array(texts, pa.string()) for texts, count in columns]
    )


def _constant(text: str, same: npt.NDArray[np.int32]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(same), pa.array([text], pa.string()))


class _StoredFile:
    """A file below the table's root, on a local disk or in an object store."""

    def __init__(self, root: str, path: str) -> None:
        self._local = "://" not in root
        if self._local:
            self._store, base = pafs.LocalFileSystem(), root
        else:
            self._store, base = pafs.FileSystem.from_uri(root)
        self._path = f"{base.rstrip('/')}/{path}"
        self._local = isinstance(self._store, pafs.LocalFileSystem)

    def open(self, schema: pa.Schema) -> Any:
        if self._local:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        return pq.ParquetWriter(
            self._path,
            schema,
            filesystem=self._store,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name not in _DELTAS],
            column_encoding=dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED"),
            store_schema=False,
            version="2.6",
        )

    def finish(self) -> tuple[int, int]:
        """Makes the file durable. Returns its size in bytes, and its modification time in milliseconds since 1970."""
        if self._local:
            _sync(self._path)
            _sync(str(Path(self._path).parent))
        info = self._store.get_file_info(self._path)
        return info.size, info.mtime_ns // 1_000_000

    def remove(self) -> None:
        self._store.delete_file(self._path)


# These are nearly consecutive numbers: a delta takes a few bits, and the writer builds no dictionary of them.
_DELTAS = ("offset", "record_timestamp")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
