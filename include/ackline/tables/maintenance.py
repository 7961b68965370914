"""Keeps the tables of the ledger quick, and removes torn files from their logs.

Keeps the tables quick: compacts small files, removes unused ones, and checkpoints the log.

No row that counts and no transaction id changes, so the fences and reads of a turn work after it as before. Files are
rewritten and removed beside the runs of the lane; appends wait only while a compaction commits, and while the log is
checkpointed.
Only Ackline may compact these tables: delta-rs lets two compactions replace the same files, and then the table holds
every row twice. Ackline's compactions carry a transaction id of their own, so of two at once one fails. The log also
stops naming files of void turns that do not exist any more (lost_files.py).

Finds torn files in the logs of local tables, and removes those without which the table is whole.

A power cut can tear the newest log entry, and only before any process acted on it: every process syncs an entry before
it acts on it (`delta_log.DeltaLog.secure`). Without that entry the table is as it was before the commit, and the next
run makes the commit again. A checkpoint is torn only by damage to the disk. It is derived from the log, so it may go
where the checkpoint before it and the entries since are there.
"""

import contextlib
import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.tables.append import REWRITE
from ackline.tables.effective import void_turns
from ackline.tables.files import DataFile, DataFileWriter, partition_folder, sync_folder
from ackline.tables.layout import LaneFolder, all_lanes
from ackline.tables.log import POINTER, DeltaLog, is_whole
from ackline.tables.lost_files import drop_lost_files
from ackline.tables.output_maintenance import (
    COMPACTION_TRIES,
    Layout,
    Maintained,
    joined,
    maintain_output,
    output_tables,
    paths_of,
    remove_files,
    small_files,
)
from ackline.tables.reads import dataset_of
from ackline.tables.schemas import TABLES
from ackline.tables.table import AuditTable

RETENTION = timedelta(days=7)
"""How long a file stays at least after the newest version stopped naming it, because a reader may use an older version.
A file of outcomes has no commit that names it until its Spark job ends. Delta's own default."""


# Plans and settlements have small row groups: a compacted file holds many, each with up to 100,000 pending ranges, and
# a step reads one of them.
LAYOUTS = {
    "plans": Layout(4 << 20, 16),
    "outcomes": Layout(64 << 20, 131_072),
    "settlements": Layout(4 << 20, 16),
}
_NAMED_FAILURES = 5


class OpenTurn(NamedTuple):
    """A turn that is planned and not settled."""

    epoch: int
    n: int
    planned_at: datetime


def maintain(root: str, retention: timedelta = RETENTION) -> list[Maintained]:
    """Compact, vacuum and checkpoint each table below an audit root, the output tables there too.

    A table that can't be read or written holds up no other one. Raises FatalError for such tables at the end,
    TransientError if later tries may succeed for all of them, and ConfigError for a retention below RETENTION.
    """
    if retention < RETENTION:
        raise ConfigError(
            f"a retention of {retention} is too short: it would remove outcomes that no commit names yet or that a run "
            f"still reads; keep files for {RETENTION.days} days at least",
            key="retention",
        )
    done: list[Maintained] = []
    failed: list[FatalError | TransientError] = []
    for lane in all_lanes(root):
        for maintain_table in _tables_of(lane, retention):
            try:
                if (maintained := maintain_table()) is not None:
                    done.append(maintained)
            except (FatalError, TransientError) as error:
                failed.append(error)
    if failed:
        named = "; ".join(str(error) for error in failed[:_NAMED_FAILURES])
        more = f"; and {len(failed) - _NAMED_FAILURES} more" if len(failed) > _NAMED_FAILURES else ""
        kind = TransientError if all(isinstance(error, TransientError) for error in failed) else FatalError
        raise kind(f"{len(done)} tables were maintained, {len(failed)} were not: {named}{more}")
    return done


def _tables_of(lane: LaneFolder, retention: timedelta) -> Iterator[Callable[[], Maintained | None]]:
    """Yields for each table of a lane the function that maintains it; the function returns None for a table that does
    not exist."""
    for name in TABLES:
        yield partial(_maintain, lane, AuditTable(lane.folder, name), retention)
    for output in output_tables(lane):
        yield partial(maintain_output, lane, output, retention)


