"""Questions to the audit table: which rows, in which order, and those of all records that have one key.

A row of an attempt holds the hash of its record's key. A decision does not, because settle decides by offsets alone,
nor does a row from before the hash was turned on. Another row gives their record the hash: its offset finds them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from operator import and_, or_
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.audit.scan import DECISION, LaneScanner, Scan, comes_after, first_rows
from ackline.delta.bloom import groups_with
from ackline.delta.reads import dataset_of, has_value
from ackline.forms.arguments import PartitionChoice
from ackline.handler import SOURCE
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import LaneTables, lanes_of
from ackline.tables.schemas import OUTCOMES, TIME

V = TypeVar("V", str, int)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows of a pipeline to return. None means any."""

    topic: str | None = None
    partition: int | None = None
    offsets: OffsetRange | None = None
    outcome: str | None = None
    run_id: str | None = None
    turn: int | None = None
    limit: int | None = None
    everything: bool = False
    """Whether rows that are not effective are returned too."""
    lane: str | None = None
    epoch: int | None = None
    error_class: str | None = None
    """Empty: rows without an error class."""
    attempt: int | None = None
    since: datetime | None = None
    """Only rows whose `handled_at` is this time or later."""
    choice: PartitionChoice = field(default_factory=PartitionChoice)
    """Only these partitions. It may name several; `topic` and `partition` name one."""
    as_of: datetime | int | None = None
    """The rows as they were then: those of turns settled by this time, or those in this version of the lane's outcomes.
    With `everything`, a time leaves out the rows with a later `handled_at`."""
    key_hash: int | None = None
    """Only rows about records whose key has this hash (`pipeline.properties.key_hash`): attempts, and decisions."""
    newest_first: bool = False
    """Whether the newest turn comes first. In a turn, offsets ascend."""
    step: str | None = None
    """Only attempts that this step has ended. The message of the row begins with `step NAME: `, unless the step is
    `source`."""


COLUMNS = [name for name in OUTCOMES.names if name != "plan_date"]
PAGE_ROWS = 100_000
"""Rows that are held at a time when there is no limit. Each page reads the files again that may hold its rows."""
_PRUNED_BY = ("topic", "partition", "turn", "outcome", "epoch", "attempt")
"""Columns whose statistics can rule a file out. Run ids have none worth reading."""


def audit_rows(root: str, pipeline: str, criteria: AuditFilter) -> Iterator[dict[str, Any]]:
    """Yields rows of `outcomes` of all lanes, sorted by topic, partition, offset and time, `criteria.limit` at most.

    If `criteria` chooses one offset, its rows are sorted by time alone, those of ranges that contain it included; with
    `criteria.newest_first`, all rows are sorted by day and turn. The key `effective` of a row is True or False. Holds
    PAGE_ROWS rows at a time, or `limit` if that is less, and opens no file beyond the last row. Raises FatalError if
    the tables can't be read, and ConfigError if they have the first layout.
    """
    for page in audit_pages(root, pipeline, criteria):
        for batch in page.to_batches(1_000):
            yield from batch.to_pylist()


def audit_pages(
    root: str, pipeline: str, criteria: AuditFilter, lanes: Sequence[LaneScanner] | None = None
) -> Iterator[pa.Table]:
    """Yields the rows of `audit_rows` in tables of PAGE_ROWS at most, read by the scanners `lanes` or by new ones."""
    if lanes is None:
        found = lanes_of(root, pipeline)
        lanes = [
            LaneScanner(LaneTables(root, pipeline, lane.lane)) for lane in found if criteria.lane in (None, lane.lane)
        ]
    order, wanted, left, offsets = _order(criteria), _wanted(criteria), criteria.limit, criteria.offsets
    descending = 4 if criteria.newest_first else 0  # the columns of the turn
    pruned_by = {name: value for name, value in _named_columns(criteria).items() if name in _PRUNED_BY} or None
    as_of = criteria.as_of
    if criteria.key_hash is not None:
        # Of all lanes, because one of them may have handled the record before keys were hashed.
        of_key = rows_of_key(
            [lane.folder for lane in lanes_of(root, pipeline)], criteria.key_hash, _partitions(criteria)
        )
        wanted, offsets = wanted & of_key.wanted, offsets or of_key.offsets
        if of_key.offsets is None:
            return
    after: ds.Expression | None = None
    while left is None or left > 0:
        limit = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page_wanted = wanted if after is None else wanted & after
        scan = Scan(
            [*COLUMNS, "plan_date"],
            page_wanted,
            order,
            limit,
            pruned_by,
            offsets,
            criteria.everything,
            descending,
            version=as_of if isinstance(as_of, int) else None,
            settled_by=as_of if isinstance(as_of, datetime) else None,
        )
        page = first_rows(lanes, scan)
        if page is None:
            return
        yield page.drop([DECISION, "plan_date"])
        if page.num_rows < limit:
            return
        after = comes_after({name: page[name][-1].as_py() for name in order}, descending)
        left = None if left is None else left - page.num_rows


