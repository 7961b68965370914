"""Queries of the audit table.

A row is effective once a settlement names its turn, unless that settlement is void.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.audit.layout import lanes_of
from ackline.audit.pruned_read import Where
from ackline.audit.scan import DECISION, LaneScanner, Scan, comes_after, first_rows
from ackline.audit.schemas import OUTCOMES
from ackline.offsets import OffsetRange


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
PAGE_ROWS = 100_000
"""Rows that are held at a time when there is no limit. Each page reads the files again that may hold its rows."""
_PRUNED_BY = ("topic", "partition", "turn", "outcome")
"""Columns whose statistics can rule a file out. Run ids have none worth reading."""


def audit_rows(root: str, pipeline: str, criteria: AuditFilter) -> Iterator[dict[str, Any]]:
    """Yields rows of `outcomes` of all lanes, sorted by topic, partition, offset and time, `criteria.limit` at most.

    If `criteria` chooses one offset, its rows are sorted by time alone, those of ranges that contain it included. The
    key `effective` of a row is True or False. Holds PAGE_ROWS rows at a time, or `limit` if that is less, and opens no
    file beyond the last row. Raises FatalError if the tables can't be read, and ConfigError if they have the first
    layout.
    """
    lanes = [LaneScanner(lane.folder) for lane in lanes_of(root, pipeline)]
    order, wanted, left = _order(criteria), _wanted(criteria), criteria.limit
    after: ds.Expression | None = None
    while left is None or left > 0:
        limit = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page_wanted = wanted if after is None else wanted & after
        scan = Scan(COLUMNS, page_wanted, order, limit, _pruning(criteria), criteria.offsets, criteria.everything)
        page = first_rows(lanes, scan)
        if page is None:
            return
        for batch in page.drop([DECISION]).to_batches(1_000):
            yield from batch.to_pylist()
        if page.num_rows < limit:
            return
        after = comes_after({name: page[name][-1].as_py() for name in order})
        left = None if left is None else left - page.num_rows


def _order(criteria: AuditFilter) -> list[str]:
    """Returns the columns by which rows are sorted.

    Turns give the order in time, not `handled_at`: executors have clocks of their own, and `--now` fixes the clock of a
    whole run. In a turn, settle makes decisions after replay has made the attempts.
    """
    by_offset = criteria.offsets is None or len(criteria.offsets) > 1
    return ["topic", "partition", *(["offset"] if by_offset else []), "lane", "epoch", "turn", DECISION, "attempt",
            *([] if by_offset else ["offset"]), "outcome"]  # fmt: skip


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
    named = _named_columns(criteria).items()
    wanted = reduce(and_, (ds.field(name) == value for name, value in named), ds.scalar(True))
    if criteria.offsets is not None:  # a row for a range is wanted if the range holds any of the offsets
        end = pc.coalesce(ds.field("end_offset"), ds.field("offset") + 1)
        wanted = wanted & (ds.field("offset") < criteria.offsets.end) & (end > criteria.offsets.start)
    return wanted


def displayed_values(row: Mapping[str, Any], columns: Iterable[str]) -> list[Any]:
    """Returns these columns of a row for a table that a person reads. A decision is no attempt: its number is None."""
    return [None if name == "attempt" and row[name] == 0 else row[name] for name in columns]


def json_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields rows with their times as ISO 8601 text, for JSON."""
    for row in rows:
        yield {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
