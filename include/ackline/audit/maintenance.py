"""Keeping the tables quick: small files made one, the log summed up, and what nothing refers to any more removed.

No row changes and no transaction id does, so a turn is refused, read and settled after it as before. Each write is
made under the lock that the appends take, a pipeline's day at a time. Where there is none (an object store), an append
goes through beside a compaction, and of two compactions one gives up. Nobody else may compact these tables: delta-rs
lets two compactions replace the same files, and then every row is there twice.
"""

import contextlib
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from ackline.audit.schemas import TABLES
from ackline.audit.table import AuditTable
from ackline.errors import ConfigError

RETENTION = timedelta(days=7)
"""The least that a file is kept which the newest version does not name: somebody may be reading an older version, and
outcomes lie on disk for as long as their Spark job takes until a commit names them. Delta's own default."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is compacted: bytes of a file, more or less (larger ones are left alone); rows of a row group; and
    columns of numbers that hardly differ from one row to the next, whose differences take a few bits."""

    size: int
    rows: int
    deltas: tuple[str, ...] = ()


# The newest settlement is read from a file that holds others, with a hundred thousand pending in each perhaps.
LAYOUTS = {
    "plans": Layout(4 << 20, 16),
    "outcomes": Layout(64 << 20, 131_072, ("offset", "record_timestamp")),
    "settlements": Layout(4 << 20, 16),
}
_TRIES = 3


class Day(NamedTuple):
    """A partition of a table: what one pipeline has planned on one day."""

    plan_date: date
    pipeline: str


class OpenTurn(NamedTuple):
    """A turn that is planned and not settled, and when it was planned."""

    day: Day
    planned_at: datetime


@dataclass(frozen=True, slots=True)
class Maintained:
    """What was done to one table. `busy` counts a pipeline's days with small files that were left for the next time: a
    turn is open there, or somebody else was writing."""

    table: str
    files_before: int
    files: int
    compacted: int
    busy: int
    removed: int
    version: int


def maintain(root: str, retention: timedelta = RETENTION) -> list[Maintained]:
    """Compact, vacuum and checkpoint each table that is there below an audit root.

    Raises ConfigError for a retention below RETENTION, and FatalError where a table can't be read or written.
    """
    if retention < RETENTION:
        raise ConfigError(
            f"a retention of {retention} is too short: outcomes that no commit names yet, or that a run still reads, "
            f"would be removed; keep files for {RETENTION.days} days at least",
            key="retention",
        )
    tables = [AuditTable(root, name) for name in TABLES]
    return [_maintain(root, table, retention) for table in tables if table.open() is not None]


def open_turns(root: str) -> list[OpenTurn]:
    """The turns of all pipelines and lanes that are planned and not settled."""
    keys = ["pipeline", "lane", "epoch", "turn"]
    # Plans first: a turn that is settled between the two looks is then taken for settled, which it is.
    planned = AuditTable(root, "plans").read(None, [*keys, "plan_date", "planned_at"])
    settled = AuditTable(root, "settlements").read(None, keys)
    planned = planned.group_by([*keys, "plan_date"]).aggregate([("planned_at", "min")])
    found = planned.join(settled.group_by(keys).aggregate([]), keys, join_type="left anti").to_pylist()
    return [OpenTurn(Day(row["plan_date"], row["pipeline"]), row["planned_at_min"]) for row in found]


def _maintain(root: str, table: AuditTable, retention: timedelta) -> Maintained:
    compacted = busy = 0
    try:
        before = len(_opened(table).file_uris())
        for day in _fragmented(table):
            done = _compact(root, table, day)
            compacted, busy = compacted + (done or 0), busy + (done is None)
        removed = _vacuum(root, table, retention)
        after = _checkpoint(table)
        return Maintained(table.name, before, len(after.file_uris()), compacted, busy, removed, after.version())
    except (DeltaError, OSError) as error:
        raise table.unreadable(error) from error


def _opened(table: AuditTable) -> DeltaTable:
    found = table.open()
    assert found is not None
    return found


def _fragmented(table: AuditTable) -> list[Day]:
    """The days, oldest first, in which two files or more are smaller than they need to be."""
    files = pa.table(_opened(table).get_add_actions(flatten=True))
    if not files.num_rows:
        return []
    small = files.filter(pc.less(files["size_bytes"], LAYOUTS[table.name].size))
    counts = small.group_by(["partition.plan_date", "partition.pipeline"]).aggregate([([], "count_all")]).to_pylist()
    days = [Day(row["partition.plan_date"], row["partition.pipeline"]) for row in counts if row["count_all"] > 1]
    return sorted(days)


def _compact(root: str, table: AuditTable, day: Day) -> int | None:
    """Make one of a day's small files, and say how many those were; None where that is left for the next time.

    Outcomes of an open turn stay as they are: settle counts what was acked from the statistics of files that hold
    nothing else. The version is chosen before looking for open turns, so one that opens later is not in it.
    """
    for _ in range(_TRIES):
        with table.guard(), contextlib.suppress(CommitFailedError):
            version = _opened(table)
            if not table.guarded:
                _claim(version)
            if table.name == "outcomes" and any(one.day == day for one in open_turns(root)):
                return None
            return _rewrite(version, day, LAYOUTS[table.name])
    return None


def _claim(version: DeltaTable) -> None:
    """Make every compaction of an older version fail: that conflict is found by delta-rs, two compactions are none."""
    version.alter.set_table_description(f"last compacted from version {version.version()}")


def _rewrite(version: DeltaTable, day: Day, layout: Layout) -> int:
    packed = ColumnProperties(encoding="DELTA_BINARY_PACKED", dictionary_enabled=False)
    done = version.optimize.compact(
        [("pipeline", "=", day.pipeline), ("plan_date", "=", day.plan_date.isoformat())],
        layout.size,
        max_concurrent_tasks=1,
        writer_properties=WriterProperties(
            compression="ZSTD",
            compression_level=1,
            max_row_group_size=layout.rows,
            column_properties=dict.fromkeys(layout.deltas, packed),
        ),
    )
    return int(done["numFilesRemoved"])


def _vacuum(root: str, table: AuditTable, retention: timedelta) -> int:
    """Remove files that no version within the retention names, and say how many.

    A file of outcomes is younger than its plan. So, while a turn is open, the retention reaches beyond the time it was
    planned, and what its tasks have written stays however long they take.
    """
    with table.guard():
        now = datetime.now(UTC)
        ages = [now - one.planned_at + timedelta(days=1) for one in open_turns(root)]
        hours = math.ceil(max([retention, *ages]) / timedelta(hours=1))
        version = _opened(table)
        unused = version.vacuum(hours, dry_run=True, full=True)
        if unused:  # each vacuum is two commits
            version.vacuum(hours, dry_run=False, full=True)
        return len(unused)


def _checkpoint(table: AuditTable) -> DeltaTable:
    """Sum up the log, transaction ids included, and remove what of it has expired (`delta.logRetentionDuration`)."""
    with table.guard():
        version = _opened(table)
        version.create_checkpoint()
        version.cleanup_metadata()
        return version