def _order(criteria: AuditFilter) -> list[str]:
    """Returns the columns by which rows are sorted.

    Turns give the order in time, not `handled_at`: executors have clocks of their own, and `--now` fixes the clock of a
    whole run. In a turn, settle makes decisions after replay has made the attempts. Turns of two lanes have no common
    order, so newest first goes by the day of the plan, and then by lane.
    """
    if criteria.newest_first:
        return ["plan_date", "lane", "epoch", "turn", "topic", "partition", "offset", DECISION, "attempt", "outcome"]
    by_offset = criteria.offsets is None or len(criteria.offsets) > 1
    return ["topic", "partition", *(["offset"] if by_offset else []), "lane", "epoch", "turn", DECISION, "attempt",
            *([] if by_offset else ["offset"]), "outcome"]  # fmt: skip


def _named_columns(criteria: AuditFilter) -> dict[str, str | int | None]:
    """Returns the columns that must have one value, with that value; None is null."""
    names = ("outcome", "run_id", "turn", "lane", "epoch", "error_class", "attempt")
    named: Mapping[str, str | int | None] = {
        "topic": _only(criteria.topic, criteria.choice.topics),
        "partition": _only(criteria.partition, criteria.choice.partitions),
        **{name: getattr(criteria, name) for name in names},
    }
    without_class = {"error_class": None} if criteria.error_class == "" else {}
    return {name: value for name, value in named.items() if value is not None} | without_class


def _only(named: V | None, chosen: Sequence[V]) -> V | None:
    """Returns the one value that a row must have; None if it may have any, or any of several."""
    return chosen[0] if named is None and len(chosen) == 1 else named


def _wanted(criteria: AuditFilter) -> ds.Expression:
    named = _named_columns(criteria).items()
    wanted = reduce(and_, (has_value(name, value) for name, value in named), _partitions(criteria))
    if criteria.since is not None:
        wanted = wanted & (ds.field("handled_at") >= pa.scalar(criteria.since, TIME))
    if criteria.everything and isinstance(criteria.as_of, datetime):
        wanted = wanted & (ds.field("handled_at") <= pa.scalar(criteria.as_of, TIME))
    if criteria.step is not None:
        begins = "step " if criteria.step == SOURCE else f"step {criteria.step}: "
        of_step = pc.starts_with(pc.coalesce(ds.field("error_message"), pa.scalar("")), begins)
        wanted = wanted & (~of_step if criteria.step == SOURCE else of_step)
    if criteria.offsets is not None:  # a row for a range is wanted if the range holds any of the offsets
        end = pc.coalesce(ds.field("end_offset"), ds.field("offset") + 1)
        wanted = wanted & (ds.field("offset") < criteria.offsets.end) & (end > criteria.offsets.start)
    return wanted


def _partitions(criteria: AuditFilter) -> ds.Expression:
    wanted = ds.scalar(True)
    for name, values in (("topic", criteria.choice.topics), ("partition", criteria.choice.partitions)):
        if values:
            wanted = wanted & ds.field(name).isin(values)
    return wanted


def displayed_values(row: Mapping[str, Any], columns: Iterable[str]) -> list[Any]:
    """Returns these columns of a row for a table that a person reads. Attempt 0, of a decision, becomes None."""
    return [None if name == "attempt" and row[name] == 0 else row[name] for name in columns]


_KEY_COLUMNS = ["topic", "partition", "offset", "end_offset"]
_OTHERS = ("end_offset", "key_hash")
"""Columns whose rows are looked at whatever their hash: those of ranges, each of which may contain a record that has
the key, and those of version 0.2.0, which has stored the hash as text."""
_READERS = 16
"""How many files are looked into at once: an object store takes much longer to answer than a file to be read."""


class KeyRows(NamedTuple):
    """The filter of all rows about records with one key, and a range with these records; None if there is none."""

    wanted: ds.Expression
    offsets: OffsetRange | None


