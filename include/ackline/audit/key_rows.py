"""The rows of all records that have one key, by its hash.

A row of an attempt holds the hash. A decision does not, because settle decides by offsets alone, and a row from before
the hash was turned on does not either. Both belong to a record that another row gives the hash, so they are found by
its offset.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.file_bounds import dataset_of
from ackline.audit.schemas import OUTCOMES
from ackline.audit.table import AuditTable
from ackline.offsets import OffsetRange, TopicPartition

_COLUMNS = ["topic", "partition", "offset", "end_offset", "key_hash"]


class KeyRows(NamedTuple):
    """The filter of the rows, and a range that holds all their records; None if there is no record."""

    wanted: ds.Expression
    offsets: OffsetRange | None


def rows_of_key(folders: Iterable[str], key_hash: str, chosen: ds.Expression) -> KeyRows:
    """Returns the filter of all rows about records whose key has this hash, in the lanes with these folders.

    `chosen` limits the partitions. Raises FatalError if a table can't be read.
    """
    tables = [_rows(folder, key_hash, chosen) for folder in folders]
    rows = pa.concat_tables([OUTCOMES.empty_table().select(_COLUMNS), *tables])
    of_records = rows.filter(pc.is_valid(rows["key_hash"]))
    ranges = rows.filter(pc.is_null(rows["key_hash"]))
    if not of_records.num_rows:
        return KeyRows(ds.scalar(False), None)
    wanted = [_of_partition(tp, offsets, ranges, key_hash) for tp, offsets in _offsets(of_records)]
    bounds = pc.min_max(of_records["offset"]).as_py()
    return KeyRows(reduce(or_, wanted), OffsetRange(bounds["min"], bounds["max"] + 1))


def _rows(folder: str, key_hash: str, chosen: ds.Expression) -> pa.Table:
    """Returns the rows with the hash, and those of ranges, of one lane."""
    outcomes = AuditTable(folder, "outcomes")
    version = outcomes.open()
    wanted = chosen & ((ds.field("key_hash") == key_hash) | ds.field("end_offset").is_valid())
    try:
        if version is None:
            return OUTCOMES.empty_table().select(_COLUMNS)
        return dataset_of(outcomes, version).to_table(columns=_COLUMNS, filter=wanted)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.error(error) from error


def _offsets(rows: pa.Table) -> Iterable[tuple[TopicPartition, npt.NDArray[np.int64]]]:
    for found in rows.group_by(["topic", "partition"]).aggregate([("offset", "distinct")]).to_pylist():
        tp = TopicPartition(found["topic"], found["partition"])
        yield tp, np.sort(np.array(found["offset_distinct"], dtype=np.int64))


def _of_partition(tp: TopicPartition, offsets: npt.NDArray[np.int64], ranges: pa.Table, key_hash: str) -> ds.Expression:
    """Returns the filter of the rows about the records at these offsets. Another hash means another record: the topic
    was created again."""
    in_partition = (ds.field("topic") == tp.topic) & (ds.field("partition") == tp.partition)
    same_or_unknown = (ds.field("key_hash") == key_hash) | ds.field("key_hash").is_null()
    at_offset = ds.field("end_offset").is_null() & ds.field("offset").isin(pa.array(offsets)) & same_or_unknown
    own = ranges.filter((pc.field("topic") == tp.topic) & (pc.field("partition") == tp.partition))
    starts, ends = own["offset"].to_numpy(), own["end_offset"].to_numpy()
    holding = np.searchsorted(offsets, starts) < np.searchsorted(offsets, ends)
    around = ds.scalar(False)
    for start, end in sorted({*zip(starts[holding].tolist(), ends[holding].tolist(), strict=True)}):
        around = around | ((ds.field("offset") == start) & (ds.field("end_offset") == end))
    return in_partition & (at_offset | around)
