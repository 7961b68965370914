"""Plans, settlements and decisions as rows of their tables, and back."""

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from ackline.audit.schemas import OUTCOMES, PLANS, SETTLEMENTS
from ackline.commit_rule import Committed
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.offsets import LogBounds, OffsetRange, Run, Runs, TopicPartition, V, join
from ackline.outcome import MESSAGE_LIMIT
from ackline.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind


def plan_date(planned_at: datetime) -> date:
    """The value of the partition column, of everything that a plan brings about: the UTC day it was planned."""
    return planned_at.astimezone(UTC).date()


def turn_columns(turn: TurnId, day: date, run_id: str) -> dict[str, Any]:
    """What each row of each table says of its turn."""
    return {
        "pipeline": turn.pipeline,
        "plan_date": day,
        "lane": turn.lane,
        "epoch": turn.epoch,
        "turn": turn.n,
        "run_id": run_id,
    }


def plan_rows(plan: Plan) -> pa.Table:
    """A row a topic-partition."""
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
            "topic_id": one.topic_id,
            "start_offset": one.fresh.start,
            "end_offset": one.fresh.end,
            "floor": one.floor,
            "complete_to": one.complete_to,
            "log_start": one.log.start,
            "log_end": one.log.end,
            "why": one.why,
            "committed": one.committed.offset if one.committed else None,
            "committed_metadata": one.committed.metadata if one.committed else None,
            "seen": one.acknowledged_foreign_offset,
            "leader_epoch": one.log.leader_epoch,
            "retries": _runs(one.retries, lambda attempt: {"attempt": attempt}),
        }
        for tp, one in sorted(plan.partitions.items())
    ]
    return pa.Table.from_pylist(rows, schema=PLANS)


def plan_of(rows: pa.Table) -> Plan:
    """The plan whose rows these are; there is at least one."""
    found = rows.drop_columns(["retries"]).to_pylist()
    first = found[0]
    lists = _lists(rows["retries"])
    partitions = {}
    for row, retries in zip(found, lists, strict=True):
        partitions[TopicPartition(row["topic"], row["partition"])] = PlannedPartition(
            row["topic_id"],
            OffsetRange(row["start_offset"], row["end_offset"]),
            tuple(Run(start, end, attempt) for start, end, attempt in _tuples(retries)),
            row["floor"],
            row["complete_to"],
            LogBounds(row["log_start"], row["log_end"], row["leader_epoch"]),
            row["why"],
            _committed(row["committed"], row["committed_metadata"]),
            row["seen"],
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


def settlement_rows(settlement: Settlement, day: date) -> pa.Table:
    """A row a topic-partition; `day` is its plan's."""
    same = {
        **turn_columns(settlement.turn, day, settlement.run_id),
        "kind": settlement.kind.value,
        "actor": settlement.actor,
        "reason": settlement.reason,
        "settled_at": settlement.settled_at,
    }
    rows = [
        {
            **same,
            "topic": tp.topic,
            "partition": tp.partition,
            "topic_id": one.topic_id,
            "old_floor": one.old_floor,
            "new_floor": one.state.floor,
            "complete_to": one.state.complete_to,
            "pending": _runs(one.state.pending, _pending_fields),
            "counts": list(one.counts.items()),
            "gaps": one.gaps,
            "seen": one.acknowledged_foreign_offset,
            "held": one.committed.offset if one.committed else None,
            "held_metadata": one.committed.metadata if one.committed else None,
            "evidence": one.evidence,
            "paused": one.paused,
            "figures": None if one.metrics is None else list(one.metrics.items()),
            "totals": None if one.totals is None else list(one.totals.items()),
            "leader_epoch": one.leader_epoch,
        }
        for tp, one in sorted(settlement.partitions.items())
    ]
    return pa.Table.from_pylist(rows, schema=SETTLEMENTS)


def settlement_of(rows: pa.Table) -> Settlement:
    """The settlement whose rows these are; there is at least one."""
    found = rows.drop_columns(["pending"]).to_pylist()
    first = found[0]
    partitions = {}
    for row, pending in zip(found, _lists(rows["pending"]), strict=True):
        runs = tuple(
            Run(start, end, Pending(PendingKind(kind), attempts, _utc(due) if due else None, error_class))
            for start, end, kind, attempts, due, error_class in _tuples(pending)
        )
        partitions[TopicPartition(row["topic"], row["partition"])] = SettledPartition(
            row["topic_id"],
            row["old_floor"],
            PartitionState(row["complete_to"], runs),
            dict(row["counts"]),
            row["gaps"],
            row["seen"],
            _committed(row["held"], row["held_metadata"]),
            row["evidence"],
            row["paused"],
            metrics=_map(row.get("figures")),
            totals=_map(row.get("totals")),
            leader_epoch=row["leader_epoch"],
        )
    return Settlement(
        _turn(first),
        TurnKind(first["kind"]),
        first["run_id"],
        _utc(first["settled_at"]),
        partitions,
        first["actor"],
        first["reason"],
    )


def decision_rows(
    turn: TurnId, day: date, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> pa.Table:
    """Settle's rows of `outcomes`: what became of a record or of a range of them."""
    rows = [
        {
            **turn_columns(turn, day, run_id),
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": row.offset,
            "end_offset": row.end_offset,
            "attempt": row.attempt,
            "outcome": row.outcome.value,
            "error_class": row.error_class,
            "error_message": row.reason[:MESSAGE_LIMIT] if row.reason else None,
            "handled_at": row.handled_at,
        }
        for tp, found in sorted(decisions.items())
        for row in found
    ]
    return pa.Table.from_pylist(rows, schema=OUTCOMES)


def _pending_fields(pending: Pending) -> dict[str, Any]:
    return {
        "kind": pending.kind.value,
        "attempts": pending.attempts,
        "due": pending.due,
        "error_class": pending.error_class,
    }


def _runs(runs: Runs[V], fields: Callable[[V], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"start_offset": run.start, "end_offset": run.end, **fields(run.value)} for run in join(runs)]


def _lists(column: pa.ChunkedArray) -> list[pa.StructArray]:
    """Each row's list as an Arrow array: a hundred thousand pending offsets never become a dict each."""
    return [scalar.values if scalar.is_valid else None for chunk in column.chunks for scalar in chunk]


def _tuples(structs: pa.StructArray | None) -> Iterable[tuple[Any, ...]]:
    return () if structs is None else zip(*(field.to_pylist() for field in structs.flatten()), strict=True)


def _turn(row: Mapping[str, Any]) -> TurnId:
    return TurnId(row["pipeline"], row["lane"], row["epoch"], row["turn"])


def _map(items: Iterable[tuple[str, Any]] | None) -> dict[str, Any] | None:
    return None if items is None else dict(items)


def _committed(offset: int | None, metadata: str | None) -> Committed | None:
    return None if offset is None else Committed(offset, metadata or "")


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC)
