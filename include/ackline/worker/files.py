"""Writes outcomes to Parquet files, column by column, and reports each file to the driver as a `WrittenFile`."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.tables.files import DataFileWriter
from ackline.tables.folder import Folder
from ackline.tables.schemas import OUTCOME_COLUMNS, PARTITION_BY
from ackline.worker.records import TIMESTAMP, Int64s, timestamp_column


@dataclass(slots=True)
class WrittenFile:
    """A file of outcomes, with what an `AddAction` of the Delta log needs.

    `path` is relative to the table's root. `modification_time` is in milliseconds since 1970. `stats` is Delta's JSON.
    """

    path: str
    size: int
    rows: int
    outcome: Outcome
    stats: str
    modification_time: int


FILE_COLUMNS = pa.schema(
    [
        (column.name, column.type)
        for column in OUTCOME_COLUMNS
        if column.in_every_file and column.name not in PARTITION_BY
    ]
)
"""The table's columns, without the plan's date: its value is in the path. A file of records whose keys are hashed has
the column `key_hash`, too, a file of records in flight the column `due`, and a file of a pipeline with steps the column
`tree`; readers take them for null in the other files."""

# The writer writes a dictionary as it is. Given plain strings, it would first have to find that all are equal.
_CONSTANT = ("pipeline", "lane", "run_id", "topic", "outcome")
_WRITTEN = pa.schema(
    [(f.name, pa.dictionary(pa.int32(), pa.string()) if f.name in _CONSTANT else f.type) for f in FILE_COLUMNS]
)

_HASHES, _DUES = pa.field("key_hash", pa.string()), pa.field("due", TIMESTAMP)
_TREES = pa.field("tree", pa.dictionary(pa.int32(), pa.string()))

_FLUSH_ROWS = 250_000
_ERROR_WEIGHT = 12
"""A row with a message of up to 200 characters takes about as much memory as this many rows without one."""
_OWN_FILE_ROWS = 10_000
"""With at least this many rows, an outcome of a topic-partition has a file of its own."""

Group = tuple[TopicPartition, Outcome]


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
    """Rows of one topic-partition with the same outcome, as columns. Times are in microseconds since 1970. `classes`
    and `messages` are the error columns, None if no row has an error."""

    offsets: Int64s
    timestamps: Int64s
    attempts: npt.NDArray[np.int32]
    handled_at: Int64s
    classes: Sequence[str | None] | None = None
    messages: Sequence[str | None] | None = None
    key_hashes: pa.Array | None = None
    """The hashes of the records' keys; None if the pipeline stores none."""
    dues: Sequence[int | None] | None = None
    """The deadlines of records in flight; None of other outcomes."""
    trees: pa.DictionaryArray | None = None
    """What became of the records' tuples; None if no step got one."""


class OutcomeFiles:
    """All files of one Spark task. At the end call `close`, which makes them durable, or `discard`.

    `counts` holds how many rows were added of each outcome of each topic-partition.
    """

    def __init__(self, target: OutcomeTarget, key_hashes: bool = False, trees: bool = False) -> None:
        self._target = target
        schema = _WRITTEN.append(_HASHES) if key_hashes else _WRITTEN
        self._schema = schema.append(_TREES) if trees else schema
        self._storage = Folder(target.root)
        self._waiting: dict[Group, _Waiting] = {}
        self._own: dict[Group, _OutcomeFile] = {}
        self._shared: dict[Outcome, _OutcomeFile] = {}
        self._weight = 0
        self.counts: Counter[Group] = Counter()

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        """Adds rows of one topic-partition with the same outcome, in the order of their offsets."""
        if not len(chunk.offsets):
            return
        group = tp, outcome
        self.counts[group] += len(chunk.offsets)
        waiting = self._waiting.setdefault(group, _Waiting())
        self._weight += waiting.add(chunk)
        if waiting.weight >= _FLUSH_ROWS:
            self._write_own(group)
        elif self._weight >= 2 * _FLUSH_ROWS:  # many groups, each of them small
            self._write_all()

    def close(self) -> list[WrittenFile]:
        """Finishes all files. On a local disk they are durable when this returns."""
        self._write_all()
        return [file.close() for file in [*self._own.values(), *self._shared.values()]]

    def discard(self) -> None:
        """Removes the files as far as possible. One that stays does no harm, because no commit names it."""
        for file in [*self._own.values(), *self._shared.values()]:
            file.discard()

    def _write_own(self, group: Group) -> None:
        tp, outcome = group
        if group not in self._own:
            self._own[group] = self._new_file(outcome)
        self._own[group].write([(tp, self._take(group))])

    def _write_all(self) -> None:
        """Writes what waits: large groups to files of their own, and the others of each outcome to a shared one."""
        for group, waiting in list(self._waiting.items()):
            if group in self._own or waiting.rows >= _OWN_FILE_ROWS:
                self._write_own(group)
        for outcome in dict.fromkeys(outcome for _, outcome in self._waiting):
            small = sorted(tp for tp, other in self._waiting if other is outcome)
            if outcome not in self._shared:
                self._shared[outcome] = self._new_file(outcome)
            self._shared[outcome].write([(tp, self._take((tp, outcome))) for tp in small])

    def _new_file(self, outcome: Outcome) -> "_OutcomeFile":
        return _OutcomeFile(self._target, self._storage, outcome, self._schema)

    def _take(self, group: Group) -> "_Columns":
        waiting = self._waiting.pop(group)
        self._weight -= waiting.weight
        return _Columns.of(waiting.chunks)


