"""The offsets of a lane that ended with a given outcome: what a backfill by outcome chooses from.

The rows may be millions, so they stay columns: an offset costs 16 bytes until neighbours are joined.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.pruned_read import Where, as_expression
from ackline.audit.table import AuditTable
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.range_arrays import Int64s, Ranges, union
from ackline.turns import TurnKind

RangesByPartition = dict[TopicPartition, Ranges]
_COLUMNS = ["topic", "partition", "offset", "end_offset", "turn"]
_TERMINAL = [outcome.value for outcome in Outcome if outcome.terminal]


@dataclass(frozen=True, slots=True)
class OutcomeFilter:
    """Which terminal outcomes are wanted; None means any."""

    outcome: str | None = None
    error_class: str | None = None
    run_id: str | None = None


def read_terminal_offsets(
    folder: str, epoch: int, last: int | None, topic_ids: Mapping[str, str], wanted: OutcomeFilter | None
) -> tuple[RangesByPartition, RangesByPartition]:
    """Returns the offsets with a wanted terminal outcome in the topics of these ids, and those in older topics.

    `folder` is that of the lane's tables, `last` the last settled turn of the epoch. Rows of void turns do not count.
    """
    outcomes = AuditTable(folder, "outcomes")
    version = outcomes.open()
    if version is None or last is None or not topic_ids:
        return {}, {}
    void = _void_turns(folder, epoch)
    older = _turns_in_older_topics(folder, epoch, topic_ids)
    found: tuple[dict[TopicPartition, list[Ranges]], ...] = ({}, {})
    try:
        where: Where = {"epoch": epoch, **_named(wanted)}
        chosen = as_expression(where) & (ds.field("turn") <= last) & ds.field("topic").isin(list(topic_ids))
        batches = outcomes.dataset(version, where).to_batches(
            columns=_COLUMNS, filter=chosen & ds.field("outcome").isin(_TERMINAL), batch_readahead=2
        )
        for batch in batches:
            effective = pc.invert(pc.is_in(batch.column("turn"), pa.array(void, pa.int64())))
            for tp, turns, ranges in _split(batch.filter(effective)):
                in_older = np.isin(turns, older.get(tp.topic, []))
                for is_older, rows in ((0, ~in_older), (1, in_older)):
                    if rows.any():
                        starts, ends = (bounds[rows] for bounds in ranges)
                        found[is_older].setdefault(tp, []).append(union(starts, ends))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.error(error) from error
    current, older_topics = ({tp: _union_of(parts) for tp, parts in sorted(by_tp.items())} for by_tp in found)
    return current, older_topics


def _named(wanted: OutcomeFilter | None) -> dict[str, str | int]:
    if wanted is None:
        return {}
    values = {"outcome": wanted.outcome, "error_class": wanted.error_class, "run_id": wanted.run_id}
    return {name: value for name, value in values.items() if value is not None}


def _void_turns(folder: str, epoch: int) -> list[int]:
    rows = AuditTable(folder, "settlements").read({"epoch": epoch, "kind": TurnKind.VOID.value}, ["turn"])
    turns: list[int] = pc.unique(rows["turn"]).to_pylist()
    return turns


def _turns_in_older_topics(folder: str, epoch: int, topic_ids: Mapping[str, str]) -> dict[str, list[int]]:
    """Returns the turns that were planned in an older topic of the same name, by topic. Statistics prune most files."""
    plans = AuditTable(folder, "plans")
    version = plans.open()
    if version is None:
        return {}
    other = ds.scalar(False)
    for topic, topic_id in topic_ids.items():
        other = other | ((ds.field("topic") == topic) & (ds.field("topic_id") != topic_id))
    try:
        rows = plans.dataset(version, {"epoch": epoch}).to_table(
            columns=["topic", "turn"], filter=(ds.field("epoch") == epoch) & other
        )
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise plans.error(error) from error
    turns: dict[str, list[int]] = {}
    for row in rows.group_by(["topic", "turn"]).aggregate([]).to_pylist():
        turns.setdefault(row["topic"], []).append(row["turn"])
    return turns


def _split(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Int64s, Ranges]]:
    """Yields each topic-partition of a batch with the turns and the ranges of its rows."""
    if not batch.num_rows:
        return
    table = pa.Table.from_batches([batch])
    starts = table["offset"]
    ends = pc.coalesce(table["end_offset"], pc.add(starts, 1))
    for pair in table.group_by(["topic", "partition"]).aggregate([]).to_pylist():
        rows = pc.and_(pc.equal(table["topic"], pair["topic"]), pc.equal(table["partition"], pair["partition"]))
        turns, low, high = (column.filter(rows).to_numpy() for column in (table["turn"], starts, ends))
        yield TopicPartition(pair["topic"], pair["partition"]), turns, (low, high)


def _union_of(parts: list[Ranges]) -> Ranges:
    return union(np.concatenate([starts for starts, _ in parts]), np.concatenate([ends for _, ends in parts]))