def open_turns(folder: str) -> list[OpenTurn]:
    """Returns the turns of a lane, whose tables are in `folder`, that are planned and not settled.

    The logs alone hold the last turn planned and settled in each epoch, so only the rows of open turns are read.
    """
    plans, settlements = AuditTable(folder, "plans"), AuditTable(folder, "settlements")
    # Plans are read first: a turn that another process settles between the two reads then counts as settled.
    planned, settled = plans.transactions(), settlements.transactions()
    opened = []
    for application, n in planned.items():
        of, kind = application.rsplit("/", 1)
        if kind == "plan" and n > settled.get(f"{of}/settlement", -1):
            epoch = int(of.rsplit("/", 1)[1])
            rows = plans.read({"epoch": epoch, "turn": n}, ["planned_at"])
            opened.append(OpenTurn(epoch, n, min(rows["planned_at"].to_pylist())))
    return opened


def _maintain(lane: LaneFolder, table: AuditTable, retention: timedelta) -> Maintained | None:
    compacted = busy = 0
    if table.open() is None:
        return None
    with table.errors():
        before = len(table.opened().file_uris())
        if table.name == "outcomes":
            # Before the compaction, which would fail on a file that does not exist. The process that closed a turn as
            # void may have died before it did this.
            drop_lost_files(table, void_turns(lane.folder))
        for day in _fragmented(table):
            done = _compact(lane.folder, table, day)
            compacted, busy = compacted + (done or 0), busy + (done is None)
        removed = _vacuum(lane.folder, table, retention)
        table.checkpoint()
        after = table.opened()
        files = len(after.file_uris())
        return Maintained(
            lane.pipeline, lane.lane, table.name, before, files, compacted, busy, removed, after.version()
        )


def _fragmented(table: AuditTable) -> list[date]:
    """Returns the days, oldest first, that have at least two files below the size of a compacted one."""
    days = [file["partition.plan_date"] for file in small_files(table.opened(), LAYOUTS[table.name])]
    return sorted({day for day in days if days.count(day) > 1})


def _compact(folder: str, table: AuditTable, day: date) -> int | None:
    """Merge the small files of a day. Returns how many they were; None if other compactions were always faster."""
    merged = 0
    for _ in range(COMPACTION_TRIES):
        # The version is chosen before open turns are looked up, so it cannot hold a turn that opens later.
        version = table.opened()
        open_now = open_turns(folder) if table.name == "outcomes" else []
        files = [file for file in small_files(version, LAYOUTS[table.name]) if file["partition.plan_date"] == day]
        chosen = [file for file in files if not _may_hold(file, open_now)]
        with contextlib.suppress(CommitFailedError):
            for together in joined(chosen, LAYOUTS[table.name].size):
                merged += _merge(table, version, together)
            return merged
    return None


def _may_hold(file: dict[str, Any], turns: Iterable[OpenTurn]) -> bool:
    """Returns whether a file may hold outcomes of an open turn: settle counts acked records by the statistics of files
    that hold nothing else, so these files stay as they are."""

    def within(name: str, value: int) -> bool:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        return low is None or high is None or low <= value <= high  # None: a file without statistics

    return any(within("epoch", turn.epoch) and within("turn", turn.n) for turn in turns)


def _merge(table: AuditTable, version: DeltaTable, files: Sequence[dict[str, Any]]) -> int:
    """Replace files by one that holds their rows. Returns how many they were.

    The new file is written and synced outside the lock, and no log entry names it until then. The commit is made upon a
    version that still has all the files: under the lock of a local table that is certain, elsewhere the transaction id
    makes the commit fail if another compaction is in between. Raises CommitFailedError then.
    """
    day = files[0]["partition.plan_date"].isoformat()
    merged = _rewrite(table, version, day, {file["path"] for file in files})
    try:
        with table.lock():
            newest = table.opened()
            if not {file["path"] for file in files} <= paths_of(newest):
                raise CommitFailedError("another compaction has replaced these files")
            now = int(time.time() * 1000)
            values: dict[str, str | None] = {"plan_date": day}
            added = AddAction(merged.path, merged.size, values, merged.modification_time, False, merged.stats)
            removed = [RemoveAction(file["path"], False, now, file["size_bytes"], values) for file in files]
            table.commit(newest, [added, *removed], [Transaction(REWRITE, newest.version() + 1)])
    except CommitFailedError:
        if merged.path in paths_of(table.opened()):  # our commit was stored, and its answer got lost
            return len(files)
        table.storage.filesystem.delete_file(merged.path)
        raise
    return len(files)


