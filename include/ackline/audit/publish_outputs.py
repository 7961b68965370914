"""Publishes the rows that an execution has staged for output tables: those of acked records, in one commit a table.

The order, for each turn n: staged files and the manifest of their execution, both on the disk; outcomes n, which name
the execution; decisions n; settlement n; one commit to each table, with the transaction id (pipeline, lane, epoch;
version n); the group's commit; and only then the staged files go. Delta has no commit over several tables, so a crash
may leave some of them without turn n. Whoever commits the group or takes number n + 1 publishes turn n first.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ackline.audit.data_files import DataFileWriter
from ackline.audit.output_table import ANCHORS, OF_ROW, OutputTable
from ackline.audit.storage import Storage
from ackline.audit.store import LedgerStore
from ackline.errors import LedgerError
from ackline.outcome import Outcome
from ackline.outputs import OutputsOfTurn, StagedOutputs, StagedTable, output_folder
from ackline.paths import lane_folder
from ackline.turns import LIVE, TurnId

_ROWS_A_FILE = 1_000_000
_NO_OUTCOME = -1
_ACKED = Outcome.ACKED.value
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def application_of(ledger_id: str, turn: TurnId) -> str:
    """Returns the transaction id of a lane and epoch in output tables.

    It begins with the ledger's id: a table outside ACKLINE_AUDIT outlives a ledger, and turn 1 of the next ledger is
    another one.
    """
    return f"ackline/{ledger_id}/{turn.pipeline}/{turn.lane}/{turn.epoch}/output"


def table_of(store: LedgerStore, table: str) -> OutputTable:
    """Returns an output table that exists, or may not exist yet, to look at."""
    return OutputTable(_uri(store, table))


def publish(
    store: LedgerStore, turn: TurnId, outputs: OutputsOfTurn, staged: StagedOutputs | None, folder: str
) -> None:
    """Publishes the staged rows of a settled turn in each table that does not have them yet.

    `staged` is the manifest in the staging folder; None if it is gone. Raises LedgerError if it is gone and a table
    lacks the turn, FatalError and TransientError if a table can't be used.
    """
    missing = [table for table in outputs.tables if not _has(table_of(store, table), outputs, turn)]
    if not missing:
        return
    if staged is None or staged.execution != outputs.execution:
        raise LedgerError(
            f"{turn} is settled, and its rows are not in {', '.join(missing)}; its staged rows in {folder} are gone. "
            f"Restore that folder from a backup; no other turn is planned until then"
        )
    outcomes = _OutcomesOfTurn.read(store, turn)
    for table in staged.tables:
        if table.table in missing:
            try:
                _publish_table(store, turn, outputs.application, table, folder, outcomes)
            except (OSError, pa.ArrowException) as error:
                # Another process may have published the turn meanwhile, and removed the staged rows.
                if not _has(table_of(store, table.table), outputs, turn):
                    raise table_of(store, table.table).error(error) from error


def _uri(store: LedgerStore, table: str) -> str:
    return output_folder(lane_folder(store.root, store.pipeline, LIVE), table)


def _has(table: OutputTable, outputs: OutputsOfTurn, turn: TurnId) -> bool:
    return (table.version_of(outputs.application) or 0) >= turn.n


def _publish_table(
    store: LedgerStore,
    turn: TurnId,
    application: str,
    staged: StagedTable,
    folder: str,
    outcomes: "_OutcomesOfTurn",
) -> None:
    table = OutputTable(_uri(store, staged.table), staged.columns, staged.partition_by)
    table.columns()  # the partition columns of a table that exists are those that count
    files = list(_write(table, _rows(Storage(folder), staged, turn, outcomes)))
    # The fence: of two processes that publish the turn, one commits. The other's files stay unnamed, and are removed.
    if not table.append(files, application, turn.n):
        for file in files:
            table.storage.filesystem.delete_file(file.path)


def _rows(storage: Storage, staged: StagedTable, turn: TurnId, outcomes: "_OutcomesOfTurn") -> Iterator[pa.Table]:
    """Yields the staged rows of acked records, with the columns of `OF_ROW`."""
    for file in staged.files:
        with storage.filesystem.open_input_file(file.path) as stream, pq.ParquetFile(stream) as content:
            for group in range(content.num_row_groups):
                rows = _published(content.read_row_group(group), turn, outcomes)
                if rows.num_rows:
                    yield rows


def _published(staged: pa.Table, turn: TurnId, outcomes: "_OutcomesOfTurn") -> pa.Table:
    anchors = staged["_anchors"].combine_chunks()
    starts, counts = anchors.offsets.to_numpy(), np.diff(anchors.offsets.to_numpy())
    flat = anchors.values
    codes = outcomes.of(flat)
    acked = codes == outcomes.words.index(_ACKED)
    # The first acked record of each row; none for a row that is not tracked, which belongs to no record.
    place = np.where(acked, np.arange(len(flat)), len(flat))
    first = np.minimum.reduceat(np.append(place, len(flat)), starts[:-1]) if len(starts) > 1 else place[:0]
    first = np.where(counts == 0, len(flat), first)
    kept = np.flatnonzero((first < len(flat)) | (counts == 0))
    of_row = pa.array(np.where(first < len(flat), first, -1)[kept])
    of_row = pc.if_else(pc.less(of_row, 0), None, of_row)
    columns: dict[str, Any] = {
        "_topic": flat.field("topic").take(of_row),
        "_partition": flat.field("partition").take(of_row),
        "_offset": flat.field("offset").take(of_row),
        "_attempt": flat.field("attempt").take(of_row),
        "_lane": pa.repeat(turn.lane, len(kept)),
        "_epoch": pa.repeat(pa.scalar(turn.epoch, pa.int32()), len(kept)),
        "_turn": pa.repeat(pa.scalar(turn.n, pa.int64()), len(kept)),
        "_anchors": _with_outcomes(anchors, flat, codes, outcomes.words).take(pa.array(kept)),
    }
    emitted = staged.drop_columns(["_anchors"]).take(pa.array(kept))
    arrays = [columns[field.name].cast(field.type) for field in OF_ROW]
    return pa.Table.from_arrays(
        [*arrays, *emitted.columns], schema=pa.schema([*OF_ROW.remove_metadata(), *emitted.schema.remove_metadata()])
    )


def _with_outcomes(
    anchors: pa.ListArray, flat: pa.StructArray, codes: npt.NDArray[np.int64], words: Sequence[str]
) -> pa.Array:
    texts = pa.array(words).take(pa.array(codes, mask=codes == _NO_OUTCOME))
    fields = [flat.field(name) for name in ("topic", "partition", "offset", "attempt")]
    structs = pa.StructArray.from_arrays([*fields, texts], fields=list(ANCHORS.value_type))
    return pa.ListArray.from_arrays(anchors.offsets, structs)


def _write(table: OutputTable, tables: Iterator[pa.Table]) -> Iterator[AddAction]:
    waiting: list[pa.Table] = []
    for rows in tables:
        waiting.append(rows)
        if sum(each.num_rows for each in waiting) >= _ROWS_A_FILE:
            yield from _write_files(table, pa.concat_tables(waiting))
            waiting = []
    if waiting:
        yield from _write_files(table, pa.concat_tables(waiting))


def _write_files(table: OutputTable, rows: pa.Table) -> Iterator[AddAction]:
    """Writes rows to durable files, one for each combination of the values of the partition columns."""
    for values, chosen in _by_partition(rows, table.partition_by):
        writer = DataFileWriter(table.storage, f"{_folder(values)}{uuid.uuid4()}.parquet", chosen.schema)
        writer.write(chosen)
        file = writer.finish()
        yield AddAction(file.path, file.size, values, file.modification_time, True, file.stats)


def _by_partition(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not partition_by:
        yield {}, rows
        return
    keys = pa.StructArray.from_arrays([rows[name].combine_chunks() for name in partition_by], list(partition_by))
    distinct = rows.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist()
    texts = [keys.field(number) for number in range(len(partition_by))]
    for values in distinct:
        chosen = np.ones(rows.num_rows, dtype=np.bool_)
        for name, column in zip(partition_by, texts, strict=True):
            equal = (
                pc.is_null(column) if values[name] is None else pc.equal(column, pa.scalar(values[name], column.type))
            )
            chosen &= pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
        yield (
            {name: _partition_text(value) for name, value in values.items()},
            rows.filter(pa.array(chosen)).drop_columns(list(partition_by)),
        )


def _partition_text(value: str | int | bool | None) -> str | None:
    """Returns the value of a partition column as the Delta log writes it."""
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def _folder(values: dict[str, str | None]) -> str:
    # Hive's name for null. The log holds the value itself; readers do not parse the path.
    return "".join(f"{name}={quote(value or _NO_VALUE, safe='')}/" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class _OutcomesOfTurn:
    """The outcome of each attempt of a turn: sorted offsets and codes, by topic and partition."""

    words: Sequence[str]
    by_partition: dict[tuple[str, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]]

    @classmethod
    def read(cls, store: LedgerStore, turn: TurnId) -> "_OutcomesOfTurn":
        """Reads the outcomes that replay has stored. Raises FatalError if the table can't be read."""
        words = [outcome.value for outcome in Outcome]
        found: dict[tuple[str, int], list[tuple[Any, Any]]] = {}
        for batch in store.attempts_of(turn):
            codes = pc.index_in(batch.column("outcome"), pa.array(words)).to_numpy().astype(np.int8)
            topics, partitions = (
                batch.column("topic").to_numpy(zero_copy_only=False),
                batch.column("partition").to_numpy(),
            )
            offsets = batch.column("offset").to_numpy()
            for topic, partition in sorted(set(zip(topics.tolist(), partitions.tolist(), strict=True))):
                rows = (topics == topic) & (partitions == partition)
                found.setdefault((topic, partition), []).append((offsets[rows], codes[rows]))
        joined = {}
        for tp, parts in found.items():
            offsets, codes = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.argsort(offsets, kind="stable")
            joined[tp] = offsets[order], codes[order]
        return cls(words, joined)

    def of(self, anchors: pa.StructArray) -> npt.NDArray[np.int64]:
        """Returns the code of the outcome of each anchor, which is its index in `words`; -1 for one without a row."""
        codes = np.full(len(anchors), _NO_OUTCOME, dtype=np.int64)
        topics = anchors.field("topic").dictionary_encode()
        partitions, wanted = anchors.field("partition").to_numpy(), anchors.field("offset").to_numpy()
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            of_topic = topics.indices.to_numpy() == number
            for partition in np.unique(partitions[of_topic]).tolist():
                offsets, known = self.by_partition.get(
                    (topic, partition), (np.empty(0, np.int64), np.empty(0, np.int8))
                )
                rows = np.flatnonzero(of_topic & (partitions == partition))
                places = np.searchsorted(offsets, wanted[rows])
                there = places < len(offsets)
                there[there] = offsets[places[there]] == wanted[rows][there]
                codes[rows[there]] = known[places[there]]
        return codes
