"""Turns plans, settlements and decisions into rows of their tables, and back, as `schemas` declares each column."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.turns import (
    Marker,
    MarkerKind,
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
)
from ackline.tables.columns import Makers, rows_of, values_of
from ackline.tables.schemas import OUTCOME_COLUMNS, OUTCOMES, PLAN_COLUMNS, PLANS, SETTLEMENT_COLUMNS

_ROWS = 1_000
"""How many decisions are Python objects at a time: as such, one takes several times as much memory as in Arrow."""


def plan_date(planned_at: datetime) -> date:
    """Returns the UTC day on which a turn was planned: the partition column of all rows of that turn."""
    return planned_at.astimezone(UTC).date()


def turn_columns(turn: TurnId, day: date, run_id: str) -> dict[str, Any]:
    """Returns the columns that every table has: the turn, its day and its run."""
    return {
        "pipeline": turn.pipeline,
        "plan_date": day,
        "lane": turn.lane,
        "epoch": turn.epoch,
        "turn": turn.n,
        "run_id": run_id,
    }


def _committed(offset: int | None, metadata: str) -> Committed | None:
    return None if offset is None else Committed(offset, metadata)


_MAKERS: Makers = {"whole.turn": TurnId, "tp": TopicPartition, "part.committed": _committed}


def plan_rows(plan: Plan) -> pa.Table:
    """Returns a plan as rows of `plans`, one for each topic-partition."""
    return rows_of(PLAN_COLUMNS, plan, plan_date(plan.planned_at), sorted(plan.partitions.items()))


def plan_from_rows(rows: pa.Table) -> Plan:
    """Returns the plan that these rows hold. There is at least one."""
    makers: Makers = {**_MAKERS, "part": PlannedPartition, "part.fresh": OffsetRange, "part.log": LogBounds}
    whole, partitions = values_of(PLAN_COLUMNS, rows, makers)
    return Plan(**whole, partitions=partitions)


def settlement_rows(settlement: Settlement, day: date) -> pa.Table:
    """Returns a settlement as rows of `settlements`, one for each topic-partition. `day` is that of its plan."""
    return rows_of(SETTLEMENT_COLUMNS, settlement, day, sorted(settlement.partitions.items()))


def settlement_from_rows(rows: pa.Table) -> Settlement:
    """Returns the settlement that these rows hold. There is at least one."""
    makers: Makers = {**_MAKERS, "part": SettledPartition, "part.state": PartitionState}
    whole, partitions = values_of(SETTLEMENT_COLUMNS, rows, makers)
    return Settlement(**whole, partitions=partitions)


class _Decided(NamedTuple):
    """What all decisions of a turn have in common."""

    turn: TurnId
    run_id: str


def decision_rows(
    turn: TurnId, day: date, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> pa.Table:
    """Returns the decisions of a turn as rows of `outcomes`: one for each record, or for each range of offsets.

    A turn may decide all records in flight at once, so few rows at a time are Python objects.
    """
    rows = ((tp, row) for tp, decided in sorted(decisions.items()) for row in decided)
    parts = [OUTCOMES.empty_table()]
    while part := list(islice(rows, _ROWS)):
        parts.append(rows_of(OUTCOME_COLUMNS, _Decided(turn, run_id), day, part))
    return pa.concat_tables(parts)


def without_markers(rows: pa.Table) -> pa.Table:
    """Returns the rows of `plans` that are part of a plan, and not a mark on the turn."""
    return rows.filter(pc.is_valid(rows["topic"]))


def marker_rows(plan: Plan, marker: Marker) -> pa.Table:
    """Returns a marker as one row of `plans` without a topic, so that no reader takes it for a part of the plan."""
    row = {
        **turn_columns(plan.turn, plan_date(plan.planned_at), marker.run_id),
        "kind": marker.kind.value,
        "settings": json.dumps({"by_operator": marker.by_operator, "pause": marker.pause}, sort_keys=True),
        "planned_at": marker.at,
        "actor": marker.actor,
        "reason": marker.reason,
    }
    return pa.Table.from_pylist([row], schema=PLANS)


def marker_from_rows(rows: pa.Table) -> Marker | None:
    """Returns the marker that these rows hold; None if there are none."""
    for row in rows.drop_columns(["retries"]).to_pylist():
        settings = json.loads(row["settings"])
        kind, at = MarkerKind(row["kind"]), row["planned_at"].astimezone(UTC)
        return Marker(kind, row["run_id"], at, row["actor"], row["reason"], settings["by_operator"], settings["pause"])
    return None
