"""What the tables hold about one offset, and about the settled turns of a lane.

The evidence about an offset costs a few pruned reads: the rows of the offset, the plans whose fresh range has it, and
at most one scan of four columns of the settlements. `ackline.ledger.explain` makes sentences of it.

The newest turns are totals over all partitions. Their reads are bounded, because a lane may have thousands of
partitions and millions of turns.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.ledger.explain import Event, OffsetEvidence, Reading, decode
from ackline.ledger.metrics import StepFigures, figures_over
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.pipeline import TurnSettings
from ackline.tables.layout import EffectiveTurns
from ackline.tables.queries import AuditFilter, audit_rows
from ackline.tables.reads import Where, as_expression
from ackline.tables.schemas import TIME
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable

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
        _read_by(store, tp, offset) if below else None,
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
            row["letter"],
        )


def _read_by(store: LedgerStore, tp: TopicPartition, offset: int) -> Reading | None:
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
    with store.plans.errors():
        rows = store.plans.dataset(table, of_tp).to_table(columns=_PLAN_COLUMNS, filter=wanted)
    effective = EffectiveTurns(store)
    for row in sorted(rows.to_pylist(), key=lambda row: (row["epoch"], row["turn"]), reverse=True):
        if effective.has(row["epoch"], row["turn"]):
            stores_rows = TurnSettings(json.loads(row["settings"] or "{}")).keeps_outcome_rows
            return Reading(row["epoch"], row["turn"], row["run_id"], row["planned_at"], stores_rows)
    return None


def _open_turn(plan: Plan | None, tp: TopicPartition, offset: int) -> Reading | None:
    planned = plan.partitions.get(tp) if plan else None
    if plan is None or planned is None:
        return None
    has_it = planned.fresh.start <= offset < planned.fresh.end
    if not has_it and not any(run.start <= offset < run.end for run in planned.retries):
        return None
    stores_rows = TurnSettings(plan.settings).keeps_outcome_rows
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


_COUNTS = ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost")
_NO_ACTIONS = (TurnKind.RUN, TurnKind.GENESIS, TurnKind.VOID)


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """One settled turn. `start` is None for a first genesis, which has no plan; `duration` is in seconds."""

    lane: str
    epoch: int
    turn: int
    kind: str
    run_id: str
    actor: str
    reason: str
    start: datetime | None
    end: datetime
    duration: float | None
    partitions: int
    records: int
    outcomes: dict[str, int]
    """How many offsets have each outcome, without zeros."""


def settled_turns(
    root: str, pipeline: str, lane: str | None = None, limit: int | None = None, actions_only: bool = False
) -> list[SettledTurn]:
    """Returns the newest settled turns of a pipeline, newest first; `actions_only` leaves out runs and partitions that
    join. A turn that `ackline void` has closed is an action: of the kind `void`, or `run` if it is recorded as lost.

    Raises FatalError if the tables can't be read.
    """
    wanted = ["true"]
    if lane is not None:
        wanted.append(f"lane = {_literal(lane)}")
    if actions_only:
        wanted.append(f"(by_operator OR kind NOT IN ({', '.join(map(_literal, _NO_ACTIONS))}))")
    query = f'SELECT * FROM turns WHERE {" AND ".join(wanted)} ORDER BY "end" DESC, lane, epoch DESC, turn DESC'
    names = [field.name for field in fields(SettledTurn) if field.name != "outcomes"]
    from ackline.tables.sql import sql_result  # it loads DuckDB, which the steps and most commands do not need

    with sql_result(root, query if limit is None else f"{query} LIMIT {limit}", [pipeline]) as reader:
        return [
            SettledTurn(**{name: row[name] for name in names}, outcomes={n: row[n] for n in _COUNTS if row[n]})
            for batch in reader
            for row in batch.to_pylist()
        ]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


MOST_ROWS = 60_000
"""Rows of settlements that are read at most: 60 turns of 1,000 partitions."""
MOST_ENTRIES = 200
"""How many of the newest entries of a Delta log are searched for a turn."""
STEP_TURNS = 100
"""Over how many of the newest turns the figures of steps are added up."""
_COLUMNS = ["turn", "kind", "run_id", "actor", "reason", "settled_at", "counts", "metrics"]
_SUMMED = ("lag", "pending_retry", "pending_dead_letter", "pending_in_flight")


@dataclass(frozen=True, slots=True)
class TurnTotals:
    """A settled turn, with totals over its partitions."""

    turn: TurnId
    kind: str
    run_id: str
    actor: str
    reason: str
    settled_at: datetime
    partitions: int
    outcomes: Mapping[str, int] = field(default_factory=Counter)
    """Offsets by outcome."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The sums of `lag` and `pending_KIND`; a metric that no partition has is left out."""


