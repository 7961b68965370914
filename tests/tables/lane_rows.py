"""Plans, settlements and outcome files for the tests of the ledger store."""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Concatenate, ParamSpec

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from ackline.delta.object_store import arrow_filesystem, is_remote
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnId, TurnKind
from ackline.tables.schemas import OUTCOMES
from ackline.tables.store import LedgerStore

TP = TopicPartition("orders", 0)
TP1 = TopicPartition("orders", 1)
NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
DAY = NOON.date()
Settings = ParamSpec("Settings")
Tell = Callable[Concatenate[LedgerStore, Settings], LedgerStore]


def told_once(tell: Tell[Settings]) -> Tell[Settings]:
    """Returns a function that stores what `tell` stores in a lane that has not begun. On the disk it runs `tell` once
    in a process, and copies the tables from then on."""
    roots: dict[str, TemporaryDirectory[str]] = {}

    def told(store: LedgerStore, /, *arguments: Settings.args, **settings: Settings.kwargs) -> LedgerStore:
        if is_remote(store.root):
            return tell(store, *arguments, **settings)
        story = repr((store.pipeline, store.lane, arguments, settings))
        if story not in roots:
            roots[story] = TemporaryDirectory(prefix="ackline-told-")
            tell(LedgerStore(roots[story].name, store.pipeline, store.lane), *arguments, **settings)
        shutil.copytree(roots[story].name, store.root, dirs_exist_ok=True)
        return store

    return told


def turn(n: int, epoch: int = 0, pipeline: str = "orders") -> TurnId:
    return TurnId(pipeline, "live", epoch, n)


def plan(n: int, run_id: str = "run", epoch: int = 0, pipeline: str = "orders") -> Plan:
    planned = PlannedPartition("id", OffsetRange(0, 10), (), 0, 0, LogBounds(0, 10))
    return Plan(turn(n, epoch, pipeline), TurnKind.RUN, run_id, NOON, {TP: planned}, "read_committed", {"a": 1})


def settlement(n: int, run_id: str = "run", epoch: int = 0, pipeline: str = "orders") -> Settlement:
    kind = TurnKind.RUN if n else TurnKind.GENESIS
    return Settlement(turn(n, epoch, pipeline), kind, run_id, NOON, {TP: SettledPartition("id", 0, PartitionState(n))})


def store_turn(
    store: LedgerStore,
    planned: Plan,
    *files: AddAction,
    settled: Settlement | None = None,
    decisions: Sequence[OutcomeRow] = (),
) -> None:
    """Stores a plan, its outcomes, its decisions if there are any, and its settlement if it is given."""
    store.store_plan(planned)
    if planned.kind in (TurnKind.RUN, TurnKind.VOID):
        store.store_outcomes(planned.turn, list(files))
    if decisions:
        store.store_decisions(planned, planned.run_id, {TP: decisions})
    if settled is not None:
        store.store_settlement(settled, planned)


def newest_of(store: LedgerStore) -> Settlement:
    """Returns the newest settlement of a lane that has begun."""
    found = store.newest()
    assert found is not None
    return found


def written(
    store: LedgerStore,
    of: TurnId,
    rows: list[tuple[int, int, str]],
    tp: TopicPartition = TP,
    message: str | None = None,
    error_class: str | None = None,
    hashes: Mapping[int, int | str] | None = None,
    due: datetime | None = None,
    place: str | None = None,
) -> AddAction:
    """Writes a file of (offset, attempt, outcome) as a Spark task does: on disk, with statistics, in no log.

    `error_class` and `place` are those of the rows that failed or were dropped, and `hashes` has the hashes
    of keys by offset, each a number, or a text as version 0.2.0 has stored it.
    """
    values = [
        {"pipeline": of.pipeline, "plan_date": DAY, "lane": of.lane, "epoch": of.epoch, "turn": of.n, "run_id": "run",
         "topic": tp.topic, "partition": tp.partition, "offset": offset,
         "attempt": attempt, "outcome": outcome, "error_message": message, "handled_at": NOON,
         "due": due, "error_class": error_class if outcome in ("failed", "dropped") else None,
         "error_place": place if outcome in ("failed", "dropped") else None,
         "key_hash" if isinstance(hashed := (hashes or {}).get(offset), str) else "key_hash64": hashed}
        for offset, attempt, outcome in rows
    ]  # fmt: skip
    table = pa.Table.from_pylist(values, schema=OUTCOMES).drop_columns(["plan_date"])
    name = f"plan_date={DAY.isoformat()}/part-{of.n}-{tp.partition}-{time.monotonic_ns()}.parquet"
    filesystem, base = arrow_filesystem(store.outcomes.uri)
    path = f"{base}/{name}"
    filesystem.create_dir(os.path.dirname(path))
    pq.write_table(table, path, filesystem=filesystem, write_page_checksum=True)
    info = filesystem.get_file_info(path)
    bounds = {
        column: (min(values_of), max(values_of))
        for column in ("lane", "epoch", "turn", "topic", "partition", "offset", "attempt", "outcome")
        if (values_of := table[column].to_pylist())
    }
    stats = {
        "numRecords": len(rows),
        "minValues": {column: low for column, (low, _) in bounds.items()},
        "maxValues": {column: high for column, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0) | {"end_offset": len(rows)},
    }
    partition: dict[str, str | None] = {"plan_date": DAY.isoformat()}
    return AddAction(name, info.size, partition, info.mtime_ns // 1_000_000, True, json.dumps(stats))
