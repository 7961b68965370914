"""What is written: the rows that a turn publishes, those of acked records, in the final data files of each table.

`AttemptOutcomes` looks up by the anchors of a row what became of its records. No version of a table names the files
until the turn is published (`ackline.outputs.publish`).
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from ackline.delta.errors import cause_of, storage_errors, unusable_folder
from ackline.delta.files import DataFileWriter, partition_path, partition_text
from ackline.delta.folder import Folder
from ackline.errors import AcklineError, LedgerError
from ackline.ledger.offsets import Int64s, Ranges, TopicPartition, index_of_range, union
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.published import FinalFile, StagedFile, StagedTable, TableOfTurn, partition_key
from ackline.ledger.turns import TurnId
from ackline.outputs.output_table import OF_ROW, OutputTable, check_staged_columns, table_of
from ackline.outputs.staged import staged_groups
from ackline.pipeline.output_columns import arrow_type
from ackline.pipeline.outputs import Rows
from ackline.stored import DamagedError
from ackline.tables.store import LedgerStore

NO_OUTCOME = -1
WORDS: Sequence[str] = tuple(outcome.value for outcome in Outcome)
ACKED, IN_FLIGHT, SKIPPED = (
    WORDS.index(outcome.value) for outcome in (Outcome.ACKED, Outcome.IN_FLIGHT, Outcome.SKIPPED)
)
Integers = npt.NDArray[np.integer[Any]]
"""Attempts and codes in the small types of the rows: 11 bytes less for each attempt than with Int64s."""
_NO_OFFSETS: Int64s = np.empty(0, np.int64)


class Attempts(NamedTuple):
    """The attempts of a turn at the records of a topic-partition, by rising offset, and the ranges that an operator has
    skipped."""

    offsets: Int64s = _NO_OFFSETS
    attempts: Integers = _NO_OFFSETS
    codes: Integers = _NO_OFFSETS
    skipped: Ranges = (_NO_OFFSETS, _NO_OFFSETS)
    handled: Ranges = (_NO_OFFSETS, _NO_OFFSETS)
    """The records that were acked or that a handler has skipped, whose older rows the turn replaces."""


@dataclass(frozen=True, slots=True)
class AttemptOutcomes:
    """The outcome of each attempt that a turn has made or ended, by topic and partition. Codes are indexes of WORDS."""

    by_partition: dict[tuple[str, int], Attempts]

    @classmethod
    def read(cls, store: LedgerStore, turn: TurnId) -> "AttemptOutcomes":
        """Reads what is stored of a turn. Raises FatalError if the table can't be read."""
        return cls.of(store.outcome_rows_of(turn))

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> "AttemptOutcomes":
        """Returns the outcomes in rows as `LedgerStore.outcome_rows_of` yields them."""
        found: dict[tuple[str, int], list[pa.Table]] = {}
        for batch in batches:
            rows = pa.table(batch)
            # Without the texts, which are in each row: a turn may have millions of rows.
            narrow = pa.table(
                {
                    "offset": rows["offset"],
                    "end_offset": rows["end_offset"],
                    "attempt": rows["attempt"],
                    "code": pc.index_in(rows["outcome"], pa.array(WORDS)).cast(pa.int8()),
                    "answered": rows["answer"].is_valid(),
                    "by_handler": pc.equal(rows["error_class"], ErrorClass.SKIP.value).fill_null(False),
                }
            )
            pairs = rows.group_by(["topic", "partition"]).aggregate([]).to_pylist()
            for pair in pairs:
                chosen = pc.and_(pc.equal(rows["topic"], pair["topic"]), pc.equal(rows["partition"], pair["partition"]))
                of_pair = narrow if len(pairs) == 1 else narrow.filter(chosen)
                found.setdefault((pair["topic"], pair["partition"]), []).append(of_pair)
        return cls({tp: _attempts(pa.concat_tables(parts)) for tp, parts in found.items()})

    def handled(self) -> dict[TopicPartition, Ranges]:
        """Returns the records by topic and partition that the turn has acked, or that a handler has skipped. What a
        policy, a filter or an operator has skipped has not been handled."""
        known = {TopicPartition(*tp): of_tp.handled for tp, of_tp in self.by_partition.items()}
        return {tp: handled for tp, handled in known.items() if len(handled[0])}

    def end_of(self, tp: TopicPartition, offset: int) -> str | None:
        """Returns the outcome that the turn has for a record; None if it has none."""
        known = self.by_partition.get(tp, Attempts())
        place = int(np.searchsorted(known.offsets, offset, side="right")) - 1
        return WORDS[known.codes[place]] if place >= 0 and known.offsets[place] == offset else None

    def codes_after(self, anchors: pa.StructArray) -> Int64s:
        """Returns the code of the outcome of each anchor after the turn; NO_OUTCOME for one of which nothing is known.
        An anchor of an earlier turn has its outcome so far in the field `outcome`. Only one that was in flight can have
        another one now."""
        before = np.full(len(anchors), NO_OUTCOME)
        if anchors.type.get_field_index("outcome") >= 0:
            found = pc.index_in(anchors.field("outcome"), pa.array(WORDS))
            before = found.fill_null(NO_OUTCOME).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = before.copy()
        topics = anchors.field("topic").dictionary_encode()
        partitions, offsets = anchors.field("partition").to_numpy(), anchors.field("offset").to_numpy()
        attempts = anchors.field("attempt").to_numpy()
        unsettled = (before == NO_OUTCOME) | (before == IN_FLIGHT)
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            of_topic = unsettled & (topics.indices.to_numpy() == number)
            for partition in np.unique(partitions[of_topic]).tolist():
                rows = np.flatnonzero(of_topic & (partitions == partition))
                known = self.by_partition.get((topic, partition), Attempts())
                codes[rows] = _codes_of(known, offsets[rows], attempts[rows], before[rows])
        return codes


