"""Older rows: which rows of an output table are of records that are handled again, and the files without these rows.

An output table with `rows: newest` has for each record the rows of its newest handling alone. The log entry that brings
the rows of a turn also removes the older rows of each record that the turn has acked, or that its handler has skipped.
A reader sees the rows of before the turn or those of after it. What is removed follows from the outcomes of the turn,
which are stored, and from the version that the entry is made upon. So any process may publish the turn, and a try that
is killed leaves nothing but files that no version names.

Delta can't remove a row from a file, so a file with such rows is written anew without them (copy on write).
"""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.append import retry_beside_rivals
from ackline.delta.compaction import READ_OPTIONS
from ackline.delta.files import SCAN_OPTIONS, DataFileWriter, partition_path, partition_text
from ackline.delta.handle import LogState
from ackline.delta.reads import is_removable, partition_guarantee, table_files
from ackline.delta.table import Upon
from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import related_advice
from ackline.ledger.offsets import Bools, Int64s, Ranges, TopicPartition, index_of_range
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import has_rows_of_several, is_of_one_ledger
from ackline.ledger.turns import TurnId
from ackline.outputs.output_table import OUTPUT_LAYOUT, OutputTable, table_of
from ackline.outputs.staged import outputs_of
from ackline.pipeline.outputs import Rows, real_table
from ackline.scrub import scrub_address
from ackline.tables.store import LedgerStore