def rows_of_key(folders: Iterable[str], key_hash: int, chosen: ds.Expression) -> KeyRows:
    """Returns the filter of all rows about records whose key has this hash, in the lanes with these folders. `chosen`
    limits the partitions. Raises FatalError if a table can't be read."""
    wanted = chosen & (_has_hash(key_hash) | ds.field("end_offset").is_valid())
    tables = [_candidates(AuditTable(folder, "outcomes"), key_hash, wanted) for folder in folders]
    rows = pa.concat_tables([OUTCOMES.empty_table().select(_KEY_COLUMNS), *tables])
    of_records = rows.filter(pc.is_null(rows["end_offset"]))
    ranges = rows.filter(pc.is_valid(rows["end_offset"]))
    if not of_records.num_rows:
        return KeyRows(ds.scalar(False), None)
    of_partitions = [_of_partition(tp, offsets, ranges, key_hash) for tp, offsets in _offsets(of_records)]
    bounds = pc.min_max(of_records["offset"]).as_py()
    return KeyRows(reduce(or_, of_partitions), OffsetRange(bounds["min"], bounds["max"] + 1))


def _candidates(table: AuditTable, key_hash: int, wanted: ds.Expression) -> pa.Table:
    """Returns the rows of a table that match `wanted`. Reads the row groups that the Bloom filter of the hashes allows,
    and those that have a value in one of the columns _OTHERS."""
    version = table.open()
    if version is None:
        return OUTCOMES.empty_table().select(_KEY_COLUMNS)
    with table.errors(), ThreadPoolExecutor(_READERS) as pool:
        dataset = dataset_of(table, version, ("topic", "partition"))
        files = list(dataset.get_fragments(filter=wanted))
        groups_of = partial(groups_with, table.storage, column="key_hash64", number=key_hash, others=_OTHERS)
        groups = pool.map(groups_of, [file.path for file in files])
        parts = [file.subset(row_group_ids=few) for file, few in zip(files, groups, strict=True) if few]
        chosen = ds.FileSystemDataset(parts, dataset.schema, dataset.format, dataset.filesystem)
        return chosen.to_table(columns=_KEY_COLUMNS, filter=wanted)


def _has_hash(key_hash: int) -> ds.Expression:
    """Returns the filter of the rows with this hash, as a number or, in a row of version 0.2.0, as text."""
    as_text = pc.starts_with(ds.field("key_hash"), f"{key_hash % 2**64:016x}")
    return (ds.field("key_hash64") == key_hash) | pc.coalesce(as_text, pa.scalar(False))


def _offsets(rows: pa.Table) -> Iterable[tuple[TopicPartition, npt.NDArray[np.int64]]]:
    for found in rows.group_by(["topic", "partition"]).aggregate([("offset", "distinct")]).to_pylist():
        tp = TopicPartition(found["topic"], found["partition"])
        yield tp, np.sort(np.array(found["offset_distinct"], dtype=np.int64))


def _of_partition(tp: TopicPartition, offsets: npt.NDArray[np.int64], ranges: pa.Table, key_hash: int) -> ds.Expression:
    """Returns the filter of the rows about the records at these offsets. A row with another hash is left out: it is
    about a record of the topic before it was created again."""
    in_partition = (ds.field("topic") == tp.topic) & (ds.field("partition") == tp.partition)
    same_or_unknown = _has_hash(key_hash) | (ds.field("key_hash64").is_null() & ds.field("key_hash").is_null())
    # Not `isin(pa.array(offsets))`, which would keep the array of NumPy. A thread of Arrow can be the last to free the
    # filter, and to free such an array it takes Python's lock: while Python ends, that aborts the process.
    at_offset = ds.field("end_offset").is_null() & ds.field("offset").isin(offsets.tolist()) & same_or_unknown
    own = ranges.filter((pc.field("topic") == tp.topic) & (pc.field("partition") == tp.partition))
    starts, ends = own["offset"].to_numpy(), own["end_offset"].to_numpy()
    holding = np.searchsorted(offsets, starts) < np.searchsorted(offsets, ends)
    around = ds.scalar(False)
    for start, end in sorted({*zip(starts[holding].tolist(), ends[holding].tolist(), strict=True)}):
        around = around | ((ds.field("offset") == start) & (ds.field("end_offset") == end))
    return in_partition & (at_offset | around)
