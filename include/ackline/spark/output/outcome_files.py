"""Writes outcomes to Parquet files, column by column.

A file holds one outcome of one topic-partition. So settle counts acked records by the statistics in the Delta log, and
opens only the files of the other outcomes.

A file belongs to the audit table once a commit names it. No commit names the files of a failed Spark task, nor the
second files of a task that ran twice.

Spark's own writer works row by row; it would take longer than reading the records.
"""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.audit.data_files import DataFileWriter
from ackline.audit.storage import Storage
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.output.file_stats import WrittenFile
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
        self._storage = Storage(target.root)
        self._files: dict[tuple[TopicPartition, Outcome], _OutcomeFile] = {}

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        """Adds rows of one topic-partition with the same outcome, in the order of their offsets."""
        if not len(chunk.offsets):
            return
        file = self._files.get((tp, outcome))
        if file is None:
            file = self._files[tp, outcome] = _OutcomeFile(self._target, self._storage, tp, outcome)
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
    storage: Storage
    tp: TopicPartition
    outcome: Outcome
    rows: int = 0
    _pending: list[Chunk] = field(default_factory=list)
    _pending_rows: int = 0
    _writer: DataFileWriter | None = None

    def add(self, chunk: Chunk) -> None:
        self._pending.append(chunk)
        self._pending_rows += len(chunk.offsets)
        if self._pending_rows >= (_FLUSH_ROWS if chunk.messages is None else _FLUSH_ERRORS):
            self._flush()

    def close(self) -> WrittenFile:
        self._flush()
        file = self._open().finish()
        return WrittenFile(file.path, file.size, self.rows, *self.tp, self.outcome, file.stats, file.modification_time)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    def _open(self) -> DataFileWriter:
        if self._writer is None:
            turn = self.target.turn
            name = f"{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}-{uuid.uuid4()}.parquet"
            self._writer = DataFileWriter(self.storage, f"{self.target.folder}/{name}", _WRITTEN)
        return self._writer

    def _flush(self) -> None:
        if not self._pending:
            return
        columns = _Columns.of(self._pending)
        self._pending, self._pending_rows = [], 0
        self.rows += len(columns.offsets)
        self._open().write(self._batch(columns), row_group_size=len(columns.offsets))

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


def _texts(columns: Sequence[tuple[Sequence[str | None] | None, int]]) -> pa.Array:
    return pa.concat_arrays(
        [pa.nulls(count, pa.string()) if texts is None else pa.array(texts, pa.string()) for texts, count in columns]
    )


def _constant(text: str, same: npt.NDArray[np.int32]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(same), pa.array([text], pa.string()))