def _codes_of(known: Attempts, offsets: Int64s, attempts: Int64s, before: Int64s) -> Int64s:
    codes = before.copy()
    # Only what was in flight before the turn: a decision on an attempt of the turn itself is not its outcome.
    codes[(before == IN_FLIGHT) & (index_of_range(offsets, known.skipped) >= 0)] = SKIPPED
    places = np.searchsorted(known.offsets, offsets)
    there = places < len(known.offsets)
    there[there] = (known.offsets[places[there]] == offsets[there]) & (known.attempts[places[there]] == attempts[there])
    codes[there] = known.codes[places[there]]
    return codes


def _attempts(rows: pa.Table) -> Attempts:
    """Returns the attempts in rows of one topic-partition. An answer from outside comes after the attempt that it ends;
    a renewal ends nothing."""
    codes, answered = rows["code"].to_numpy(), rows["answered"].to_numpy()
    offsets, attempts = rows["offset"].to_numpy(), rows["attempt"].to_numpy()
    made = (attempts > 0) & ~(answered & (codes == IN_FLIGHT))
    # A turn has rows of one attempt at each offset only: it does not retry a record that was in flight before it.
    chosen = np.flatnonzero(made)
    if (np.diff(offsets[chosen]) <= 0).any():  # each outcome has its own file, or an answer is there
        chosen = chosen[np.lexsort((answered[chosen], offsets[chosen]))]
        last = np.ones(len(chosen), dtype=np.bool_)
        last[:-1] = offsets[chosen[1:]] != offsets[chosen[:-1]]
        chosen = chosen[last]
    skips = rows.filter(pa.array((attempts == 0) & (codes == SKIPPED)))
    ends: Any = pc.coalesce(skips["end_offset"], pc.add(skips["offset"], 1))
    skipped = union((skips["offset"].to_numpy(), ends.to_numpy()))
    by_handler = (codes == ACKED) | ((codes == SKIPPED) & rows["by_handler"].to_numpy())
    of_handler = offsets[chosen][by_handler[chosen]]
    return Attempts(offsets[chosen], attempts[chosen], codes[chosen], skipped, union((of_handler, of_handler + 1)))


