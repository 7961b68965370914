"""Queries of the audit table.

A row is effective once a settlement names its turn, unless that settlement is void.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.layout import lanes_of
from ackline.audit.schemas import OUTCOMES
from ackline.audit.table import AuditTable, Where
from ackline.offsets import OffsetRange
from ackline.turns import TurnKind


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


COLUMNS = [name for name in OUTCOMES.names if name != "plan_date"]
_NO_ROWS = OUTCOMES.empty_table().select(COLUMNS).append_column("effective", pa.array([], pa.bool_()))
_PRUNED_BY = ("topic", "partition", "turn", "outcome")
"""Columns whose statistics can rule a file out. Run ids have none worth reading."""


def audit_rows(root: str, pipeline: str, criteria: AuditFilter) -> list[dict[str, Any]]:
    """Returns rows of `outcomes` of all lanes, sorted by topic, partition, offset and time.

    If `criteria` chooses one offset, its rows are sorted by time alone, those of ranges that contain it included. Their
    key `effective` is True or False. Raises FatalError if the tables can't be read, and ConfigError if they have the
    first layout.
    """
    marked = pa.concat_tables([_rows_of_lane(lane.folder, criteria) for lane in lanes_of(root, pipeline)] or [_NO_ROWS])
    marked = _sorted_by_time(marked, by_offset=criteria.offsets is None or len(criteria.offsets) > 1)
    if criteria.limit is not None:
        marked = marked.slice(0, criteria.limit)
    rows: list[dict[str, Any]] = marked.to_pylist()
    return rows


def _rows_of_lane(folder: str, criteria: AuditFilter) -> pa.Table:
    outcomes = AuditTable(folder, "outcomes")
    version = outcomes.open()
    if version is None:
        return _NO_ROWS
    try:
        dataset = outcomes.dataset(version, _pruning(criteria))
        scanned = dataset.to_table(columns=COLUMNS, filter=_wanted(criteria))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.error(error) from error
    return _with_effective(scanned, folder, criteria.everything)


def _named_columns(criteria: AuditFilter) -> dict[str, str | int]:
    """Returns the columns that must have one value, with that value."""
    named: Mapping[str, str | int | None] = {
        "topic": criteria.topic,
        "partition": criteria.partition,
        "outcome": criteria.outcome,
        "run_id": criteria.run_id,
        "turn": criteria.turn,
    }
    return {name: value for name, value in named.items() if value is not None}


def _pruning(criteria: AuditFilter) -> Where | None:
    return {name: value for name, value in _named_columns(criteria).items() if name in _PRUNED_BY} or None


def _wanted(criteria: AuditFilter) -> ds.Expression:
    wanted = reduce(
        and_, (ds.field(name) == value for name, value in _named_columns(criteria).items()), ds.scalar(True)
    )
    if criteria.offsets is not None:  # a row for a range is wanted if the range holds any of the offsets
        end = pc.coalesce(ds.field("end_offset"), ds.field("offset") + 1)
        wanted = wanted & (ds.field("offset") < criteria.offsets.end) & (end > criteria.offsets.start)
    return wanted


def _with_effective(rows: pa.Table, folder: str, everything: bool) -> pa.Table:
    keys = ["lane", "epoch", "turn"]
    settled = AuditTable(folder, "settlements").read(None, [*keys, "kind"])
    counting = settled.filter(pc.not_equal(settled["kind"], TurnKind.VOID.value)).select(keys)
    counting = counting.group_by(keys).aggregate([])
    counting = counting.append_column("effective", pa.repeat(pa.scalar(True), counting.num_rows))
    joined = rows.join(counting, keys, join_type="left outer" if everything else "inner")
    marked = pc.fill_null(joined["effective"], False)
    return joined.set_column(joined.schema.get_field_index("effective"), "effective", marked)


def _sorted_by_time(rows: pa.Table, by_offset: bool) -> pa.Table:
    """Returns the rows by topic-partition, then by offset if `by_offset`, then in the order in which they were made.

    Turns give that order, not `handled_at`: executors have clocks of their own, and `--now` fixes the clock of a whole
    run. In a turn, settle makes decisions (attempt 0) after replay has made the attempts.
    """
    decision = pc.equal(rows["attempt"], 0)
    keys = ["topic", "partition", *(["offset"] if by_offset else []), "lane", "epoch", "turn", "decision", "attempt"]
    return rows.append_column("decision", decision).sort_by([(key, "ascending") for key in keys]).drop(["decision"])


def displayed_values(row: Mapping[str, Any], columns: Iterable[str]) -> list[Any]:
    """Returns these columns of a row for a table that a person reads. A decision is no attempt: its number is None."""
    return [None if name == "attempt" and row[name] == 0 else row[name] for name in columns]


def json_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields rows with their times as ISO 8601 text, for JSON."""
    for row in rows:
        yield {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
