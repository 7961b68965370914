"""Reads the newest turns of a lane as totals over all partitions, and the Delta versions that hold a turn.

Both are bounded: a lane may have thousands of partitions and millions of turns.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from ackline.offsets import TopicPartition
from ackline.step_figures import StepFigures, figures_over
from ackline.turns import TurnId

MOST_ROWS = 60_000
"""Rows of settlements that are read at most: 60 turns of 1,000 partitions."""
MOST_ENTRIES = 200
"""How many of the newest entries of a Delta log are searched for a turn."""
STEP_TURNS = 100
"""Over how many of the newest turns the figures of steps are added up."""
_COLUMNS = ["turn", "kind", "run_id", "actor", "reason", "settled_at", "counts", "figures"]
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
    figures: Mapping[str, float] = field(default_factory=dict)
    """The sums of `lag` and `pending_KIND`; a figure that no partition has is left out."""


def recent_turns(store: LedgerStore, newest: TurnId, partitions: int, limit: int) -> list[TurnTotals]:
    """Returns the newest turns of an epoch, oldest first: `limit` of them, or as many as MOST_ROWS rows hold.

    `partitions` is how many the lane has. Statistics rule out the files of all other turns. Raises FatalError if the
    table can't be read.
    """
    lowest = newest.n - max(1, min(limit, MOST_ROWS // max(1, partitions))) + 1
    rows = _rows(store.settlements, newest.epoch, lowest, _COLUMNS)
    if not rows.num_rows:
        return []
    outcomes, figures = _sums(rows, "counts"), _sums(rows, "figures")
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
            {name: number for name, number in figures.get(row["turn"], {}).items() if name in _SUMMED},
        )
        for row in turns.sort_by("turn").to_pylist()
    ]


def step_figures(store: LedgerStore, newest: TurnId, names: Sequence[str] | None = None) -> StepFigures:
    """Returns what `source` and the steps `names` did in the last STEP_TURNS turns of an epoch, in those that met
    records; without `names`, the steps of the newest such turn.

    Raises FatalError if the table can't be read.
    """
    lowest, columns = newest.n - STEP_TURNS + 1, ["turn", "steps"]
    rows = _rows(store.settlements, newest.epoch, lowest, columns, ds.field("steps").is_valid())
    return figures_over(rows.sort_by("turn")["steps"].to_pylist() if rows.num_rows else (), names)


def log_starts_at(store: LedgerStore, turn: TurnId) -> dict[TopicPartition, int]:
    """Returns the log start of each partition as a settled turn has stored it, where it is known."""
    rows = store.settlements.read({"epoch": turn.epoch, "turn": turn.n}, ["topic", "partition", "figures"])
    starts = {}
    for row in rows.to_pylist():
        start = dict(row["figures"] or ()).get("log_start")
        if start is not None:
            starts[TopicPartition(row["topic"], row["partition"])] = int(start)
    return starts


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
    try:
        for entry in table.log.files().entries[-MOST_ENTRIES:]:
            with table.storage.filesystem.open_input_file(entry.path) as file:
                for line in file.read().splitlines():
                    if b'"txn"' in line:
                        transaction: dict[str, Any] = json.loads(line).get("txn") or {}
                        if transaction:
                            versions[transaction["appId"], transaction["version"]] = entry.version
    except FileNotFoundError:  # maintenance has removed an entry since the folder was listed
        return versions
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise table.error(error) from error
    return versions


def _rows(
    settlements: AuditTable, epoch: int, lowest: int, columns: list[str], also: ds.Expression | None = None
) -> pa.Table:
    version = settlements.open()
    if version is None:
        return pa.table({})
    wanted = (ds.field("epoch") == epoch) & (ds.field("turn") >= lowest)
    wanted = wanted if also is None else wanted & also
    try:
        # Arrow applies the filter to the statistics of each file too, and so opens those of the newest turns only.
        return settlements.dataset(version, {"epoch": epoch}).to_table(columns=columns, filter=wanted)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise settlements.error(error) from error


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