def _rewrite(table: AuditTable, version: DeltaTable, day: str, paths: set[str]) -> DataFile:
    """Writes the rows of files to one new file, a row group at a time."""
    names = {path.rsplit("/", 1)[-1] for path in paths}
    dataset = dataset_of(table, version)
    fragments = [fragment for fragment in dataset.get_fragments() if fragment.path.rsplit("/", 1)[-1] in names]
    rows = ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
    columns = [name for name in dataset.schema.names if name != "plan_date"]
    schema = pa.schema([dataset.schema.field(name) for name in columns])
    path = f"{partition_folder({'plan_date': day})}/compacted-{uuid.uuid4()}.parquet"
    writer = DataFileWriter(table.storage, path, schema)
    size, waiting = LAYOUTS[table.name].rows, schema.empty_table()
    try:
        for batch in rows.to_batches(columns=columns):
            waiting = pa.concat_tables([waiting, pa.table(batch).cast(schema)])
            while waiting.num_rows >= size:
                writer.write(waiting.slice(0, size), size)
                waiting = waiting.slice(size)
        if waiting.num_rows:
            writer.write(waiting, size)
    except BaseException:
        writer.discard()
        raise
    return writer.finish()


def _vacuum(folder: str, table: AuditTable, retention: timedelta) -> int:
    """Remove files that no version within the retention names. Returns how many.

    A file of outcomes is younger than the plan of its turn. While a turn is open, the retention therefore reaches back
    beyond its plan, so that the files of its tasks stay however long the tasks take. No lock is needed: a commit names
    a file only while its turn is open, or right after a compaction has written it.
    """
    now = datetime.now(UTC)
    ages = [now - turn.planned_at + timedelta(days=1) for turn in open_turns(folder)]
    hours = math.ceil(max([retention, *ages]) / timedelta(hours=1))
    unused = table.opened().vacuum(hours, dry_run=True, full=True)  # without dry_run it adds two commits, unsynced
    return remove_files(table.storage, unused)


@dataclass(frozen=True, slots=True)
class TornFile:
    """A file of a table's log that is not whole."""

    pipeline: str
    lane: str
    table: str
    file: str
    what: str
    removable: bool
    """Whether the table is whole without it. If not, only a backup helps."""


def torn_files(root: str) -> list[TornFile]:
    """Returns the torn files below an audit root, and changes nothing. An object store has none.

    Raises FatalError if the root can't be read.
    """
    return [torn for lane in all_lanes(root) for table in _local_tables(lane) for torn in _torn_files(lane, table)]


def repair(root: str) -> list[TornFile]:
    """Removes the torn files below an audit root that may go. Returns all torn files.

    Each table is looked through again under its lock, because a run may have gone on since `torn_files`.
    """
    all_torn = []
    for lane in all_lanes(root):
        for table in _local_tables(lane):
            with table.lock():
                torn = _torn_files(lane, table)
                for file in torn:
                    if file.removable:
                        Path(file.file).unlink()
                        sync_folder(Path(file.file).parent)  # or the torn file is back after the next power cut
            all_torn += torn
    return all_torn


def _local_tables(lane: LaneFolder) -> list[AuditTable]:
    tables = [*(AuditTable(lane.folder, name) for name in TABLES), *output_tables(lane)]
    return [table for table in tables if table.has_lock and table.log.files() != ([], [])]


def _torn_files(lane: LaneFolder, table: AuditTable) -> list[TornFile]:
    log, folder = table.log, table.storage.folder
    assert folder is not None

    def torn(path: str, what: str, removable: bool) -> TornFile:
        return TornFile(lane.pipeline, lane.lane, table.name, str(folder / path), what, removable)

    files = log.files()
    broken = [checkpoint for checkpoint in files.checkpoints if not log.is_readable(checkpoint)]
    whole = [checkpoint.version for checkpoint in files.checkpoints if checkpoint not in broken]
    unreadable = [torn(checkpoint.path, "checkpoint", _is_covered(log, whole)) for checkpoint in broken]
    if _is_dangling(folder, whole):
        unreadable.append(torn(POINTER, "pointer to a checkpoint", True))
    start, last = max(whole, default=-1), max((entry.version for entry in files.entries), default=-1)
    later = [entry for entry in files.entries if entry.version > start and not is_whole(folder / entry.path)]
    return unreadable + [torn(entry.path, "log entry", entry.version == last) for entry in later]


def _is_covered(log: DeltaLog, whole: list[int]) -> bool:
    """Returns whether the log has each entry since the newest checkpoint that is whole, or since the table began."""
    start = max(whole, default=-1)
    later = [entry.version for entry in log.files().entries if entry.version > start]
    return bool(whole or later) and later == list(range(start + 1, start + 1 + len(later)))


def _is_dangling(folder: Path, whole: list[int]) -> bool:
    """Returns whether the pointer, which only other tools write, names a checkpoint that can't be read."""
    try:
        version = json.loads((folder / POINTER).read_bytes())["version"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return False  # delta-rs passes over it
    return version not in whole