log = logging.getLogger(__name__)
Records = Mapping[TopicPartition, Ranges]
"""Records by topic-partition, as ranges of offsets."""
Related = Mapping[TopicPartition, Sequence[int]]
"""Records that rows name beside others."""
Action = AddAction | RemoveAction
T = TypeVar("T")
OlderTopics = Callable[[str, int], Mapping[str, Sequence[int]]]
"""Returns the turns of a lane and epoch, by topic, that were planned before the topic was made again: their records are
others, though they have the same offsets."""
_OF_RECORD = ("_topic", "_partition", "_offset", "_lane", "_epoch", "_turn", "_anchors")
_SHOWN = 5
_PROGRESS_S = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a table that name some of the records: `rows` are of these records alone. `related` are the records that
    other rows name beside them."""

    rows: int
    related: Related


@dataclass
class OlderRows:
    """The rows of `records` in an output table. `turn` is the one that handles the records again, published under the
    transaction id `application`; None before there is one. Keeps what it has found of each file, because a file never
    changes."""

    table: OutputTable
    records: Records
    older_topics: OlderTopics
    turn: TurnId | None = None
    application: str = ""
    ends: Callable[[TopicPartition, int], str | None] = lambda tp, offset: None
    """Returns the outcome in the turn of a record that is none of `records`; None if the turn does not handle it."""
    is_open: bool = True
    """Whether the turn is not settled yet, so that it can be closed."""
    _of_one_ledger: bool = True
    _chosen: dict[str, tuple[int, dict[TopicPartition, set[int]]]] = field(default_factory=dict)
    _written: dict[str, list[Action]] = field(default_factory=dict)
    _anchored: dict[str, bool] = field(default_factory=dict)

    def at_newest(self, look: Callable[[LogState], T]) -> T:
        """Returns what one of the methods below returns for the newest version of the table, which exists. Raises
        CommitFailedError if others commit all the time."""

        def once() -> T:
            state = self.table.state()
            assert state is not None
            return look(state)

        return retry_beside_rivals(once)

    def find(self, state: LogState) -> Found:
        """Returns what the version `state` holds of the records. Opens the files whose statistics allow a row of them.
        Raises CommitFailedError if a later version is there already, and OSError or ArrowException as a file does."""
        version = self._version(state)
        rows, related = 0, dict[TopicPartition, set[int]]()
        for file in self._candidates(version, state):
            number, of_file = self._rows_of(version, file)
            rows += number
            for tp, offsets in of_file.items():
                related.setdefault(tp, set()).update(offsets)
        return Found(rows, {tp: sorted(offsets) for tp, offsets in sorted(related.items())})

    def may_exist(self, state: LogState) -> bool:
        """Returns whether the statistics of a file allow a row of the records. Opens no file, unless the table has rows
        of several records. Raises as `find` does."""
        return any(True for _ in self._candidates(self._version(state), state))

    def without(self, state: LogState) -> Upon:
        """Returns what the log entry after the version `state` needs to remove the rows: the files that hold some, and
        files with the others of their rows, which are on the disk. Raises LedgerError if a row is of other records too,
        and as `find` does."""
        version = self._version(state)
        actions, candidates, shown_at = list[Action](), list(self._candidates(version, state)), time.monotonic()
        for number, file in enumerate(candidates):
            if time.monotonic() - shown_at >= _PROGRESS_S:
                shown_at = time.monotonic()
                log.info("%s: looked at %d of %d files with older rows", self.table.uri, number, len(candidates))
            removed, related = self._rows_of(version, file)
            if related:
                raise self.partly_handled(related)
            if removed:
                if file["path"] not in self._written:
                    self._written[file["path"]] = list(self._rewritten(version, file, removed))
                actions += self._written[file["path"]]
        return Upon(actions, exclusive=True)

    def partly_handled(self, related: Mapping[TopicPartition, Collection[int]]) -> LedgerError:
        """Returns the error for rows of which not all records are handled again; `related` are the others."""
        assert self.turn is not None
        every = [(tp, offset) for tp, offsets in sorted(related.items()) for offset in sorted(offsets)]
        ends = {each: self.ends(*each) for each in every}
        listed = [f"{tp}@{offset} ({ends[tp, offset] or 'not in the turn'})" for tp, offset in every[:_SHOWN]]
        more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
        return LedgerError(
            f"{self.turn}: the output table {scrub_address(self.table.uri)} has rows of several records, and the turn "
            f"acks some of these records again without the others: {', '.join(listed)}{more}. A row goes only with all "
            f"its records" + (f". {related_advice(self.turn, all(ends.values()))}" if self.is_open else "")
        )

    def _version(self, state: LogState) -> DeltaTable:
        version = self.table.opened()
        self.table.check_is_at(version, state)
        self._of_one_ledger = is_of_one_ledger(state.transactions, self.application)
        return version

    # ---- which files ------------------------------------------------------------------------------------------------

    def _candidates(self, version: DeltaTable, state: LogState) -> Iterator[dict[str, Any]]:
        """Yields the files that may hold rows of the records, by their statistics in the log. They are of the record
        that a row names first. Of rows that name several, those in the footer of each file are looked at."""
        listed = table_files(version)
        if not listed.num_rows or not self.records:
            return
        chosen = _may_name(listed, self.records)
        several = has_rows_of_several(state.transactions)
        for number, file in enumerate(listed.to_pylist()):
            path = unquote(file["path"])
            if not chosen[number] and several and path not in self._anchored:
                self._anchored[path] = self._may_be_anchored(path)
            if chosen[number] or self._anchored.get(path):
                if not is_removable(file["path"]):
                    raise ConfigError(
                        f"the table at {scrub_address(self.table.uri)} may have older rows in the file {path}, which "
                        f"another engine has written. Its log spells this path in a way in which Ackline can't remove "
                        f"the file. Write the table anew, or write `rows: all` for the output",
                        key="outputs",
                    )
                yield {**file, "path": path}

    def _may_be_anchored(self, path: str) -> bool:
        with self.table.storage.filesystem.open_input_file(path) as stream, pq.ParquetFile(stream) as content:
            footer = content.metadata
        for group in map(footer.row_group, range(footer.num_row_groups)):
            columns = [group.column(number) for number in range(footer.num_columns)]
            of = {c.path_in_schema.rsplit(".", 1)[-1]: c for c in columns if c.path_in_schema.startswith("_anchors.")}
            if "offset" not in of or of["offset"].num_values <= group.num_rows:
                continue  # each row names one record at most, which `_offset` names
            stats = [of[name].statistics for name in ("topic", "partition", "offset")]
            if any(each is None or not each.has_min_max for each in stats):
                return True
            bounds = {f"{bound}.{name}": pa.array([getattr(each, bound)]) for bound in ("min", "max")
                      for name, each in zip(("_topic", "_partition", "_offset"), stats, strict=True)}  # fmt: skip
            if _may_name(pa.table(bounds), self.records)[0]:
                return True
        return False

    # ---- which rows -------------------------------------------------------------------------------------------------

    def _rows_of(self, version: DeltaTable, file: Mapping[str, Any]) -> tuple[int, dict[TopicPartition, set[int]]]:
        """Returns how many rows of a file are of the records alone, and the records that others name beside them."""
        if file["path"] not in self._chosen:
            total, number, related = 0, 0, dict[TopicPartition, set[int]]()
            for rows in self._read(version, file, _OF_RECORD):
                total += rows.num_rows
                number += int(self._chosen_of(rows, related).sum())
            if file.get("num_records") not in (None, total):
                raise FatalError(
                    f"the file {file['path']} of the table at {scrub_address(self.table.uri)} holds {total} rows, and "
                    f"the log states {file['num_records']}. Restore it from a backup"
                )
            self._chosen[file["path"]] = number, related
        return self._chosen[file["path"]]

    def _chosen_of(self, rows: pa.Table, related: dict[TopicPartition, set[int]]) -> Bools:
        """Returns which rows are of the records alone. Adds to `related` the records that others name beside them."""
        chosen = _are_of(rows["_topic"], rows["_partition"], rows["_offset"], self.records)
        own = np.flatnonzero(chosen)
        chosen[own] &= ~self._in_older_topics(rows.take(pa.array(own)), rows["_topic"].take(pa.array(own)))
        anchors = rows["_anchors"].combine_chunks()
        several = np.flatnonzero(pc.fill_null(pc.list_value_length(anchors), 0).to_numpy(zero_copy_only=False) > 1)
        if len(several):
            chosen[several] = self._are_whole(rows.take(pa.array(several)), related)
        return chosen

    def _are_whole(self, rows: pa.Table, related: dict[TopicPartition, set[int]]) -> Bools:
        """Returns which of these rows, of several records each, are of the records alone.

        A row is of those that were acked when it was published. One in flight may have been acked since; within one
        lane and epoch the turn that acks it now ends that attempt, or makes another one after it failed, so the row
        stays. One that failed is none: its retry has rows of its own. If another ledger has published under the name of
        the lane, an attempt in flight may be that one's, which this ledger does not end. A topic that was made again
        has no such record.
        """
        anchors = rows["_anchors"].combine_chunks()
        parents = pc.list_parent_indices(anchors).to_numpy()
        of_row = pc.list_flatten(anchors)
        topics, partitions, offsets = (of_row.field(name) for name in ("topic", "partition", "offset"))
        own = np.zeros(len(rows), np.bool_)
        if self.turn is not None and self._of_one_ledger:
            same = pc.and_(pc.equal(rows["_lane"], self.turn.lane), pc.equal(rows["_epoch"], self.turn.epoch))
            own = pc.fill_null(same, False).to_numpy()
        acked, in_flight = (
            pc.fill_null(pc.equal(of_row.field("outcome"), each.value), False).to_numpy(zero_copy_only=False)
            for each in (Outcome.ACKED, Outcome.IN_FLIGHT)
        )
        origin = (acked | (in_flight & ~own[parents])) & ~self._in_older_topics(rows.take(pa.array(parents)), topics)
        again = origin & _are_of(topics, partitions, offsets, self.records)
        origins, hits = (np.bincount(parents[each], minlength=len(rows)) for each in (origin, again))
        partly = (hits > 0) & (hits < origins)
        others = pa.array(np.flatnonzero(origin & ~again & partly[parents]))
        beside = pa.table({"t": topics, "p": partitions, "o": offsets}).take(others)
        for topic, partition, offset in zip(*(column.to_pylist() for column in beside.columns), strict=True):
            related.setdefault(TopicPartition(topic, partition), set()).add(offset)
        whole: Bools = (hits > 0) & (hits == origins)
        return whole

    def _in_older_topics(self, rows: pa.Table, topics: Any) -> Bools:
        """Returns which of `rows` are of a topic, each of the one in `topics`, that was made again since."""
        found = np.zeros(len(rows), np.bool_)
        keys = pa.table({"lane": rows["_lane"], "epoch": rows["_epoch"], "topic": topics})
        for key in keys.group_by(keys.column_names).aggregate([]).to_pylist():
            if older := self.older_topics(key["lane"], key["epoch"]).get(key["topic"]):
                same = reduce(pc.and_, (pc.equal(keys[name], value) for name, value in key.items()))
                found |= pc.fill_null(same, False).to_numpy() & np.isin(rows["_turn"].to_numpy(), older)
        return found

    def _read(
        self, version: DeltaTable, file: Mapping[str, Any], columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yields the rows of a file, a batch at a time. A column that was added after it was written is null."""
        format_ = ds.ParquetFileFormat(READ_OPTIONS, SCAN_OPTIONS)
        filesystem, schema = self.table.storage.filesystem, pa.schema(version.schema().to_arrow())
        guarantee = partition_guarantee(file, version.metadata().partition_columns)
        fragment = format_.make_fragment(file["path"], filesystem, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], schema, format_, filesystem)
        names = list(columns) if columns is not None else schema.names
        for batch in dataset.to_batches(columns=names, batch_readahead=1, fragment_readahead=1):
            yield pa.table(batch).cast(pa.schema([schema.field(name).remove_metadata() for name in names]))

    # ---- the files without them -------------------------------------------------------------------------------------

    def _rewritten(self, version: DeltaTable, file: Mapping[str, Any], removed: int) -> Iterator[Action]:
        """Yields the actions that replace a file by one without `removed` of its rows, or by none."""
        partitions = version.metadata().partition_columns
        texts = {name: partition_text(file[f"partition.{name}"]) for name in partitions}
        now = int(time.time() * 1000)
        yield RemoveAction(file["path"], True, now, file["size_bytes"], texts)
        schema = pa.schema([field.remove_metadata() for field in pa.schema(version.schema().to_arrow())])
        own = pa.schema([field for field in schema if field.name not in texts])
        writer, kept = DataFileWriter(self.table.storage, f"{partition_path(texts)}{uuid.uuid4()}.parquet", own), 0
        try:
            for rows in self._read(version, file):
                others = rows.filter(pa.array(~self._chosen_of(rows, {}))).select(own.names)
                kept += others.num_rows
                removed -= rows.num_rows - others.num_rows
                if others.num_rows:
                    writer.write(others, OUTPUT_LAYOUT.rows)
        except BaseException:
            writer.discard()
            raise
        if removed or not kept:
            writer.discard()
        if removed:
            raise FatalError(f"the file {file['path']} of {scrub_address(self.table.uri)} changed while it was read")
        if kept:
            done = writer.finish()
            yield AddAction(done.path, done.size, texts, done.modification_time, True, done.stats)


