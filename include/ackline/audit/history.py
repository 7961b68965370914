"""What the tables hold about one offset, and about the settled turns of a lane.

The evidence about an offset costs a few pruned reads; `ackline.ledger.explain` makes sentences of it. The newest turns
are totals over all partitions. Their reads are bounded, because a lane may have thousands of partitions and millions of
turns.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.audit.queries import AuditFilter, audit_rows
from ackline.delta.reads import Where, as_expression, pruned_dataset
from ackline.forms.arguments import id_of
from ackline.ledger.explain import Event, OffsetEvidence, Reading, decode_story, first_failure
from ackline.ledger.metrics import StepFigures, figures_over
from ackline.ledger.offsets import Bools, LogBounds, OffsetRange, Ranges, TopicPartition, index_of_range
from ackline.ledger.outcomes import Outcome
from ackline.ledger.states import NEW_FAILED, NEW_RECORDS
from ackline.ledger.turns import LIVE, Plan, Settlement, TurnId, TurnKind
from ackline.pipeline.pipeline import TurnSettings
from ackline.stored import decode
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import EffectiveTurns
from ackline.tables.schemas import OUTCOMES, TIME
from ackline.tables.store import LedgerStore

_PLAN_COLUMNS = ["epoch", "turn", "kind", "run_id", "planned_at", "settings", "start_offset", "end_offset"]


def evidence_of_offset(
    store: LedgerStore, newest: Settlement, tp: TopicPartition, offset: int, log: LogBounds | None = None
) -> OffsetEvidence:
    """Returns what the tables hold about an offset of the lane. `log` is its readable log, if the caller has read it.
    Raises FatalError if the tables can't be read."""
    settled = newest.partitions.get(tp)
    state = settled.state if settled else None
    below = state is not None and offset < state.complete_to
    events = tuple(events_of(store, tp, offset))
    failed = first_failure(events)
    return OffsetEvidence(
        tp,
        offset,
        store.lane,
        newest.turn.epoch,
        state,
        events,
        _read_by(store, tp, offset) if below else None,
        _open_turn(store.open_plan(newest), tp, offset),
        _start_of(store, newest, tp) if below else None,
        store.lane != LIVE,
        log,
        new_code=_code_new_in(store, failed) if failed else None,
        acked_by=_acked_since(store, tp, offset, events),
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
            decode_story(row["tree"]),
            row["letter"],
            row["error_place"],
        )


def _acked_since(
    store: LedgerStore, tp: TopicPartition, offset: int, events: Sequence[Event]
) -> tuple[str, datetime] | None:
    """Returns the last backfill that has acked an offset since the live lane has settled it otherwise, and when."""
    settled = next((event for event in reversed(events) if event.outcome.terminal), None)
    if store.lane != LIVE or settled is None or settled.outcome is Outcome.ACKED or settled.at is None:
        return None
    criteria = AuditFilter(*tp, OffsetRange(offset, offset + 1), outcome=Outcome.ACKED.value, since=settled.at)
    rows = (row for row in audit_rows(store.root, store.pipeline, criteria) if row["lane"] != LIVE)
    return max(((id_of(row["lane"]), row["handled_at"]) for row in rows), key=lambda found: found[1], default=None)


def _read_by(store: LedgerStore, tp: TopicPartition, offset: int) -> Reading | None:
    """Returns the newest effective turn whose fresh range has the offset; None if no turn has read it."""
    of_tp: Where = {"topic": tp.topic, "partition": tp.partition, "kind": TurnKind.RUN.value}
    has_it = (ds.field("start_offset") <= offset) & (ds.field("end_offset") > offset)
    rows, effective = store.plans.read(of_tp, _PLAN_COLUMNS, also=has_it), EffectiveTurns(store)
    with store.plans.errors():  # of a damaged text in a row
        for row in sorted(rows.to_pylist(), key=lambda row: (row["epoch"], row["turn"]), reverse=True):
            if effective.has(row["epoch"], row["turn"]):
                stores_rows = TurnSettings(decode(row["settings"] or "{}", dict[str, Any])).keeps_outcome_rows
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


CODE_TURNS = 1_000
"""How many turns before a failure are searched for the same code."""


