"""Turns a world into the evidence that the independent checker judges, so that a rule on tables is written once.

A world keeps what a real cluster forgets: here the log of each topic has every record that was ever readable, also if
it has expired or was compacted. The clock of a world may be set back between a plan and its retries, which were due
when they were planned; so no row is handled before its turn was planned. Four things are left out:

- The logs of which a lane has read another version, and no reset has taken over the one that is there. The checker
  still judges the rows of such a partition against each other.
- Handler calls and commits of a time from which the tables were set back to an older copy.
- Dead letters. The oracle judges them, because only the history shows which decisions an acknowledgement came before.
  And the checker allows no letter of a record that is not dead, but here a fault may hide from settle that a letter
  has arrived, and then retention or an operator settles the record in another way.
- Offsets that the lane has not committed itself, but another ledger or another consumer has; also those that a late
  process has committed under an id that the ledger had before.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.order import NO_KEY
from ackline.ledger.pending import UNKNOWN_KEY
from ackline.ledger.turns import LIVE
from ackline.tables.schemas import TABLES
from ackline.verify.evidence import Evidence, Log
from ackline.verify.evidence import TopicPartition as CheckedPartition
from ackline.verify.read_tables import COLUMNS, NEWER, OF_BACKFILLS
from tests.chaos.account import Rules, rows_of
from tests.support.memory import GroupCommit, HandlerCall, MemoryLog, World

Row = tuple[Any, ...]
CALLS = pa.schema([("topic", pa.string()), *((name, pa.int64()) for name in ("partition", "offset", "attempt"))])


def evidence_of(
    world: World,
    rules: Rules,
    lane: str = LIVE,
    unlike: Collection[TopicPartition] = (),
    lost: Collection[range] = (),
) -> Evidence:
    """Returns the tables, logs, commits and handler calls of a lane in a world, without the logs of the partitions
    `unlike` and without the `lost` parts of the history."""
    history = [event for at, event in enumerate(world.history) if not any(at in part for part in lost)]
    calls = [event for event in history if isinstance(event, HandlerCall) and event.lane == lane]
    own = {tp: committed for e in history if isinstance(e, GroupCommit) for tp, committed in e.offsets.items()}
    return Evidence(
        rules.pipeline,
        lane,
        {CheckedPartition(*tp): log for tp, log in _logs(world, rules, lane, own) if tp not in unlike},
        plans=_rows("plans", _plans(world, lane)),
        outcomes=_rows("outcomes", _outcomes(world, lane)),
        settlements=_rows("settlements", _settlements(world, lane)),
        ledger=world.tables.ids.get("settlements"),
        calls=_columns(CALLS, ((*call.tp, call.offset, call.attempt) for call in calls)),
    )


def _rows(table: str, rows: Iterable[Row]) -> pa.Table:
    names = [*COLUMNS[table], *(name for more in (OF_BACKFILLS, NEWER) for name in more.get(table, []))]
    return _columns(pa.schema([TABLES[table].field(name) for name in names]), rows)


def _columns(schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _plans(world: World, lane: str) -> Iterator[Row]:
    for plan in world.tables.plans.values():
        if plan.turn.lane != lane:
            continue
        settings = json.dumps(plan.settings, sort_keys=True)
        for tp, planned in plan.partitions.items():
            fresh = planned.fresh
            retries = [(run.start, run.end, run.value) for run in planned.retries] if lane != LIVE else []
            yield lane, plan.turn.epoch, plan.turn.n, plan.kind.value, *tp, fresh.start, fresh.end, settings, retries
    for (application, n), marker in world.tables.markers.items():
        if application.split("/")[2] == lane:
            yield lane, int(application.split("/")[-2]), n, marker.kind.value, None, None, None, None, None, None


def _settlements(world: World, lane: str) -> Iterator[Row]:
    for settlement in world.tables.settlements.values():
        turn = settlement.turn
        if turn.lane != lane:
            continue
        for tp, settled in settlement.partitions.items():
            state = settled.state
            pending = [(r.start, r.end, r.value.kind.value, r.value.attempts, r.value.due, r.value.error_class)
                       for r in state.pending]  # fmt: skip
            counts = list(settled.counts.items())
            ranges = None if settled.ranges is None else [(part.start, part.end) for part in settled.ranges]
            yield (lane, turn.epoch, turn.n, settlement.kind.value, *tp, settled.old_floor, state.floor,
                   state.complete_to, pending, counts, settled.gaps, settlement.reason, ranges,
                   settled.topic_id, settled.leader_epoch, settlement.arguments,
                   [(run.start, run.end, *run.log, run.first) for run in state.copies],
                   [(run.start, run.end) for run in state.released])  # fmt: skip


def _outcomes(world: World, lane: str) -> Iterator[Row]:
    for turn, files in world.tables.outcomes.items():
        if turn.lane != lane:
            continue
        planned_at = world.tables.plans[turn].planned_at
        for tp, row in rows_of(files):
            yield (lane, turn.epoch, turn.n, *tp, row.offset, row.end_offset, row.attempt, row.outcome.value,
                   row.error_class, max(row.handled_at, planned_at), row.answer,
                   None if row.key in (UNKNOWN_KEY, NO_KEY) else row.key)  # fmt: skip


def _logs(
    world: World, rules: Rules, lane: str, own: Mapping[TopicPartition, Committed]
) -> Iterator[tuple[TopicPartition, Log]]:
    """Yields the log that each partition of the lane reads in its newest epoch, with the offset that the lane itself
    has committed."""
    topic_ids = {
        tp: settled.known_topic_id
        for settlement in world.tables.settlements.values()
        for tp, settled in (settlement.partitions.items() if settlement.turn.lane == lane else ())
    }
    for tp, topic_id in topic_ids.items():
        log = world.log_of(topic_id, tp)
        if log is not None:
            committed = world.committed.get((rules.group, tp))
            is_own = committed is not None and committed == own.get(tp) and _ledger(world) in committed.metadata
            yield tp, log_of(log, rules.isolation, committed if is_own else None)


def _ledger(world: World) -> str:
    return world.tables.ids["settlements"]


def readable(log: MemoryLog, isolation: str) -> list[int]:
    """Returns the offset of each record that was ever readable, also if it has expired or was compacted."""
    end = log.readable_end(isolation)
    return [offset for offset in log.written if offset < end and log.original(offset, isolation)]


def existing(log: MemoryLog, isolation: str) -> list[int]:
    """Returns the offset of each record that a lane must settle: it is or was readable, and was not compacted."""
    return [offset for offset in readable(log, isolation) if offset not in log.compacted]


def log_of(log: MemoryLog, isolation: str, committed: Committed | None) -> Log:
    end, kept = log.readable_end(isolation), np.array(existing(log, isolation), np.int64)
    # Of a compacted log the checker needs to know which offsets never were a record for a consumer.
    never = np.setdiff1d(np.arange(end), readable(log, isolation)) if log.compacted else None
    offset, metadata = (committed.offset, committed.metadata) if committed else (None, "")
    return Log(0, end, kept, offset, metadata, never)
