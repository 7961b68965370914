"""Reads what the tables hold about one offset of a lane, for `ackline.offset_explanation`.

The cost is that of a few pruned reads: the rows of one offset, the plans whose fresh range has it, and at most one scan
of four columns of the settlements.
"""

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.pruned_read import Where
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.audit.store import LedgerStore
from ackline.offset_explanation import Event, OffsetEvidence, Reading
from ackline.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.outcome import Outcome
from ackline.tree_story import decode
from ackline.turns import LIVE, Plan, Settlement, TurnId, TurnKind

_PLAN_COLUMNS = ["epoch", "turn", "kind", "run_id", "planned_at", "settings", "start_offset", "end_offset"]


def evidence_of_offset(
    store: LedgerStore, newest: Settlement, tp: TopicPartition, offset: int, log: LogBounds | None = None
) -> OffsetEvidence:
    """Returns what the tables hold about an offset of the lane. `log` is its readable log, if the caller has read it.

    Raises FatalError if the tables can't be read.
    """
    settled = newest.partitions.get(tp)
    state = settled.state if settled else None
    below = state is not None and offset < state.complete_to
    return OffsetEvidence(
        tp,
        offset,
        store.lane,
        newest.turn.epoch,
        state,
        tuple(events_of(store, tp, offset)),
        _read_by(store, newest.turn, tp, offset) if below else None,
        _open_turn(store.open_plan(newest), tp, offset),
        _start_of(store, newest, tp) if below else None,
        store.lane != LIVE,
        log,
    )


def events_of(store: LedgerStore, tp: TopicPartition, offset: int) -> Iterator[Event]:
    """Yields the effective rows of an offset in the lane, in time order, those of ranges that contain it included."""
    criteria = AuditFilter(*tp, OffsetRange(offset, offset + 1), lane=store.lane)
    for row in audit_rows(store.root, store.pipeline, criteria):
        end = row["end_offset"]
        yield Event(
            row["epoch"],
            row["turn"],
            row["attempt"],
            Outcome(row["outcome"]),
            row["error_class"],
            row["error_message"],
            row["handled_at"],
            row["run_id"],
            None if end is None else OffsetRange(row["offset"], end),
            decode(row["tree"]),
        )


def _read_by(store: LedgerStore, newest: TurnId, tp: TopicPartition, offset: int) -> Reading | None:
    """Returns the newest effective turn whose fresh range has the offset; None if no turn has read it."""
    table = store.plans.open()
    if table is None:
        return None
    of_tp: Where = {"topic": tp.topic, "partition": tp.partition}
    wanted = (
        (ds.field("topic") == tp.topic)
        & (ds.field("partition") == tp.partition)
        & (ds.field("start_offset") <= offset)
        & (ds.field("end_offset") > offset)
        & (ds.field("kind") == TurnKind.RUN.value)
    )
    try:
        rows = store.plans.dataset(table, of_tp).to_table(columns=_PLAN_COLUMNS, filter=wanted)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise store.plans.error(error) from error
    for row in sorted(rows.to_pylist(), key=lambda row: (row["epoch"], row["turn"]), reverse=True):
        turn = newest._replace(epoch=row["epoch"], n=row["turn"])
        if _is_effective(store, turn):
            stores_rows = json.loads(row["settings"] or "{}").get("record_outcomes", True)
            return Reading(turn.epoch, turn.n, row["run_id"], row["planned_at"], stores_rows)
    return None


def _is_effective(store: LedgerStore, turn: TurnId) -> bool:
    kinds = store.settlements.read({"epoch": turn.epoch, "turn": turn.n}, ["kind"])["kind"].unique().to_pylist()
    return bool(kinds) and TurnKind.VOID.value not in kinds


def _open_turn(plan: Plan | None, tp: TopicPartition, offset: int) -> Reading | None:
    planned = plan.partitions.get(tp) if plan else None
    if plan is None or planned is None:
        return None
    has_it = planned.fresh.start <= offset < planned.fresh.end
    if not has_it and not any(run.start <= offset < run.end for run in planned.retries):
        return None
    stores_rows = bool(plan.settings.get("record_outcomes", True))
    return Reading(plan.turn.epoch, plan.turn.n, plan.run_id, plan.planned_at, stores_rows)


def _start_of(store: LedgerStore, newest: Settlement, tp: TopicPartition) -> int | None:
    """Returns where the partition begins in the newest epoch: the floor before its first turn there."""
    if newest.turn.n == 0:
        return newest.partitions[tp].state.complete_to
    where: Where = {"epoch": newest.turn.epoch, "topic": tp.topic, "partition": tp.partition}
    rows = store.settlements.read(where, ["turn", "old_floor"])
    if not rows.num_rows:
        return None
    first = pc.min(rows["turn"]).as_py()
    return int(rows.filter(pc.equal(rows["turn"], first))["old_floor"][0].as_py())