def _code_new_in(store: LedgerStore, event: Event) -> str | None:
    """Returns the code of the turn of an attempt, if none of the CODE_TURNS turns of its epoch before it ran with that
    code; None otherwise, and if it is not known. A void turn does not count."""
    turn = ds.field("turn")
    near = (turn <= event.turn) & (turn >= event.turn - CODE_TURNS) & ds.field("code").is_valid()
    where: Where = {"epoch": event.epoch, "kind": TurnKind.RUN.value}
    rows = store.settlements.read(where, ["turn", "code"], also=near).to_pylist()  # one row a turn holds the code
    codes = {row["turn"]: row["code"] for row in rows}
    code = codes.pop(event.turn, None)
    return None if code in codes.values() else code


def _start_of(store: LedgerStore, newest: Settlement, tp: TopicPartition) -> int | None:
    """Returns the offset at which the partition begins in the newest epoch; None if no turn has settled it there."""
    if newest.turn.n == 0:
        return newest.partitions[tp].state.complete_to
    where: Where = {"epoch": newest.turn.epoch, "topic": tp.topic, "partition": tp.partition}
    rows = store.settlements.read(where, ["turn", "old_floor"])
    if not rows.num_rows:
        return None
    first = pc.min(rows["turn"]).as_py()
    return int(rows.filter(pc.equal(rows["turn"], first))["old_floor"][0].as_py())


_COUNTS = ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost")


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """One settled turn. `start` is None for a first genesis, which has no plan; `duration` is in seconds. `code` is
    that of `Settlement`, and None if it is not known."""

    lane: str
    epoch: int
    turn: int
    kind: str
    run_id: str
    actor: str
    reason: str
    code: str | None
    start: datetime | None
    end: datetime
    duration: float | None
    partitions: int
    records: int
    new_records: int
    """How many records the turn has handled for the first time."""
    new_failed: int
    """How many of these failed; the other failures are retries."""
    outcomes: dict[str, int]
    """How many offsets have each outcome, without zeros."""


def settled_turns(
    root: str, pipeline: str, lane: str | None = None, limit: int | None = None, actions_only: bool = False
) -> list[SettledTurn]:
    """Returns the newest settled turns of a pipeline, newest first. With `actions_only`, only those of operators. A
    turn that `ackline void` has closed is one of them, of the kind `void`, or `run` if its records are stored as lost.
    Raises FatalError if the tables can't be read."""
    wanted = ["true"]
    if lane is not None:
        wanted.append(f"lane = {_literal(lane)}")
    if actions_only:
        others = ", ".join(_literal(kind) for kind in TurnKind if not kind.is_action)
        wanted.append(f"(by_operator OR kind NOT IN ({others}))")
    query = f'SELECT * FROM turns WHERE {" AND ".join(wanted)} ORDER BY "end" DESC, lane, epoch DESC, turn DESC'
    names = [field.name for field in fields(SettledTurn) if field.name != "outcomes"]
    from ackline.audit.sql import sql_result  # it loads DuckDB, which the steps and most commands do not need

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
_COLUMNS = ["turn", "kind", "run_id", "actor", "reason", "settled_at", "counts", "metrics", "code"]
_SUMMED = (
    "lag",
    "pending_retry",
    "pending_dead_letter",
    "pending_in_flight",
    "pending_held_back",
    NEW_RECORDS,
    NEW_FAILED,
)


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
    """How many offsets have each outcome."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The sums of `lag`, `pending_KIND`, `new_records` and `new_failed`; a metric that no partition has is left out."""
    code: str = ""
    """The code that ran the turn; empty if it is not known."""


def recent_turns(store: LedgerStore, newest: TurnId, partitions: int, limit: int) -> list[TurnTotals]:
    """Returns the newest turns of an epoch, oldest first: `limit` of them, or as many as MOST_ROWS rows hold.
    `partitions` is how many the lane has. Statistics rule out the files of all other turns. Raises FatalError if the
    table can't be read."""
    lowest = newest.n - max(1, min(limit, MOST_ROWS // max(1, partitions))) + 1
    # Arrow applies the filter to the statistics of each file too, and so opens those of the newest turns only.
    rows = store.settlements.read({"epoch": newest.epoch}, _COLUMNS, also=ds.field("turn") >= lowest)
    if not rows.num_rows:
        return []
    outcomes, metrics = _sums(rows, "counts"), _sums(rows, "metrics")
    # Every row of a turn has the same values in these columns, but for the code, which one of them has.
    texts = ("kind", "run_id", "actor", "reason", "settled_at", "code")
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
            row["code_first"] or "",
        )
        for row in turns.sort_by("turn").to_pylist()
    ]