def any_of_row(anchors: pa.ListArray, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns for each row whether one of its anchors is chosen. `chosen` has a value for each anchor."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    offsets = anchors.offsets.to_numpy()
    of_row: npt.NDArray[np.bool_] = before[offsets[1:]] > before[offsets[:-1]]
    return of_row


def with_outcomes(anchors: pa.ListArray, codes: Int64s) -> pa.ListArray:
    """Returns the anchors of rows with the field `outcome`. `codes` has an index of WORDS, or NO_OUTCOME for null, for
    each anchor."""
    texts = pa.array(WORDS).take(pa.array(codes, mask=codes == NO_OUTCOME))
    names = ("topic", "partition", "offset", "attempt")
    flat = anchors.values
    structs = pa.StructArray.from_arrays([*(flat.field(name) for name in names), texts], [*names, "outcome"])
    return pa.ListArray.from_arrays(anchors.offsets, structs)


_ROWS_A_FILE, _BYTES_A_FILE = 1_000_000, 256 << 20
"""When a file is written: at so many rows, or bytes in memory. A partition column divides these into smaller ones."""


def write_table(
    store: LedgerStore,
    turn: TurnId,
    sources: Sequence[StagedTable],
    root: Folder,
    outcomes: AttemptOutcomes,
    kept: Rows = Rows.NEWEST,
) -> TableOfTurn:
    """Writes the rows that a turn publishes in one output table to data files of the table, which no version names yet.

    `sources` are staged rows of this table, with paths below `root`; those of acked records are written. Creates the
    table if it does not exist, as one that keeps the rows `kept`. The files are on the disk when this returns. Raises
    ConfigError if rows do not fit the table, FatalError and TransientError if the table or a staged file can't be used.
    """
    table = table_of(store, sources[0].table, joined_columns(sources), sources[0].partition_by, kept)
    with table.errors():
        table.create()  # first: another lane may create it at the same time, with other columns
        columns = table.columns()  # the partition columns of a table that exists are those that count
        assert columns is not None
        for staged in sources:
            check_staged_columns(staged.table, staged.columns, columns)
        schema = pa.schema([*OF_ROW.remove_metadata(), *((name, arrow_type(kind)) for name, kind in columns.items())])
        rows, files, named = 0, list[FinalFile](), _Named()
        for staged in sources:
            for waiting in _in_files(_rows(root, staged, turn, outcomes, schema)):
                rows += waiting.num_rows
                named.add(waiting["_anchors"])
                files.extend(_write_files(table, waiting))
    return TableOfTurn(rows, files, columns, named.ends, named.several)


@dataclass(slots=True)
class _Named:
    """What the rows of a turn name: `TableOfTurn.ends` and `.several`."""

    ends: dict[str, int] = field(default_factory=dict)
    several: bool = False

    def add(self, anchors: pa.ChunkedArray) -> None:
        flat = pa.Table.from_struct_array(pc.list_flatten(anchors)).select(["topic", "partition", "offset"])
        for of in flat.group_by(["topic", "partition"]).aggregate([("offset", "max")]).to_pylist():
            key = partition_key(of["topic"], of["partition"])
            self.ends[key] = max(self.ends.get(key, 0), of["offset_max"] + 1)
        self.several = self.several or bool(pc.any(pc.greater(pc.list_value_length(anchors), 1)).as_py())


def entries(files: Iterable[FinalFile]) -> list[AddAction]:
    """Returns what the log entry of a turn has to say of its files."""
    return [AddAction(f.path, f.size, dict(f.partition), f.modification_time, True, f.stats) for f in files]


def joined_columns(sources: Sequence[StagedTable]) -> dict[str, str]:
    """Returns the columns of a new table for these rows. Kept rows may have other columns than the rows of the turn: a
    user may have added some in between. Of two types of a column the first counts."""
    return {name: kind for staged in reversed(sources) for name, kind in staged.columns.items()}


def _rows(
    root: Folder, staged: StagedTable, turn: TurnId, outcomes: AttemptOutcomes, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yields the staged rows of acked records with the columns of a table. A column that they lack is null."""
    for file in staged.files:
        for group in _groups(root, staged, file, turn):
            rows = _published(group, turn, outcomes)
            if rows.num_rows:
                yield with_columns(rows, schema)


def _groups(root: Folder, staged: StagedTable, file: StagedFile, turn: TurnId) -> Iterator[pa.Table]:
    """Yields the row groups of a staged file. An error of the file names it, and not the table that it is for."""

    def error_of(error: BaseException) -> AcklineError:
        if isinstance(error, FileNotFoundError | DamagedError):
            return LedgerError(
                f"{turn}: the staged file {root.uri}/{file.path}, with rows for an output table, is gone or damaged "
                f"({cause_of(error, root.uri)}). Restore it from a backup"
            )
        return unusable_folder(root.uri, error)

    with storage_errors(root.uri, error_of):
        yield from staged_groups(root, staged, file)


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns rows with the columns of a schema. A column that they lack is null."""
    arrays = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _published(staged: pa.Table, turn: TurnId, outcomes: AttemptOutcomes) -> pa.Table:
    """Returns the staged rows that a turn publishes, each with the columns that name its record."""
    anchors = staged["_anchors"].combine_chunks()
    codes = outcomes.codes_after(anchors.values)
    rows, acked = _first_acked(anchors, codes == ACKED)
    record = anchors.values.take(acked)
    columns: dict[str, Any] = {
        **{f"_{name}": record.field(name) for name in ("topic", "partition", "offset", "attempt")},
        "_lane": pa.repeat(turn.lane, len(rows)),
        "_epoch": pa.repeat(pa.scalar(turn.epoch, pa.int32()), len(rows)),
        "_turn": pa.repeat(pa.scalar(turn.n, pa.int64()), len(rows)),
        "_anchors": with_outcomes(anchors, codes).take(rows),
    }
    emitted = staged.drop_columns(["_anchors"]).take(rows)
    arrays = [columns[field.name].cast(field.type) for field in OF_ROW]
    return pa.Table.from_arrays(
        [*arrays, *emitted.columns], schema=pa.schema([*OF_ROW.remove_metadata(), *emitted.schema.remove_metadata()])
    )


def _first_acked(anchors: pa.ListArray, acked: npt.NDArray[np.bool_]) -> tuple[pa.Array, pa.Array]:
    """Returns the indexes of the rows to publish, and for each the index of its first acked anchor: null for a row
    without anchors, which is not tracked and belongs to no record. `acked` has a value for each anchor."""
    starts, ends = anchors.offsets.to_numpy()[:-1], anchors.offsets.to_numpy()[1:]
    places = np.flatnonzero(acked)
    first = np.append(places, len(acked))[np.searchsorted(places, starts)]
    untracked = starts == ends
    rows = np.flatnonzero((first < ends) | untracked)
    return pa.array(rows), pa.array(first[rows], mask=untracked[rows])


def _in_files(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yields rows together until they are enough for a file."""
    waiting: list[pa.Table] = []
    for rows in tables:
        waiting.append(rows)
        number, size = sum(map(len, waiting)), sum(each.nbytes for each in waiting)
        if number >= _ROWS_A_FILE or size >= _BYTES_A_FILE:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _write_files(table: OutputTable, rows: pa.Table) -> Iterator[FinalFile]:
    """Writes rows to durable files, one for each combination of the values of the partition columns."""
    for values, chosen in _by_partition(rows, table.partition_by):
        writer = DataFileWriter(table.storage, f"{partition_path(values)}{uuid.uuid4()}.parquet", chosen.schema)
        writer.write(chosen)
        file = writer.finish()
        yield FinalFile(file.path, file.size, file.modification_time, values, file.stats)


def _by_partition(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yields the rows of each combination of values, without these columns. Sorts once: a partition may be one row."""
    if not partition_by:
        yield {}, rows
        return
    numbers = np.zeros(rows.num_rows, np.int64)
    for name in partition_by:
        codes = rows[name].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        numbers = np.unique(numbers * (codes.max() + 1) + codes, return_inverse=True)[1]
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1)).tolist()
    values = rows.select(list(partition_by)).take(pa.array(order[starts])).to_pylist()
    emitted = rows.drop_columns(list(partition_by)).take(pa.array(order))
    for of_rows, (start, end) in zip(values, pairwise([*starts, rows.num_rows]), strict=True):
        yield {name: partition_text(value) for name, value in of_rows.items()}, emitted.slice(start, end - start)
