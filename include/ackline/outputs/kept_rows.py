"""Keeps the staged rows of records that are in flight, until the turn that acks them publishes them.

A row is kept after a turn if none of its records is acked yet and one of them is still in flight. settle writes
these rows to files of their own before it stores the settlement, which names the files. If two processes settle the
turn, only the files of the stored settlement count.

A file in which no attempt has ended stays as it is: the next settlement names it again. settle writes a new file for
the rows that the turn itself keeps, and writes the rows of a file again only if an attempt in that file has ended.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from ackline.ledger.published import StagedFile, StagedTable
from ackline.outputs.output_table import ANCHORS
from ackline.outputs.staged import staged_groups
from ackline.outputs.written import ACKED, IN_FLIGHT, AttemptOutcomes, any_of_row, with_columns, with_outcomes
from ackline.pipeline.output_columns import Columns, arrow_type

MOST_FILES = 16
"""How many files of kept rows a table has; when there would be more, all become one."""
_BYTES_A_GROUP = 32 << 20

_Key = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]


@dataclass(slots=True)
class KeptRows:
    """What is kept after a turn, and what is not any more. Paths are relative to the staging root."""

    kept: list[StagedTable] = field(default_factory=list)
    released: list[StagedTable] = field(default_factory=list)
    """Files that were kept before the turn and are not after it: the rows of attempts that it acked are in them."""
    acked: dict[str, int] = field(default_factory=dict)
    """By table, how many rows of released files the turn publishes."""


def keep_rows(
    root: Folder, folder: str, before: Sequence[StagedTable], staged: Sequence[StagedTable], outcomes: AttemptOutcomes
) -> KeptRows:
    """Returns what is kept after a turn with these outcomes. `before` was kept until now, `staged` is of the turn.
    Writes new files to `folder` below the root, which are on the disk when this returns. Raises FileNotFoundError and
    DamagedError for a file that does not exist or is damaged, and another OSError if one can't be read or written."""
    keeping = _Keeping(root, folder, outcomes)
    try:
        for table in before:
            for file in table.files:
                keeping.look_at(table, file)
        for table in staged:
            for file in table.files:
                keeping.take(table, file)
        return keeping.finish()
    except BaseException:
        keeping.discard()
        raise


def check_readable(root: Folder, tables: Iterable[StagedTable]) -> None:
    """Reads files of kept rows. Raises what `staged_groups` does if one does not exist or is damaged."""
    for table in tables:
        for file in table.files:
            for _ in staged_groups(root, table, file):
                pass


class _Keeping:
    """The files of one turn while they are looked at."""

    def __init__(self, root: Folder, folder: str, outcomes: AttemptOutcomes) -> None:
        self._root, self._folder, self._outcomes = root, folder, outcomes
        self._result = KeptRows()
        self._unchanged: dict[_Key, list[StagedFile]] = {}
        self._released: dict[_Key, list[StagedFile]] = {}
        self._writers: dict[_Key, _KeptFile] = {}

    def look_at(self, table: StagedTable, file: StagedFile) -> None:
        """Keeps a file of kept rows as it is, unless an attempt of it has ended."""
        anchors = staged_groups(self._root, table, file, ["_anchors"])
        if not any(_has_ended(rows, self._outcomes) for rows in anchors):
            self._unchanged.setdefault(_key(table), []).append(file)
            return
        acked = self.take(table, file)
        self._released.setdefault(_key(table), []).append(file)
        if acked:
            self._result.acked[table.table] = self._result.acked.get(table.table, 0) + acked

    def take(self, table: StagedTable, file: StagedFile) -> int:
        """Writes the rows of a file that are still to be kept. Returns how many of its rows the turn has acked."""
        count = 0
        for rows in staged_groups(self._root, table, file):
            anchors = rows["_anchors"].combine_chunks()
            codes = self._outcomes.codes_after(anchors.values)
            acked = any_of_row(anchors, codes == ACKED)
            count += int(acked.sum())
            waiting = np.flatnonzero(~acked & any_of_row(anchors, codes == IN_FLIGHT))
            if len(waiting):
                chosen = rows.set_column(0, pa.field("_anchors", ANCHORS), with_outcomes(anchors, codes).cast(ANCHORS))
                self._writer(table, file.output).add(chosen.take(pa.array(waiting)))
        return count

    def finish(self) -> KeptRows:
        """Finishes the new files. Merges those of a table that has too many."""
        for key, writer in self._writers.items():
            files = self._unchanged.get(key, [])
            if len(files) >= MOST_FILES:
                table, columns, partition_by = key
                together = StagedTable(table, dict(columns), list(partition_by), files)
                for file in files:
                    for rows in staged_groups(self._root, together, file):
                        writer.add(rows)
                self._released.setdefault(key, []).extend(files)
                files = []
            self._unchanged[key] = [*files, writer.finish()]
        self._result.kept = _tables(self._unchanged)
        self._result.released = _tables(self._released)
        return self._result

    def discard(self) -> None:
        """Removes the new files as far as possible."""
        for writer in self._writers.values():
            writer.discard()

    def _writer(self, table: StagedTable, output: int) -> "_KeptFile":
        key = _key(table)
        if key not in self._writers:
            path = f"{self._folder}/kept-{uuid.uuid4()}.parquet"
            self._writers[key] = _KeptFile(self._root, path, output, table.columns)
        return self._writers[key]


class _KeptFile:
    """A new file of kept rows with `columns`. A column that rows lack is null: tasks add inferred columns during a
    turn, so staged files of one table may have fewer columns than the table."""

    def __init__(self, root: Folder, path: str, output: int, columns: Columns) -> None:
        self._root, self._path, self._output = root, path, output
        emitted = [(name, arrow_type(kind)) for name, kind in columns.items()]
        self._schema = pa.schema([pa.field("_anchors", ANCHORS), *emitted])
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._writer: DataFileWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(with_columns(rows, self._schema))
        self._rows += rows.num_rows
        if sum(table.nbytes for table in self._waiting) >= _BYTES_A_GROUP:
            self._write()

    def finish(self) -> StagedFile:
        """Returns the file, which is durable."""
        self._write()
        assert self._writer is not None
        file = self._writer.finish()
        return StagedFile(self._output, self._path, file.size, self._rows)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            if self._writer is None:
                self._writer = DataFileWriter(self._root, self._path, self._schema)
            self._writer.write(pa.concat_tables(waiting))


def _has_ended(rows: pa.Table, outcomes: AttemptOutcomes) -> bool:
    """Returns whether an attempt of kept rows is in flight no more."""
    flat = rows["_anchors"].combine_chunks().values
    waits = (flat.field("outcome").to_numpy(zero_copy_only=False)) == "in_flight"
    return bool((waits & (outcomes.codes_after(flat) != IN_FLIGHT)).any())


def _key(table: StagedTable) -> _Key:
    return table.table, tuple(table.columns.items()), tuple(table.partition_by)


def _tables(files: Mapping[_Key, Sequence[StagedFile]]) -> list[StagedTable]:
    return [
        StagedTable(table, dict(columns), list(partition_by), list(of_table))
        for (table, columns, partition_by), of_table in files.items()
        if of_table
    ]