class OutcomeCounter(OutcomeFiles):
    """Counts outcomes and writes no file, for a pipeline with `record_outcomes: false`."""

    def add(self, tp: TopicPartition, outcome: Outcome, chunk: Chunk) -> None:
        """Counts the rows of `chunk`."""
        if len(chunk.offsets):
            self.counts[tp, outcome] += len(chunk.offsets)


@dataclass(slots=True)
class _Waiting:
    """Rows of one outcome of one topic-partition that are not written yet."""

    chunks: list[Chunk] = field(default_factory=list)
    rows: int = 0
    weight: int = 0

    def add(self, chunk: Chunk) -> int:
        """Keeps a chunk, and returns its weight."""
        weight = len(chunk.offsets) * (1 if chunk.messages is None else _ERROR_WEIGHT)
        self.chunks.append(chunk)
        self.rows += len(chunk.offsets)
        self.weight += weight
        return weight


class _OutcomeFile:
    """A file of one outcome."""

    def __init__(self, target: OutcomeTarget, storage: Folder, outcome: Outcome, schema: pa.Schema) -> None:
        name = f"{quote(target.turn.lane, safe='')}-{target.turn.epoch}-{target.turn.n}-{uuid.uuid4()}.parquet"
        self._target = target
        self._outcome = outcome
        self._schema = schema = schema.append(_DUES) if outcome is Outcome.IN_FLIGHT else schema
        self._rows = 0
        self._writer = DataFileWriter(storage, f"{target.folder}/{name}", schema)

    def write(self, parts: Sequence[tuple[TopicPartition, "_Columns"]]) -> None:
        """Writes the rows of some topic-partitions as one row group."""
        rows = pa.Table.from_batches([self._batch(tp, columns) for tp, columns in parts])
        self._rows += rows.num_rows
        self._writer.write(rows.unify_dictionaries(), row_group_size=rows.num_rows)

    def close(self) -> WrittenFile:
        """Finishes the file. On a local disk it is durable when this returns."""
        file = self._writer.finish()
        return WrittenFile(file.path, file.size, self._rows, self._outcome, file.stats, file.modification_time)

    def discard(self) -> None:
        """Removes the file as far as possible."""
        self._writer.discard()

    def _batch(self, tp: TopicPartition, columns: "_Columns") -> pa.RecordBatch:
        turn, count = self._target.turn, len(columns.offsets)
        same = np.zeros(count, dtype=np.int32)
        arrays = [
            _constant(turn.pipeline, same),
            _constant(turn.lane, same),
            pa.repeat(pa.scalar(turn.epoch, pa.int32()), count),
            pa.repeat(pa.scalar(turn.n, pa.int64()), count),
            _constant(self._target.run_id, same),
            _constant(tp.topic, same),
            pa.repeat(pa.scalar(tp.partition, pa.int32()), count),
            pa.array(columns.offsets),
            pa.nulls(count, pa.int64()),
            pa.array(columns.attempts),
            _constant(self._outcome.value, same),
            columns.classes,
            columns.messages,
            timestamp_column(columns.timestamps),
            pa.array(columns.handled_at).cast(TIMESTAMP),
        ]
        if _HASHES.name in self._schema.names:
            arrays.append(pa.nulls(count, pa.string()) if columns.key_hashes is None else columns.key_hashes)
        if _TREES.name in self._schema.names:
            arrays.append(columns.trees)
        if _DUES.name in self._schema.names:
            arrays.append(columns.dues)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Several chunks joined."""

    offsets: Int64s
    timestamps: Int64s
    attempts: npt.NDArray[np.int32]
    handled_at: Int64s
    classes: pa.Array
    messages: pa.Array
    key_hashes: pa.Array | None
    dues: pa.Array
    trees: pa.Array

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "_Columns":
        return cls(
            np.concatenate([chunk.offsets for chunk in chunks]),
            np.concatenate([chunk.timestamps for chunk in chunks]),
            np.concatenate([chunk.attempts for chunk in chunks]),
            np.concatenate([chunk.handled_at for chunk in chunks]),
            _texts([(chunk.classes, len(chunk.offsets)) for chunk in chunks]),
            _texts([(chunk.messages, len(chunk.offsets)) for chunk in chunks]),
            _hashes(chunks),
            pa.array([due for chunk in chunks for due in chunk.dues or ()], pa.int64()).cast(TIMESTAMP),
            _stories(chunks),
        )


def _texts(columns: Sequence[tuple[Sequence[str | None] | None, int]]) -> pa.Array:
    return pa.concat_arrays(
        [pa.nulls(count, pa.string()) if texts is None else pa.array(texts, pa.string()) for texts, count in columns]
    )


def _stories(chunks: Sequence[Chunk]) -> pa.Array:
    return pa.concat_arrays([pa.nulls(len(c.offsets), _TREES.type) if c.trees is None else c.trees for c in chunks])


def _hashes(chunks: Sequence[Chunk]) -> pa.Array | None:
    if all(chunk.key_hashes is None for chunk in chunks):
        return None
    return pa.concat_arrays(
        [pa.nulls(len(c.offsets), pa.string()) if c.key_hashes is None else c.key_hashes for c in chunks]
    )


def _constant(text: str, same: npt.NDArray[np.int32]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(same), pa.array([text], pa.string()))