def totals_of(settlement: Settlement) -> TurnTotals:
    """Returns the totals of one settlement, as `recent_turns` reads them."""
    outcomes, metrics = Counter[str](), dict[str, float]()
    for settled in settlement.partitions.values():
        outcomes.update(settled.counts)
        for name in _SUMMED:
            if settled.metrics and name in settled.metrics:
                metrics[name] = metrics.get(name, 0.0) + settled.metrics[name]
    texts = (settlement.kind.value, settlement.run_id, settlement.actor, settlement.reason)
    return TurnTotals(
        settlement.turn,
        *texts,
        settlement.settled_at,
        len(settlement.partitions),
        outcomes,
        metrics,
        settlement.code,
    )


def step_figures(store: LedgerStore, newest: TurnId, names: Sequence[str] | None = None) -> StepFigures:
    """Returns the figures of `source` and the steps `names`, summed over those of an epoch's last STEP_TURNS turns that
    met records. Without `names`, the steps are those of the newest such turn. Raises FatalError if the table can't be
    read."""
    met_records = (ds.field("turn") > newest.n - STEP_TURNS) & ds.field("steps").is_valid()
    rows = store.settlements.read({"epoch": newest.epoch}, ["turn", "steps"], also=met_records)
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


_ATTEMPT_COLUMNS = ["topic", "partition", "offset", "attempt", "turn", "error_message", "error_place",
                    "handled_at", "answer"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttemptsAt:
    """The attempts at one record that had one outcome. `number` is that of the last attempt."""

    number: int
    first_at: datetime
    last_at: datetime
    message: str | None
    """The scrubbed error message of the last attempt."""
    place: str | None = None
    """Where the last attempt raised the error; None if that is not known."""


def attempts_at(
    store: LedgerStore, epoch: int, offsets: Mapping[TopicPartition, Collection[int]], outcome: Outcome
) -> dict[tuple[TopicPartition, int], AttemptsAt]:
    """Returns the attempts of an epoch that had `outcome`, by topic-partition and offset, where there is one. Raises
    FatalError if the table can't be read."""
    every = sorted({offset for of_tp in offsets.values() for offset in of_tp})
    if not every:
        return {}
    column = ds.field("offset")
    # Arrow skips files and row groups by the bounds; `isin` alone does not always let it.
    wanted = (column >= every[0]) & (column <= every[-1]) & column.isin(every) & (ds.field("attempt") > 0)
    wanted = wanted & ds.field("topic").isin(sorted({tp.topic for tp in offsets}))
    if outcome is Outcome.IN_FLIGHT:
        wanted = wanted & ds.field("answer").is_null()  # such a row renews the attempt
    rows = store.outcomes.read({"epoch": epoch, "outcome": outcome.value}, _ATTEMPT_COLUMNS, also=wanted)
    effective, found = EffectiveTurns(store), dict[tuple[TopicPartition, int], AttemptsAt]()
    for row in rows.sort_by("attempt").to_pylist():
        key, at = (TopicPartition(row["topic"], row["partition"]), row["offset"]), row["handled_at"].astimezone(UTC)
        if row["offset"] in offsets.get(key[0], ()) and effective.has(epoch, row["turn"]):
            first = found[key].first_at if key in found else at
            found[key] = AttemptsAt(row["attempt"], first, at, row["error_message"], row["error_place"])
    return found


MOST_FAILED_ROWS = 50_000
"""How many rows of failed attempts `last_failures` reads at most."""
_RECORD = ["topic", "partition", "offset"]
_FAILED_COLUMNS = [*_RECORD, "attempt", "epoch", "turn", "error_place", "handled_at"]


def last_failures(store: LedgerStore, epoch: int, ranges: Mapping[TopicPartition, Ranges]) -> pa.Table:
    """Returns the last failed attempt of each record of an epoch whose offset is in `ranges`: topic, partition, offset,
    attempt, error_place, and as `first_at` and `last_at` when its first and its last attempt failed. Returns no row if
    more than MOST_FAILED_ROWS would have to be read. Raises FatalError if the table can't be read."""
    known = {tp: of_tp for tp, of_tp in ranges.items() if len(of_tp[0])}
    rows = OUTCOMES.empty_table().select(_FAILED_COLUMNS)
    if known and (version := store.outcomes.open()) is not None:
        where: Where = {"epoch": epoch, "outcome": Outcome.FAILED.value}
        column = ds.field("offset")
        wanted = as_expression(where) & ds.field("topic").isin(sorted({tp.topic for tp in known}))
        wanted = wanted & (column >= min(int(starts[0]) for starts, _ in known.values()))
        wanted = wanted & (column < max(int(ends[-1]) for _, ends in known.values())) & (ds.field("attempt") > 0)
        with store.outcomes.errors():
            files = pruned_dataset(store.outcomes, version, where)
            rows = files.scanner(columns=_FAILED_COLUMNS, filter=wanted).head(MOST_FAILED_ROWS + 1)
    rows = rows.slice(0, 0 if rows.num_rows > MOST_FAILED_ROWS else None)
    rows = rows.filter(EffectiveTurns(store).mask(rows)) if rows.num_rows else rows
    rows = rows.sort_by([(name, "ascending") for name in (*_RECORD, "attempt")])
    rows = rows.filter(pa.array(_in_ranges(rows, known)))
    last = pc.ScalarAggregateOptions(skip_nulls=False)
    return rows.group_by(_RECORD, use_threads=False).aggregate(
        [("attempt", "last"), ("error_place", "last", last), ("handled_at", "first"), ("handled_at", "last")]
    ).select([*_RECORD, "attempt_last", "error_place_last", "handled_at_first", "handled_at_last"]).rename_columns(
        [*_RECORD, "attempt", "error_place", "first_at", "last_at"]
    )  # fmt: skip


def _in_ranges(rows: pa.Table, ranges: Mapping[TopicPartition, Ranges]) -> Bools:
    """Returns which rows, which are sorted by topic and partition, are within the ranges of their topic-partition."""
    topics, partitions = rows["topic"].to_numpy(), rows["partition"].to_numpy()
    inside = np.zeros(len(rows), dtype=np.bool_)
    changes = np.flatnonzero((topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])) + 1
    for start, end in pairwise([0, *changes.tolist(), len(rows)] if len(rows) else []):
        of_tp = ranges.get(TopicPartition(topics[start], int(partitions[start])))
        if of_tp is not None:
            inside[start:end] = index_of_range(rows["offset"].slice(start, end - start).to_numpy(), of_tp) >= 0
    return inside


