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

from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.tables.schemas import OUTCOME_COLUMNS, PARTITION_BY
from ackline.worker.records import TIMESTAMP, Int64s, timestamp_column


@dataclass(slots=True)
class WrittenFile:
    """A file of outcomes, with what an `AddAction` of the Delta log needs. `path` is relative to the table's root.
    `modification_time` is in milliseconds since 1970. `stats` is Delta's JSON."""

    path: str
    size: int
    rows: int
    outcome: Outcome
    stats: str
    modification_time: int


# The writer writes a dictionary as it is. Given plain strings, it would first have to find that all are equal.
_PLAIN_TEXT, _TEXT = pa.string(), pa.dictionary(pa.int32(), pa.string())
_DICTIONARIES = ("pipeline", "lane", "run_id", "topic", "outcome", "tree", "error_place")
_FIELDS = {
    column.name: pa.field(column.name, _TEXT if column.name in _DICTIONARIES else column.type)
    for column in OUTCOME_COLUMNS
}
_WRITTEN = pa.schema(
    [_FIELDS[column.name] for column in OUTCOME_COLUMNS if column.in_every_file and column.name not in PARTITION_BY]
)
"""The table's columns, without the plan's date: its value is in the path. A file of records whose keys are hashed has
the column `key_hash64`, too, a file of records in flight `due`, a file of failures `error_place`, and a
file of a pipeline with steps the column `tree`; readers take them for null in the other files."""

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
    """Rows of one topic-partition with the same outcome, as columns. Times are in microseconds since 1970. `classes`,
    `messages` and `places` are the error columns, None if no row has an error."""

    offsets: Int64s
    timestamps: Int64s
    attempts: npt.NDArray[np.int32]
    handled_at: Int64s
    classes: Sequence[str | None] | None = None
    messages: Sequence[str | None] | None = None
    places: Sequence[str | None] | None = None
    key_hashes: pa.Array | None = None
    """The hashes of the records' keys; None if the pipeline stores none."""
    dues: Sequence[int | None] | None = None
    """The deadlines of records in flight; None of other outcomes."""
    trees: pa.DictionaryArray | None = None
    """What became of the records' tuples; None if no step got one."""

    def take(self, rows: Int64s) -> "Chunk":
        """Returns the rows with these numbers, none of which has an error or a deadline."""
        numbers = pa.array(rows)
        hashes, trees = (each if each is None else each.take(numbers) for each in (self.key_hashes, self.trees))
        offsets, timestamps, attempts = self.offsets[rows], self.timestamps[rows], self.attempts[rows]
        return Chunk(offsets, timestamps, attempts, self.handled_at[rows], key_hashes=hashes, trees=trees)


class OutcomeFiles:
    """All files of one Spark task. At the end call `close`, which makes them durable, or `discard`. `counts` holds how
    many rows were added of each outcome of each topic-partition."""

    def __init__(self, target: OutcomeTarget, key_hashes: bool = False, trees: bool = False) -> None:
        self._target = target
        schema = _WRITTEN.append(_FIELDS["key_hash64"]) if key_hashes else _WRITTEN
        self._schema = schema.append(_FIELDS["tree"]) if trees else schema
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
            file.writer.discard()

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

    def _take(self, group: Group) -> list[Chunk]:
        waiting = self._waiting.pop(group)
        self._weight -= waiting.weight
        return waiting.chunks


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
    def __init__(self, target: OutcomeTarget, storage: Folder, outcome: Outcome, schema: pa.Schema) -> None:
        name = f"{quote(target.turn.lane, safe='')}-{target.turn.epoch}-{target.turn.n}-{uuid.uuid4()}.parquet"
        self._target = target
        self._outcome = outcome
        if outcome is Outcome.IN_FLIGHT:
            schema = schema.append(_FIELDS["due"])
        elif outcome in (Outcome.FAILED, Outcome.DROPPED):
            schema = schema.append(_FIELDS["error_place"])
        self._schema = schema
        self._rows = 0
        self.writer = DataFileWriter(storage, f"{target.folder}/{name}", schema)

    def write(self, parts: Sequence[tuple[TopicPartition, Sequence[Chunk]]]) -> None:
        """Writes the rows of some topic-partitions as one row group."""
        rows = pa.Table.from_batches([self._batch(tp, chunks) for tp, chunks in parts])
        self._rows += rows.num_rows
        self.writer.write(rows.unify_dictionaries(), row_group_size=rows.num_rows)

    def close(self) -> WrittenFile:
        """Finishes the file. On a local disk it is durable when this returns."""
        file = self.writer.finish()
        return WrittenFile(file.path, file.size, self._rows, self._outcome, file.stats, file.modification_time)

    def _batch(self, tp: TopicPartition, chunks: Sequence[Chunk]) -> pa.RecordBatch:
        turn, count = self._target.turn, sum(len(chunk.offsets) for chunk in chunks)
        same = np.zeros(count, dtype=np.int32)
        arrays = {
            "pipeline": _constant(turn.pipeline, same),
            "lane": _constant(turn.lane, same),
            "epoch": pa.repeat(pa.scalar(turn.epoch, pa.int32()), count),
            "turn": pa.repeat(pa.scalar(turn.n, pa.int64()), count),
            "run_id": _constant(self._target.run_id, same),
            "topic": _constant(tp.topic, same),
            "partition": pa.repeat(pa.scalar(tp.partition, pa.int32()), count),
            "offset": pa.array(np.concatenate([chunk.offsets for chunk in chunks])),
            "end_offset": pa.nulls(count, pa.int64()),
            "attempt": pa.array(np.concatenate([chunk.attempts for chunk in chunks])),
            "outcome": _constant(self._outcome.value, same),
            "error_class": _column(chunks, "classes", _PLAIN_TEXT),
            "error_message": _column(chunks, "messages", _PLAIN_TEXT),
            "error_place": _column(chunks, "places", _TEXT),
            "record_timestamp": timestamp_column(np.concatenate([chunk.timestamps for chunk in chunks])),
            "handled_at": pa.array(np.concatenate([chunk.handled_at for chunk in chunks])).cast(TIMESTAMP),
            "key_hash64": _column(chunks, "key_hashes", pa.int64()),
            "tree": _column(chunks, "trees", _TEXT),
            "due": pa.array([due for chunk in chunks for due in chunk.dues or ()], pa.int64()).cast(TIMESTAMP),
        }
        return pa.RecordBatch.from_arrays([arrays[name] for name in self._schema.names], schema=self._schema)


def _column(chunks: Sequence[Chunk], name: str, kind: pa.DataType) -> pa.Array:
    """Returns a column of all chunks, null for a chunk that does not have it."""
    columns = [(getattr(chunk, name), len(chunk.offsets)) for chunk in chunks]
    return pa.concat_arrays(
        [pa.nulls(count, kind) if values is None else pa.array(values, kind) for values, count in columns]
    )


def _constant(text: str, same: npt.NDArray[np.int32]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(same), pa.array([text], pa.string()))