def older_topics_of(store: LedgerStore, topic_ids: Mapping[str, str]) -> OlderTopics:
    """Returns what tells rows of the topics of these ids from those of older topics of the same names. It reads the
    plans of an epoch once. Of a lane whose tables are gone nothing is known: its rows count as those of the topics."""
    return cache(lambda lane, epoch: store.other_lane(lane).turns_in_older_topics(epoch, topic_ids))


def rows_to_replace(adapters: Adapters, records: Records, topic_ids: Mapping[str, str]) -> dict[str, Found]:
    """Returns by output table what it holds of records, in the topics of these ids, that are to be handled again, for
    those tables that keep the rows of the newest handling alone. Raises ConfigError if they can't be removed, and
    FatalError or TransientError if a table can't be read."""
    found, older_topics = dict[str, Found](), older_topics_of(adapters.store, topic_ids)
    for output in outputs_of(adapters) if records else ():
        if output.table is None:
            continue
        # Of a shadow those of the real table, which its promotion will replace.
        shadow = adapters.pipeline.shadow
        name = output.table if shadow is None else real_table(output.table, shadow)
        table = table_of(adapters.store, name)
        if (output.rows or table.kept()) is not Rows.NEWEST:
            continue
        with table.errors():
            if table.state() is not None:
                older = OlderRows(table, records, older_topics)
                found[name] = older.at_newest(older.find)
                if found[name].rows and shadow is None:
                    table.check_replaceable(adapters.pipeline.name)
    return found