def recent_turns(store: LedgerStore, newest: TurnId, partitions: int, limit: int) -> list[TurnTotals]:
    """Returns the newest turns of an epoch, oldest first: `limit` of them, or as many as MOST_ROWS rows hold.

    `partitions` is how many the lane has. Statistics rule out the files of all other turns. Raises FatalError if the
    table can't be read.
    """
    lowest = newest.n - max(1, min(limit, MOST_ROWS // max(1, partitions))) + 1
    rows = _rows_of_turns(store.settlements, newest.epoch, lowest, _COLUMNS)
    if not rows.num_rows:
        return []
    outcomes, metrics = _sums(rows, "counts"), _sums(rows, "metrics")
    # Every row of a turn has the same values in these columns.
    texts = ("kind", "run_id", "actor", "reason", "settled_at")
    turns = rows.group_by("turn", use_threads=False).aggregate(
        [("kind", "count"), *((name, "first") for name in texts)]
    )
    return [
        TurnTotals(
            newest._replace(n=row["turn"]),
            row["kind_first"],
            row["run_id_first"] or "",
            row["actor_first"] or "",
            row["reason_first"] or "",
            row["settled_at_first"].astimezone(UTC),
            row["kind_count"],
            Counter({name: int(number) for name, number in outcomes.get(row["turn"], {}).items()}),
            {name: number for name, number in metrics.get(row["turn"], {}).items() if name in _SUMMED},
        )
        for row in turns.sort_by("turn").to_pylist()
    ]


def step_figures(store: LedgerStore, newest: TurnId, names: Sequence[str] | None = None) -> StepFigures:
    """Returns what `source` and the steps `names` did in the last STEP_TURNS turns of an epoch, in those that met
    records; without `names`, the steps of the newest such turn.

    Raises FatalError if the table can't be read.
    """
    lowest, columns = newest.n - STEP_TURNS + 1, ["turn", "steps"]
    rows = _rows_of_turns(store.settlements, newest.epoch, lowest, columns, ds.field("steps").is_valid())
    return figures_over(rows.sort_by("turn")["steps"].to_pylist() if rows.num_rows else (), names)


def log_starts_at(store: LedgerStore, turn: TurnId) -> dict[TopicPartition, int]:
    """Returns the log start of each partition as a settled turn has stored it, where it is known."""
    rows = store.settlements.read({"epoch": turn.epoch, "turn": turn.n}, ["topic", "partition", "metrics"])
    starts = {}
    for row in rows.to_pylist():
        start = dict(row["metrics"] or ()).get("log_start")
        if start is not None:
            starts[TopicPartition(row["topic"], row["partition"])] = int(start)
    return starts


_ATTEMPT_COLUMNS = ["topic", "partition", "offset", "attempt", "turn", "error_message", "handled_at", "answer"]


@dataclass(frozen=True, slots=True)
class AttemptsAt:
    """The attempts at one record that had one outcome. `number` is that of the last one."""

    number: int
    first_at: datetime
    last_at: datetime
    message: str | None
    """The message of the last one, which is scrubbed."""


def attempts_at(
    store: LedgerStore, epoch: int, offsets: Mapping[TopicPartition, Collection[int]], outcome: Outcome
) -> dict[tuple[TopicPartition, int], AttemptsAt]:
    """Returns the attempts of an epoch that had an outcome, at these offsets; nothing of an offset without such a row.

    Statistics rule most files out. Raises FatalError if the table can't be read.
    """
    every = sorted({offset for of_tp in offsets.values() for offset in of_tp})
    version = store.outcomes.open() if every else None
    if version is None:
        return {}
    column, where = ds.field("offset"), {"epoch": epoch, "outcome": outcome.value}
    # Arrow skips files and row groups by the bounds; `isin` alone does not always let it.
    wanted = (column >= every[0]) & (column <= every[-1]) & column.isin(every) & (ds.field("attempt") > 0)
    wanted = wanted & ds.field("topic").isin(sorted({tp.topic for tp in offsets})) & as_expression(where)
    if outcome is Outcome.IN_FLIGHT:
        wanted = wanted & ds.field("answer").is_null()  # such a row renews the attempt
    with store.outcomes.errors():
        rows = store.outcomes.dataset(version, where).to_table(columns=_ATTEMPT_COLUMNS, filter=wanted)
    effective, found = EffectiveTurns(store), dict[tuple[TopicPartition, int], AttemptsAt]()
    for row in rows.sort_by("attempt").to_pylist():
        key, at = (TopicPartition(row["topic"], row["partition"]), row["offset"]), row["handled_at"].astimezone(UTC)
        if row["offset"] in offsets.get(key[0], ()) and effective.has(epoch, row["turn"]):
            first = found[key].first_at if key in found else at
            found[key] = AttemptsAt(row["attempt"], first, at, row["error_message"])
    return found


def dead_since(store: LedgerStore, since: datetime) -> int:
    """Returns how many records of a lane were decided as dead since a time, in all epochs, by turns that were planned
    at most a week before that.

    Statistics rule out the files without one. Raises FatalError if the table can't be read.
    """
    version = store.outcomes.open()
    if version is None:
        return 0
    where: Where = {"outcome": Outcome.DEAD.value, "attempt": 0}
    first_day = pa.scalar((since - timedelta(days=7)).date())
    wanted = as_expression(where) & (ds.field("plan_date") >= first_day)
    wanted = wanted & (ds.field("handled_at") >= pa.scalar(since, TIME))
    with store.outcomes.errors():
        rows = store.outcomes.dataset(version, where).to_table(columns=["epoch", "turn"], filter=wanted)
    effective = EffectiveTurns(store)
    turns = rows.group_by(["epoch", "turn"]).aggregate([([], "count_all")]).to_pylist()
    return sum(row["count_all"] for row in turns if effective.has(row["epoch"], row["turn"]))


def delta_versions(store: LedgerStore, turn: TurnId) -> dict[str, int]:
    """Returns the Delta version that holds plan n, outcomes n, decisions n and settlement n, by these words.

    A version is left out if the newest MOST_ENTRIES entries of the log do not have it. Raises FatalError if the log
    can't be read.
    """
    parts = {"plan": store.plans, "outcomes": store.outcomes, "decisions": store.outcomes,
             "settlement": store.settlements}  # fmt: skip
    logs = {table.name: _transactions(table) for table in parts.values()}
    versions = {}
    for part, table in parts.items():
        application = f"ackline/{turn.pipeline}/{turn.lane}/{turn.epoch}/{part}"
        version = logs[table.name].get((application, turn.n))
        if version is not None:
            versions[part] = version
    return versions


def _transactions(table: AuditTable) -> dict[tuple[str, int], int]:
    """Returns the version of each transaction id in the newest entries of a log."""
    versions: dict[tuple[str, int], int] = {}
    with table.errors(), contextlib.suppress(FileNotFoundError):  # maintenance has removed an entry since the listing
        for entry in table.log.files().entries[-MOST_ENTRIES:]:
            with table.storage.filesystem.open_input_file(entry.path) as file:
                for line in file.read().splitlines():
                    if b'"txn"' in line:
                        transaction: dict[str, Any] = json.loads(line).get("txn") or {}
                        if transaction.keys() >= {"appId", "version"}:
                            versions[transaction["appId"], transaction["version"]] = entry.version
    return versions


def _rows_of_turns(
    settlements: AuditTable, epoch: int, lowest: int, columns: list[str], also: ds.Expression | None = None
) -> pa.Table:
    version = settlements.open()
    if version is None:
        return pa.table({})
    wanted = (ds.field("epoch") == epoch) & (ds.field("turn") >= lowest)
    wanted = wanted if also is None else wanted & also
    with settlements.errors():
        # Arrow applies the filter to the statistics of each file too, and so opens those of the newest turns only.
        return settlements.dataset(version, {"epoch": epoch}).to_table(columns=columns, filter=wanted)


def _sums(rows: pa.Table, column: str) -> dict[int, dict[str, float]]:
    """Returns the sums of a map column by turn and key. No row becomes a Python object."""
    sums: dict[int, dict[str, float]] = {}
    for batch in rows.select(["turn", column]).to_batches():
        maps = batch[column]
        lengths = np.diff(maps.offsets.to_numpy())
        entries = pa.table({
            "turn": np.repeat(batch["turn"].to_numpy(zero_copy_only=False), lengths),
            "key": maps.keys.slice(maps.offsets[0].as_py(), int(lengths.sum())),
            "value": pc.cast(maps.items.slice(maps.offsets[0].as_py(), int(lengths.sum())), pa.float64()),
        })  # fmt: skip
        for row in entries.group_by(["turn", "key"]).aggregate([("value", "sum")]).to_pylist():
            by_key = sums.setdefault(row["turn"], {})
            by_key[row["key"]] = by_key.get(row["key"], 0.0) + (row["value_sum"] or 0.0)
    return sums
