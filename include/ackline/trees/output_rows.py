"""What a Spark task does with rows for outputs: it stages those for tables, and produces those for topics.

The tasks of a turn infer the columns of an output table that does not exist yet from the rows that they stage. They
share a series of files in the turn's staging folder: number 1, 2, 3 …, each with all columns of the one before it and
at least one more. A file is created exclusively and never changed, so any two tasks agree on the type of a column: a
task that finds the next number taken takes over its columns. The name of a staged file contains the number of the file
with the columns of its rows, and the driver reads the file with the highest of these numbers.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from ackline.kafka.produce import OutputTopics, Row
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.published import StagedFile
from ackline.ledger.turns import TurnId
from ackline.pipeline.output_columns import (
    ANCHOR_TYPE,
    STAGED_ANCHORS,
    Columns,
    arrow_type,
    as_row,
    fit_columns,
    fit_rows,
    infer_columns,
    json_text,
)
from ackline.pipeline.outputs import Output
from ackline.scrub import scrub
from ackline.stored import decode, encode
from ackline.trees.rows import Edges, Root, Roots, runs_of_size
from ackline.trees.tuples import Content, Packed, size_of, sizes_in, values_in
from ackline.worker.settings import OutputTargets


class InferredColumns:
    """The columns that one task uses for one table. `number` is that of the file that holds them; 0 for `initial`, the
    columns of rows that wait for records in flight, from which the turn begins."""

    def __init__(self, folder: str, table: str, initial: Columns) -> None:
        self._folder, self._table = folder, table
        self.columns, self.number = initial, 0

    def add_fields(self, rows: Sequence[Mapping[Any, Any]]) -> Columns:
        """Adds a column for each field of the rows that has none and can be a column. Returns all columns. Raises
        OSError."""
        while new := infer_columns(rows, self.columns):
            number = self.number + 1
            content = encode({**self.columns, **new}).encode()
            # The task that creates the file first decides. The loop ends once the columns have each field of the rows.
            content = Folder(self._folder).create_first(_file(self._table, number), content)
            self.columns = decode(content, dict[str, str])
            self.number = number
        return self.columns


def staged_path(output: int, number: int) -> str:
    """Returns the name of a new staged file. `number` is that of the file with the columns of its rows; 0 for columns
    that the turn begins from, and for an output whose columns are not inferred."""
    return f"{output}-{number}-{uuid.uuid4()}.parquet"


def columns_of_staged(folder: str, table: str, initial: Columns, paths: Iterable[str]) -> Columns:
    """Returns the columns that the staged files of a table have together. `paths` are their names. Raises OSError."""
    number = max(int(path.split("-")[1]) for path in paths)
    if not number:
        return initial
    content = Folder(folder).read(_file(table, number))
    if content is None:
        raise FileNotFoundError(f"{_file(table, number)} was removed")
    return decode(content, dict[str, str])


def _file(table: str, number: int) -> str:
    return f"columns-{uuid.uuid5(uuid.NAMESPACE_URL, table)}-{number}.json"


_ROWS_A_GROUP = 50_000
_BYTES_A_GROUP = 32 << 20
_MAX_WAITING_BYTES = 16 << 20


class RowBlock(NamedTuple):
    """Rows that the calls of one step have emitted, as keys and values."""

    step: int
    content: Content
    hidden: Mapping[int, Collection[Any]]
    """By the number of the row, the fields that no message shows, because their names may be content of a record."""
    edges: Edges
    """The edges of each row's anchors; none for a row that is not tracked."""
    blamed: Edges
    """The edges whose records fail if a row does not fit: those of its anchors, or all edges that led to the call."""


class BadRow(NamedTuple):
    """A row of a step that does not fit its output, with the edges whose records fail. The reason quotes no value."""

    step: int
    edges: Edges
    reason: str


class _Rows:
    """Rows of several blocks for one output, as Python values."""

    def __init__(self, blocks: Sequence[RowBlock]) -> None:
        self.pairs = [pair for block in blocks for pair in values_in(block.content)]
        self.edges = Edges.joined([block.edges for block in blocks])
        self._blamed = Edges.joined([block.blamed for block in blocks])
        self._steps = [block.step for block in blocks for _ in range(len(block.edges))]
        self.hidden: list[Collection[Any]] = [
            block.hidden.get(number, ()) for block in blocks for number in range(len(block.edges))
        ]

    def bad(self, row: int, reason: str) -> BadRow:
        """Returns what keeps a row from being written."""
        return BadRow(self._steps[row], self._blamed.slice(row, row + 1), reason)

    def runs(self, blocks: Sequence[RowBlock]) -> Iterator[range]:
        """Yields the rows in runs of about _MAX_WAITING_BYTES: one call may emit more than the 2 GiB that a column of
        Arrow holds."""
        sizes = [size for block in blocks for size in sizes_in(block.content)]
        return (range(start, end) for start, end in runs_of_size(sizes, _MAX_WAITING_BYTES))