def _may_name(files: pa.Table, records: Records) -> Bools:
    """Returns which files may hold a row that names one of the records, given the bounds of their columns. A bound that
    is not known allows each value."""
    chosen = np.zeros(files.num_rows, np.bool_)
    low, high = (_bound(files, name, "_offset", limit) for name, limit in (("min", _LEAST), ("max", _MOST)))
    for (topic, partition), (starts, ends) in records.items():
        possible = np.ones(files.num_rows, np.bool_)
        for name, value in (("_topic", topic), ("_partition", partition)):
            for column, compare in ((f"min.{name}", pc.less_equal), (f"max.{name}", pc.greater_equal),
                                    (f"partition.{name}", pc.equal)):  # fmt: skip
                if column in files.column_names and not pa.types.is_null(files[column].type):
                    possible &= pc.fill_null(compare(files[column], value), True).to_numpy()
        index = np.searchsorted(ends, low, side="right")  # of the first range that ends above the lowest offset
        first = np.append(starts, _MOST)[index]
        chosen |= possible & (first <= high) & (index < len(starts))
    return chosen


_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def _bound(files: pa.Table, bound: str, name: str, unknown: int) -> Int64s:
    for column in (f"{bound}.{name}", f"partition.{name}"):
        if column in files.column_names and not pa.types.is_null(files[column].type):
            found: Int64s = pc.fill_null(files[column].cast(pa.int64()), unknown).to_numpy()
            return found
    return np.full(files.num_rows, unknown)


def _are_of(topics: Any, partitions: Any, offsets: Any, records: Records) -> Bools:
    """Returns which rows name one of the records."""
    found = np.zeros(len(topics), np.bool_)
    numbers: npt.NDArray[Any] = pc.fill_null(partitions, -1).to_numpy()
    places: Int64s = pc.fill_null(offsets, -1).to_numpy()
    for topic in {topic for topic, _ in records}:
        of_topic = pc.fill_null(pc.equal(topics, topic), False).to_numpy(zero_copy_only=False)
        if not of_topic.any():
            continue
        for partition in np.unique(numbers[of_topic]).tolist():
            if (ranges := records.get(TopicPartition(topic, partition))) is not None:
                rows = np.flatnonzero(of_topic & (numbers == partition))
                found[rows] = index_of_range(places[rows], ranges) >= 0
    return found