def dead_since(store: LedgerStore, since: datetime) -> list[tuple[datetime, int]]:
    """Returns how many records of a lane were decided as dead since a time, in all epochs, by turns that were planned
    at most a week before that: for each turn when the last of them died, and their number. Raises FatalError if the
    table can't be read."""
    first_day = pa.scalar((since - timedelta(days=7)).date())
    recent = (ds.field("plan_date") >= first_day) & (ds.field("handled_at") >= pa.scalar(since, TIME))
    columns = ["epoch", "turn", "handled_at"]
    rows = store.outcomes.read({"outcome": Outcome.DEAD.value, "attempt": 0}, columns, also=recent)
    effective = EffectiveTurns(store)
    turns = rows.group_by(["epoch", "turn"]).aggregate([([], "count_all"), ("handled_at", "max")]).to_pylist()
    return [
        (row["handled_at_max"].astimezone(UTC), row["count_all"])
        for row in turns
        if effective.has(row["epoch"], row["turn"])
    ]


def delta_versions(store: LedgerStore, turn: TurnId) -> dict[str, int]:
    """Returns the Delta versions that hold a turn, by the words `plan`, `outcomes`, `decisions` and `settlement`: those
    in the newest MOST_ENTRIES entries of the log. Raises FatalError if the log can't be read."""
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
    """Returns the Delta version of each commit among the newest entries of a log, by transaction id and number."""
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
