"""Questions to the audit table. Rows count only once a settlement names their turn, and not when that one is void."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.schemas import OUTCOMES
from ackline.audit.table import AuditTable, matching
from ackline.offsets import OffsetRange
from ackline.turns import TurnKind


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What to show of a pipeline; None means any. `everything` shows rows that do not count, too."""

    topic: str | None = None
    partition: int | None = None
    offsets: OffsetRange | None = None
    outcome: str | None = None
    run_id: str | None = None
    turn: int | None = None
    limit: int | None = None
    everything: bool = False


COLUMNS = [name for name in OUTCOMES.names if name != "plan_date"]


def audit_rows(root: str, pipeline: str, asked: AuditFilter) -> list[dict[str, Any]]:
    """Rows of `outcomes` by topic, partition, offset and turn; each says under `effective` whether it counts."""
    outcomes = AuditTable(root, "outcomes")
    version = outcomes.open()
    if version is None:
        return []
    try:
        dataset = outcomes.dataset(version, _pruning(pipeline, asked))
        scanned = dataset.to_table(columns=COLUMNS, filter=_wanted(pipeline, asked))
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise outcomes.unreadable(error) from error
    found = _effective(scanned, root, pipeline, asked.everything)
    order = ["topic", "partition", "offset", "lane", "epoch", "turn", "attempt"]
    found = found.sort_by([(name, "ascending") for name in order])
    if asked.limit is not None:
        found = found.slice(0, asked.limit)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _pruning(pipeline: str, asked: AuditFilter) -> str:
    named: Mapping[str, str | int | None] = {
        "topic": asked.topic,
        "partition": asked.partition,
        "turn": asked.turn,
        "outcome": asked.outcome,
    }
    return matching(pipeline=pipeline, **{name: value for name, value in named.items() if value is not None})


def _wanted(pipeline: str, asked: AuditFilter) -> Any:
    wanted = ds.field("pipeline") == pipeline
    for name, value in (
        ("topic", asked.topic),
        ("partition", asked.partition),
        ("outcome", asked.outcome),
        ("run_id", asked.run_id),
        ("turn", asked.turn),
    ):
        if value is not None:
            wanted = wanted & (ds.field(name) == value)
    if asked.offsets is not None:  # a range row is shown where any of its offsets is asked for
        last = pc.coalesce(ds.field("end_offset"), ds.field("offset") + 1)
        wanted = wanted & (ds.field("offset") < asked.offsets.end) & (last > asked.offsets.start)
    return wanted


def _effective(rows: pa.Table, root: str, pipeline: str, everything: bool) -> pa.Table:
    keys = ["lane", "epoch", "turn"]
    settled = AuditTable(root, "settlements").read(matching(pipeline=pipeline), [*keys, "kind"])
    counting = settled.filter(pc.not_equal(settled["kind"], TurnKind.VOID.value)).select(keys)
    counting = counting.group_by(keys).aggregate([])
    counting = counting.append_column("effective", pa.array([True] * counting.num_rows))
    joined = rows.join(counting, keys, join_type="left outer" if everything else "inner")
    marked = pc.fill_null(joined["effective"], False)
    return joined.set_column(joined.schema.get_field_index("effective"), "effective", marked)


def json_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same with times as ISO 8601 text."""
    for row in rows:
        yield {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in row.items()}
