"""Keeps the tables quick: compacts small files, removes unused ones, and checkpoints the log.

No row and no transaction id changes, so the fences and reads of a turn work after it as before. Each write holds the
lock that appends take, for one day of one lane at a time. An object store has no such lock: there an append
succeeds beside a compaction, and of two compactions one fails. Only Ackline may compact these tables: delta-rs lets two
compactions replace the same files, and then the table holds every row twice.
"""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from ackline.audit.layout import LaneFolder, all_lanes
from ackline.audit.schemas import TABLES
from ackline.audit.table import AuditTable
from ackline.errors import ConfigError

RETENTION = timedelta(days=7)
"""How long a file stays at least after the newest version stopped naming it, because a reader may use an older version.
A file of outcomes has no commit that names it until its Spark job ends. Delta's own default."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is compacted."""

    size: int
    """Bytes of a compacted file, roughly. Larger files stay as they are."""
    rows: int
    """Rows of a row group."""
    delta_encoded: tuple[str, ...] = ()
    """Columns of numbers that hardly differ from one row to the next: their differences take a few bits."""


# Plans and settlements have small row groups: a compacted file holds many, each with up to 100,000 pending ranges, and
# a step reads one of them.
LAYOUTS = {
    "plans": Layout(4 << 20, 16),
    "outcomes": Layout(64 << 20, 131_072, ("offset", "record_timestamp")),
    "settlements": Layout(4 << 20, 16),
}
_COMPACTION_TRIES = 3
"""How often a compaction is tried beside writers that no lock keeps out. The next maintenance tries again."""


class OpenTurn(NamedTuple):
    """A turn that is planned and not settled, and the UTC day of its plan: its partition of the tables."""

    plan_date: date
    planned_at: datetime


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did to one table of one lane."""

    pipeline: str
    lane: str
    table: str
    files_before: int
    files: int
    compacted: int
    """Files that were merged into larger ones."""
    busy: int
    """Days that stay fragmented until the next maintenance, because a turn is open there or others were writing."""
    removed: int
    """Unused files that were removed."""
    version: int


def maintain(root: str, retention: timedelta = RETENTION) -> list[Maintained]:
    """Compact, vacuum and checkpoint each table below an audit root.

    Raises ConfigError for a retention below RETENTION, and FatalError if a table can't be read or written.
    """
    if retention < RETENTION:
        raise ConfigError(
            f"a retention of {retention} is too short: it would remove outcomes that no commit names yet or that a run "
            f"still reads; keep files for {RETENTION.days} days at least",
            key="retention",
        )
    lanes = [(lane, AuditTable(lane.folder, name)) for lane in all_lanes(root) for name in TABLES]
    return [_maintain(lane, table, retention) for lane, table in lanes if table.open() is not None]


def open_turns(folder: str) -> list[OpenTurn]:
    """Returns the turns of a lane, whose tables are in `folder`, that are planned and not settled."""
    keys = ["epoch", "turn"]
    # Plans are read first: a turn that another process settles between the two reads then counts as settled.
    planned = AuditTable(folder, "plans").read(None, [*keys, "plan_date", "planned_at"])
    settled = AuditTable(folder, "settlements").read(None, keys)
    planned = planned.group_by([*keys, "plan_date"]).aggregate([("planned_at", "min")])
    unsettled = planned.join(settled.group_by(keys).aggregate([]), keys, join_type="left anti").to_pylist()
    return [OpenTurn(row["plan_date"], row["planned_at_min"]) for row in unsettled]


def _maintain(lane: LaneFolder, table: AuditTable, retention: timedelta) -> Maintained:
    compacted = busy = 0
    try:
        before = len(_opened(table).file_uris())
        for day in _fragmented(table):
            done = _compact(lane.folder, table, day)
            compacted, busy = compacted + (done or 0), busy + (done is None)
        removed = _vacuum(lane.folder, table, retention)
        after = _checkpoint(table)
        files = len(after.file_uris())
        return Maintained(
            lane.pipeline, lane.lane, table.name, before, files, compacted, busy, removed, after.version()
        )
    except (DeltaError, OSError) as error:
        raise table.error(error) from error


def _opened(table: AuditTable) -> DeltaTable:
    version = table.open()
    assert version is not None
    return version


def _fragmented(table: AuditTable) -> list[date]:
    """Returns the days, oldest first, that have at least two files below the size of a compacted one."""
    files = pa.table(_opened(table).get_add_actions(flatten=True))
    if not files.num_rows:
        return []
    small = files.filter(pc.less(files["size_bytes"], LAYOUTS[table.name].size))
    counts = small.group_by(["partition.plan_date"]).aggregate([([], "count_all")]).to_pylist()
    return sorted(row["partition.plan_date"] for row in counts if row["count_all"] > 1)


def _compact(folder: str, table: AuditTable, day: date) -> int | None:
    """Merge the small files of a day. Returns how many they were; None if the day is left for the next maintenance.

    A day with an open turn keeps its files of outcomes: settle counts acked records by the statistics of files that
    hold nothing else. The version is chosen before open turns are looked up, so it cannot hold a turn that opens later.
    """

    def compact() -> int | None:
        with table.lock():
            version = _opened(table)
            if not table.has_lock:
                _make_older_compactions_fail(version)
            if table.name == "outcomes" and any(turn.plan_date == day for turn in open_turns(folder)):
                return None
            return _rewrite(version, day, LAYOUTS[table.name])

    tries = Retrying(
        retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(_COMPACTION_TRIES), reraise=True
    )
    try:
        return tries(compact)
    except CommitFailedError:
        return None


def _make_older_compactions_fail(version: DeltaTable) -> None:
    """Changes the table's metadata, which delta-rs treats as a conflict. Two compactions are no conflict for it."""
    version.alter.set_table_description(f"last compacted from version {version.version()}")


def _rewrite(version: DeltaTable, day: date, layout: Layout) -> int:
    packed = ColumnProperties(encoding="DELTA_BINARY_PACKED", dictionary_enabled=False)
    done = version.optimize.compact(
        [("plan_date", "=", day.isoformat())],
        layout.size,
        max_concurrent_tasks=1,
        writer_properties=WriterProperties(
            compression="ZSTD",
            compression_level=1,
            max_row_group_size=layout.rows,
            column_properties=dict.fromkeys(layout.delta_encoded, packed),
        ),
    )
    return int(done["numFilesRemoved"])


def _vacuum(folder: str, table: AuditTable, retention: timedelta) -> int:
    """Remove files that no version within the retention names. Returns how many.

    A file of outcomes is younger than the plan of its turn. While a turn is open, the retention therefore reaches back
    beyond its plan, so that the files of its tasks stay however long the tasks take.
    """
    with table.lock():
        now = datetime.now(UTC)
        ages = [now - turn.planned_at + timedelta(days=1) for turn in open_turns(folder)]
        hours = math.ceil(max([retention, *ages]) / timedelta(hours=1))
        version = _opened(table)
        unused = version.vacuum(hours, dry_run=True, full=True)
        if unused:  # a vacuum makes two commits, even of nothing
            version.vacuum(hours, dry_run=False, full=True)
        return len(unused)


def _checkpoint(table: AuditTable) -> DeltaTable:
    """Writes a checkpoint, which holds the transaction ids too, and then removes the log entries that have expired.

    In this order, so that no moment has neither.
    """
    table.checkpoint()
    return _opened(table)