class OutputRows:
    """The rows of one task for all outputs. At the end call `close`, which makes the staged files durable, or
    `discard`."""

    def __init__(self, targets: OutputTargets, topic_partitions: Sequence[TopicPartition]) -> None:
        self._targets = targets
        self._topic_partitions = topic_partitions
        self._waiting: dict[int, tuple[Output, list[RowBlock]]] = {}
        self._tables: dict[int, _StagedTable] = {}
        self._topics: OutputTopics | None = None
        self._size = 0

    @property
    def fill(self) -> float:
        """How large the rows are that wait: at 1 they should be flushed."""
        return self._size / _MAX_WAITING_BYTES

    def add(self, output: Output, block: RowBlock) -> None:
        """Adds rows for an output, which wait for `flush`."""
        self._size += size_of(block.content)
        self._waiting.setdefault(output.number, (output, []))[1].append(block)

    def flush(self, roots: Roots) -> Iterator[BadRow]:
        """Stages the rows that wait, and sends those for topics: all replicas have them when this ends. Yields those
        that do not fit. `roots` are those of the batch that has emitted the rows."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        for output, blocks in waiting.values():
            columns = [block for block in blocks if not isinstance(block.content, Packed)]
            values = [block for block in blocks if isinstance(block.content, Packed)]
            yield from self._flush_rows(output, values, roots)
            for block in columns:
                if output.table is None or not self._table(output).add_columns(block, roots):
                    yield from self._flush_rows(output, [block], roots)

    def _flush_rows(self, output: Output, blocks: Sequence[RowBlock], roots: Roots) -> Iterator[BadRow]:
        if not blocks:
            return
        rows = _Rows(blocks)
        if output.table is None:
            yield from self._send(output, rows, roots)
            return
        for run in rows.runs(blocks):
            yield from self._table(output).add(rows, run, roots)

    def close(self) -> list[StagedFile]:
        """Finishes the files. On a local disk they are durable when this returns."""
        self._close_topics()
        return [file for table in self._tables.values() for file in table.close()]

    def discard(self) -> None:
        """Removes the files of a task that fails, as far as possible. One that stays does no harm: no manifest names
        it."""
        self._close_topics()
        for table in self._tables.values():
            table.discard()

    def _close_topics(self) -> None:
        if self._topics is not None:
            self._topics.close()

    def _table(self, output: Output) -> "_StagedTable":
        if output.number not in self._tables:
            self._tables[output.number] = _StagedTable(output, self._targets, self._topic_partitions)
        return self._tables[output.number]

    def _send(self, output: Output, rows: _Rows, roots: Roots) -> Iterator[BadRow]:
        assert output.topic is not None
        sent: list[int] = []
        messages: list[Row] = []
        for number, (key, value) in enumerate(rows.pairs):
            try:
                of_row = map(roots.root, rows.edges.slice(number, number + 1).roots.tolist())
                headers = _headers(of_row, self._targets.turn, self._topic_partitions)
                message = Row(output.topic, _bytes(key), _bytes(value), headers)
            except (ValueError, RecursionError, TypeError):
                yield rows.bad(number, f"a row for the topic {output.topic} can't be written as JSON")
                continue
            sent.append(number)
            messages.append(message)
        if self._targets.producer is None:
            return
        if self._topics is None:
            self._topics = OutputTopics(self._targets.producer)
        for number in self._topics.send(messages):
            yield rows.bad(sent[number], f"the broker refuses a row for the topic {output.topic} for its size or form")


class _StagedTable:
    def __init__(self, output: Output, targets: OutputTargets, topic_partitions: Sequence[TopicPartition]) -> None:
        self._output = output
        self._targets = targets
        self._topic_partitions = topic_partitions
        self._inferred: InferredColumns | None = None
        columns = targets.columns.get(output.number)
        if columns is None:
            columns = targets.inferred.get(output.number, {})
            self._inferred = InferredColumns(targets.folder, str(output.table), columns)
        self._columns: Columns = columns
        self._number = 0
        """The number of the file that holds `_columns` (`InferredColumns`); 0 if this turn has inferred none."""
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        """The rows of the present file. All of them have the same columns."""
        self._writer: DataFileWriter | None = None
        self._files: list[StagedFile] = []

    def add(self, rows: _Rows, run: range, roots: Roots) -> Iterator[BadRow]:
        """Stages a run of rows. Yields those that do not fit, which are not staged."""
        values = [as_row(value) for _, value in rows.pairs[run.start : run.stop]]
        if self._inferred is not None and (grown := self._inferred.add_fields(values)) != self._columns:
            self._finish_file()
            self._columns, self._number = grown, self._inferred.number
        if not self._columns:
            reason = f"no columns of the table {self._output.table} follow from nulls alone; write `columns`"
            yield from (rows.bad(number, reason) for number in run)
            return
        # Of inferred columns a message may name those that stand in the source of a handler: another one may be of a
        # record, such as that of a mapping by customer. Declared ones stand in the pipeline file.
        hidden, shown = rows.hidden[run.start : run.stop], None
        if self._inferred is not None:
            shown = frozenset[Any]().union(*values) - frozenset[Any]().union(*hidden)
        arrays, problems = fit_rows(values, self._columns, hidden, shown)
        kept = np.array([number for number in range(len(run)) if number not in problems], np.int64)
        for number, problem in problems.items():
            reason = scrub(f"a row does not fit the table {self._output.table}: {problem}", ())
            yield rows.bad(run[number], reason)
        if not len(kept):
            return
        chosen = [array.take(pa.array(kept)) for array in arrays] if problems else arrays
        self._stage(chosen, rows.edges.take(run.start + kept), roots)

    def add_columns(self, block: RowBlock, roots: Roots) -> bool:
        """Stages rows that are columns. Returns False, and stages none, unless their types are those of the table:
        `add` decides about rows that are to be converted, or that do not fit."""
        arrays = fit_columns(block.content, self._columns)
        if arrays is None:
            return False
        self._stage(arrays, block.edges, roots)
        return True

    def _stage(self, arrays: Sequence[pa.Array], edges: Edges, roots: Roots) -> None:
        anchors = _anchor_column(edges, roots, self._topic_partitions)
        schema = pa.schema([STAGED_ANCHORS, *((name, arrow_type(kind)) for name, kind in self._columns.items())])
        batch = pa.RecordBatch.from_arrays([anchors, *arrays], schema=schema)
        self._waiting.append(batch)
        self._rows += len(batch)
        rows_waiting, size = sum(map(len, self._waiting)), sum(batch.nbytes for batch in self._waiting)
        if rows_waiting >= _ROWS_A_GROUP or size >= _BYTES_A_GROUP:
            self._write()

    def close(self) -> list[StagedFile]:
        """Finishes the files. On a local disk they are durable when this returns."""
        self._finish_file()
        return self._files

    def discard(self) -> None:
        """Removes the files as far as possible."""
        if self._writer is not None:
            self._writer.discard()
        for file in self._files:
            Folder(self._targets.folder).remove(file.path)

    def _finish_file(self) -> None:
        """Finishes the present file, if it has rows. The next row begins another one."""
        if not self._rows:
            return
        self._write()
        assert self._writer is not None
        file = self._writer.finish()
        self._files.append(StagedFile(self._output.number, file.path, file.size, self._rows))
        self._writer, self._rows = None, 0

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if self._writer is None:
            path = staged_path(self._output.number, self._number)
            self._writer = DataFileWriter(Folder(self._targets.folder), path, waiting[0].schema)
        self._writer.write(pa.Table.from_batches(waiting))


def _anchor_column(edges: Edges, roots: Roots, topic_partitions: Sequence[TopicPartition]) -> pa.ListArray:
    """Returns for each row the records that it is anchored to."""
    ends = np.cumsum(edges.counts, dtype=np.int32)
    numbers, offsets, attempts = (column[edges.roots] for column in roots.columns())
    tps = pa.array(numbers)
    fields = [
        pa.array([tp.topic for tp in topic_partitions], pa.string()).take(tps),
        pa.array([tp.partition for tp in topic_partitions], pa.int32()).take(tps),
        pa.array(offsets),
        pa.array(attempts.astype(np.int32)),
    ]
    structs = pa.StructArray.from_arrays(fields, fields=list(ANCHOR_TYPE))
    return pa.ListArray.from_arrays(pa.array(np.append(np.int32(0), ends)), structs)


def _bytes(value: Any) -> bytes | None:
    """Returns the key or value of a message: bytes and text as they are, and anything else as JSON."""
    if value is None or type(value) is bytes:
        return value
    return (value if type(value) is str else json_text(value)).encode()


def _headers(
    roots: Iterable[Root], turn: TurnId, topic_partitions: Sequence[TopicPartition]
) -> list[tuple[str, bytes]]:
    """Returns the headers that name turn and source of a message, as those of a dead letter do. A message with several
    source records has the last four once for each."""
    headers: list[tuple[str, object]] = [("pipeline", turn.pipeline), ("lane", turn.lane)]
    headers += [("epoch", turn.epoch), ("turn", turn.n)]
    for root in roots:
        tp = topic_partitions[root.tp]
        headers += [("topic", tp.topic), ("partition", tp.partition)]
        headers += [("offset", root.offset), ("attempt", root.attempt)]
    return [(f"ackline.{name}", str(value).encode()) for name, value in headers]
