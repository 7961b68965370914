"""Turns plans, settlements and decisions into rows of their tables, and back."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.answers import AnswerReport
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState, PendingKind
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, V, ValuedRange, ValuedRanges, join
from ackline.ledger.pending import NEVER, PendingRuns, PendingState
from ackline.ledger.turns import (
    Marker,
    MarkerKind,
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.scrub import MESSAGE_LIMIT
from ackline.tables.schemas import OUTCOMES, PENDING, PLANS, SETTLEMENTS

_DICTS = 1_000
"""How many decisions are dicts at a time: a dict takes a kilobyte, a row of Arrow a fifth of that."""


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


def plan_rows(plan: Plan) -> pa.Table:
    """Returns a plan as rows of `plans`, one for each topic-partition."""
    same = {
        **turn_columns(plan.turn, plan_date(plan.planned_at), plan.run_id),
        "kind": plan.kind.value,
        "isolation": plan.isolation,
        "settings": json.dumps(plan.settings, sort_keys=True),
        "planned_at": plan.planned_at,
        "actor": plan.actor,
        "reason": plan.reason,
    }
    rows = [
        {
            **same,
            "topic": tp.topic,
            "partition": tp.partition,
            "topic_id": planned.topic_id,
            "start_offset": planned.fresh.start,
            "end_offset": planned.fresh.end,
            "floor": planned.floor,
            "complete_to": planned.complete_to,
            "log_start": planned.log.start,
            "log_end": planned.log.end,
            "why": planned.why,
            "committed": planned.committed.offset if planned.committed else None,
            "committed_metadata": planned.committed.metadata if planned.committed else None,
            "acknowledged_foreign_offset": planned.acknowledged_foreign_offset,
            "leader_epoch": planned.log.leader_epoch,
            "retries": _range_rows(planned.retries, lambda attempt: {"attempt": attempt}),
        }
        for tp, planned in sorted(plan.partitions.items())
    ]
    return pa.Table.from_pylist(rows, schema=PLANS)


def plan_from_rows(rows: pa.Table) -> Plan:
    """Returns the plan that these rows hold. There is at least one."""
    plain = rows.drop_columns(["retries"]).to_pylist()
    first = plain[0]
    partitions = {}
    for row, retries in zip(plain, _lists(rows["retries"]), strict=True):
        partitions[TopicPartition(row["topic"], row["partition"])] = PlannedPartition(
            row["topic_id"],
            OffsetRange(row["start_offset"], row["end_offset"]),
            tuple(ValuedRange(start, end, attempt) for start, end, attempt in _as_tuples(retries)),
            row["floor"],
            row["complete_to"],
            LogBounds(row["log_start"], row["log_end"], row["leader_epoch"]),
            row["why"],
            _committed(row["committed"], row["committed_metadata"]),
            row["acknowledged_foreign_offset"],
        )
    return Plan(
        _turn(first),
        TurnKind(first["kind"]),
        first["run_id"],
        _utc(first["planned_at"]),
        partitions,
        first["isolation"],
        json.loads(first["settings"]),
        first["actor"],
        first["reason"],
    )


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
        kind, at = MarkerKind(row["kind"]), _utc(row["planned_at"])
        return Marker(kind, row["run_id"], at, row["actor"], row["reason"], settings["by_operator"], settings["pause"])
    return None


def settlement_rows(settlement: Settlement, day: date) -> pa.Table:
    """Returns a settlement as rows of `settlements`, one for each topic-partition. `day` is that of its plan."""
    same = {
        **turn_columns(settlement.turn, day, settlement.run_id),
        "kind": settlement.kind.value,
        "actor": settlement.actor,
        "reason": settlement.reason,
        "settled_at": settlement.settled_at,
        "arguments": settlement.arguments or None,
        "answers": settlement.answers.encode() if settlement.answers else None,
        "outputs": settlement.outputs or None,
    }
    rows = [
        {
            **same,
            "topic": tp.topic,
            "partition": tp.partition,
            "topic_id": settled.topic_id,
            "old_floor": settled.old_floor,
            "new_floor": settled.state.floor,
            "complete_to": settled.state.complete_to,
            "counts": list(settled.counts.items()),
            "gaps": settled.gaps,
            "acknowledged_foreign_offset": settled.acknowledged_foreign_offset,
            "committed": settled.committed.offset if settled.committed else None,
            "committed_metadata": settled.committed.metadata if settled.committed else None,
            "evidence": settled.evidence,
            "paused": settled.paused,
            "metrics": None if settled.metrics is None else list(settled.metrics.items()),
            "totals": None if settled.totals is None else list(settled.totals.items()),
            "leader_epoch": settled.leader_epoch,
            # Not joined like other ranges: the value counts offsets of the whole range, so two ranges do not make one.
            "gaps_above_floor": [
                {"start_offset": known.start, "end_offset": known.end, "gaps": known.value}
                for known in settled.state.gaps_above_floor
            ],
            "ranges": None
            if settled.ranges is None
            else [{"start_offset": part.start, "end_offset": part.end} for part in settled.ranges],
        }
        for tp, settled in sorted(settlement.partitions.items())
    ]
    if rows and settlement.steps is not None:
        # In one row of the turn: a reader adds the values of several turns up without counting one of them twice.
        rows[0]["steps"] = settlement.steps.encode()
    index = SETTLEMENTS.get_field_index("pending")
    table = pa.Table.from_pylist(rows, schema=SETTLEMENTS.remove(index))
    pending = _pending_column([settled.state for _, settled in sorted(settlement.partitions.items())])
    return table.add_column(index, SETTLEMENTS.field(index), pending)


def settlement_from_rows(rows: pa.Table) -> Settlement:
    """Returns the settlement that these rows hold. There is at least one."""
    plain = rows.drop_columns(["pending"]).to_pylist()
    first = plain[0]
    partitions = {}
    for row, pending in zip(plain, _lists(rows["pending"]), strict=True):
        partitions[TopicPartition(row["topic"], row["partition"])] = SettledPartition(
            row["topic_id"],
            row["old_floor"],
            PartitionState(row["complete_to"], _pending_runs(pending), _gaps_above_floor(row.get("gaps_above_floor"))),
            dict(row["counts"]),
            row["gaps"],
            row["acknowledged_foreign_offset"],
            _committed(row["committed"], row["committed_metadata"]),
            row["evidence"],
            row["paused"],
            metrics=_map(row.get("metrics")),
            totals=_map(row.get("totals")),
            leader_epoch=row["leader_epoch"],
            ranges=_offset_ranges(row.get("ranges")),
        )
    return Settlement(
        _turn(first),
        TurnKind(first["kind"]),
        first["run_id"],
        _utc(first["settled_at"]),
        partitions,
        first["actor"],
        first["reason"],
        first.get("arguments") or "",
        AnswerReport.decode(first.get("answers")),
        first.get("outputs") or "",
        StepFigures.decode(next((row["steps"] for row in plain if row.get("steps")), None)),
    )


def decision_rows(
    turn: TurnId, day: date, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> pa.Table:
    """Returns the decisions of a turn as rows of `outcomes`: one for each record, or for each range of offsets.

    A turn may decide all records in flight at once, so few rows at a time are dicts.
    """
    rows = _decision_dicts(turn_columns(turn, day, run_id), decisions)
    parts = [OUTCOMES.empty_table()]
    while part := list(islice(rows, _DICTS)):
        parts.append(pa.Table.from_pylist(part, schema=OUTCOMES))
    return pa.concat_tables(parts)


def _decision_dicts(
    same: Mapping[str, Any], decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> Iterator[dict[str, Any]]:
    return (
        {
            **same,
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": row.offset,
            "end_offset": row.end_offset,
            "attempt": row.attempt,
            "outcome": row.outcome.value,
            "error_class": row.error_class,
            "error_message": row.reason[:MESSAGE_LIMIT] if row.reason else None,
            "handled_at": row.handled_at,
            "due": row.due,
            "answer": row.answer,
        }
        for tp, decided in sorted(decisions.items())
        for row in decided
    )


def _pending_column(states: Sequence[PartitionState]) -> pa.ChunkedArray:
    """Returns the pending runs of each state as a list of the table. They may be millions, so none becomes a dict."""
    lists = []
    for state in states:  # a chunk each, because joining the chunks would copy them
        structs = _pending_structs(PendingRuns.of(state.pending).joined())
        lists.append(pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs, type=PENDING))
    return pa.chunked_array(lists, PENDING)


def _pending_structs(runs: PendingRuns) -> pa.StructArray:
    types = {field.name: field.type for field in PENDING.value_type}
    dues = pa.array(runs.dues, mask=runs.dues == NEVER).cast(types["due"])
    columns = [runs.starts, runs.ends, *(_spelled(runs, name, types) for name in ("kind", "attempts")), dues]
    arrays = [*map(pa.array, columns), _spelled(runs, "error_class", types)]
    return pa.StructArray.from_arrays(arrays, fields=list(PENDING.value_type))


def _spelled(runs: PendingRuns, name: str, types: Mapping[str, pa.DataType]) -> pa.Array:
    """Returns a field of the states of all runs."""
    return pa.array([getattr(state, name) for state in runs.states], types[name]).take(pa.array(runs.codes))


def _pending_runs(structs: pa.StructArray | None) -> PendingRuns:
    if structs is None or not len(structs):
        return PendingRuns.of(())
    columns = {field.name: column for field, column in zip(structs.type, structs.flatten(), strict=True)}
    names = ("kind", "attempts", "error_class")
    parts = [columns[name].dictionary_encode(null_encoding="encode") for name in names]
    codes = np.zeros(len(structs), dtype=np.int64)
    for part in parts:
        codes = codes * len(part.dictionary) + part.indices.to_numpy()
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    states = [
        PendingState(PendingKind(kind), attempts, error_class)
        for kind, attempts, error_class in zip(
            *(columns[name].take(pa.array(first)).to_pylist() for name in names), strict=True
        )
    ]
    dues = columns["due"].cast(pa.int64()).fill_null(NEVER).to_numpy()
    starts, ends = (columns[name].to_numpy() for name in ("start_offset", "end_offset"))
    return PendingRuns(starts, ends, codes.astype(np.int32), dues, states)


def _range_rows(ranges: ValuedRanges[V], fields: Callable[[V], dict[str, Any]]) -> list[dict[str, Any]]:
    joined = join(ranges)
    return [{"start_offset": part.start, "end_offset": part.end, **fields(part.value)} for part in joined]


def _lists(column: pa.ChunkedArray) -> list[pa.StructArray]:
    """Returns the list of each row as an Arrow array, so that 100,000 pending ranges do not become a dict each."""
    return [scalar.values if scalar.is_valid else None for chunk in column.chunks for scalar in chunk]


def _as_tuples(structs: pa.StructArray | None) -> Iterable[tuple[Any, ...]]:
    return () if structs is None else zip(*(field.to_pylist() for field in structs.flatten()), strict=True)


def _gaps_above_floor(rows: Iterable[Mapping[str, int]] | None) -> ValuedRanges[int]:
    """Returns the ranges of a settlement's row; none in rows of a version that did not store them."""
    return tuple(ValuedRange(row["start_offset"], row["end_offset"], row["gaps"]) for row in rows or ())


def _offset_ranges(rows: Iterable[Mapping[str, int]] | None) -> tuple[OffsetRange, ...] | None:
    """Returns the ranges of a genesis of a backfill lane; None in every other settlement."""
    return None if rows is None else tuple(OffsetRange(row["start_offset"], row["end_offset"]) for row in rows)


def _turn(row: Mapping[str, Any]) -> TurnId:
    return TurnId(row["pipeline"], row["lane"], row["epoch"], row["turn"])


def _map(items: Iterable[tuple[str, Any]] | None) -> dict[str, Any] | None:
    return None if items is None else dict(items)


def _committed(offset: int | None, metadata: str | None) -> Committed | None:
    return None if offset is None else Committed(offset, metadata or "")


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)
