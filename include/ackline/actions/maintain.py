"""Keeps the tables below an audit root quick, and removes torn files from their logs.

`maintain` runs beside the runs of a lane; appends wait only while a compaction commits, and while the log is
checkpointed. Only Ackline may compact the tables of the ledger: delta-rs lets two compactions replace the same files,
and then the table holds every row twice. Ackline's carry a transaction id of their own, so of two at once one fails.
The log also stops naming files of void turns that do not exist any more.

Users may compact and clean the output tables with tools that take no lock of ours. So a compaction of these commits
only as the version right after the one that it has read. If another commit comes first, the compaction fails, and is
tried again if its files are still in the newest version.

`repair` removes torn files from the logs of local tables. A power cut can tear the newest log entry, and only before
any process acted on it: every process syncs an entry before it acts on it (`DeltaLog.secure`). Without that entry the
table is as it was before the commit, and the next run makes the commit again. A checkpoint is torn only by damage to
the disk. It is derived from the log, so it may go where the checkpoint before it and the entries since are there.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from ackline.delta.compaction import Maintained
from ackline.delta.folder import sync_folder
from ackline.delta.log import POINTER, is_whole
from ackline.delta.table import FencedTable
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.outputs.output_table import OUTPUT_LAYOUT, OutputCompactor, output_tables
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import LaneFolder, all_lanes, check_layout, folders_in, lanes_of
from ackline.tables.maintenance import LAYOUTS, RETENTION, LedgerCompactor
from ackline.tables.schemas import TABLES

_NAMED_FAILURES = 5


def maintain(root: str, retention: timedelta = RETENTION) -> list[Maintained]:
    """Compact, vacuum and checkpoint each table below an audit root, the output tables there too.

    A table that can't be read or written, or a pipeline whose folder can't be listed, holds up no other one. Raises
    FatalError for such tables at the end, and TransientError if later tries may succeed for all of them. Raises
    ConfigError for a retention below RETENTION and for tables of the first layout, and has done nothing then.
    """
    if retention < RETENTION:
        raise ConfigError(
            f"a retention of {retention} is too short: it would remove outcomes that no commit names yet or that a run "
            f"still reads; keep files for {RETENTION.days} days at least",
            key="retention",
        )
    check_layout(root)
    done: list[Maintained] = []
    failed: list[AcklineError] = []
    for pipeline in sorted(folders_in(root)):
        try:
            tables = [table for lane in lanes_of(root, pipeline) for table in _tables_of(lane, retention)]
        except AcklineError as error:
            failed.append(error)
            continue
        for maintain_table in tables:
            try:
                if (maintained := maintain_table()) is not None:
                    done.append(maintained)
            except AcklineError as error:
                failed.append(error)
    if failed:
        texts = list(dict.fromkeys(map(str, failed)))  # what stops one table of a lane may stop the others
        named = "; ".join(texts[:_NAMED_FAILURES])
        more = f"; and {len(texts) - _NAMED_FAILURES} more" if len(texts) > _NAMED_FAILURES else ""
        kind = TransientError if all(isinstance(error, TransientError) for error in failed) else FatalError
        raise kind(f"{len(done)} tables were maintained, {len(failed)} were not: {named}{more}")
    return done


def _tables_of(lane: LaneFolder, retention: timedelta) -> Iterator[Callable[[], Maintained | None]]:
    """Yields for each table of a lane the function that maintains it; the function returns None for a table that does
    not exist, or that Ackline does not rewrite."""
    for name in TABLES:
        compactor = LedgerCompactor(AuditTable(lane.folder, name), LAYOUTS[name], retention, lane.folder)
        yield partial(compactor.maintain, lane.pipeline, lane.lane, name)
    for output in output_tables(lane):
        of_output = OutputCompactor(output, OUTPUT_LAYOUT, retention)
        yield partial(of_output.maintain, lane.pipeline, lane.lane, f"outputs/{output.name}")


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
            with table.errors(), table.lock():
                torn = _torn_files(lane, table)
                for file in torn:
                    if file.removable:
                        Path(file.file).unlink()
                        sync_folder(Path(file.file).parent)  # or the torn file is back after the next power cut
            all_torn += torn
    return all_torn


def _local_tables(lane: LaneFolder) -> list[FencedTable]:
    tables: list[FencedTable] = [*(AuditTable(lane.folder, name) for name in TABLES), *output_tables(lane)]
    return [table for table in tables if table.has_lock and table.log.files() != ([], [])]


def _torn_files(lane: LaneFolder, table: FencedTable) -> list[TornFile]:
    log, folder = table.log, table.storage.local
    assert folder is not None

    def torn(path: str, what: str, removable: bool) -> TornFile:
        return TornFile(lane.pipeline, lane.lane, table.name, str(folder / path), what, removable)

    files = log.files()
    broken = [checkpoint for checkpoint in files.checkpoints if not log.is_readable(checkpoint)]
    whole = [checkpoint.version for checkpoint in files.checkpoints if checkpoint not in broken]
    start = max(whole, default=-1)
    later = [entry for entry in files.entries if entry.version > start]
    # Covered by each entry since the newest checkpoint that is whole, or since the table began.
    covered = bool(whole or later) and [entry.version for entry in later] == list(
        range(start + 1, start + 1 + len(later))
    )
    unreadable = [torn(checkpoint.path, "checkpoint", covered) for checkpoint in broken]
    if _is_dangling(folder, whole):
        unreadable.append(torn(POINTER, "pointer to a checkpoint", True))
    cut = [entry for entry in later if not is_whole(folder / entry.path)]
    return unreadable + [torn(entry.path, "log entry", entry is files.entries[-1]) for entry in cut]


def _is_dangling(folder: Path, whole: list[int]) -> bool:
    """Returns whether the pointer, which only other tools write, names a checkpoint that can't be read."""
    try:
        pointer = json.loads((folder / POINTER).read_bytes())
        return pointer["version"] not in whole and "v2Checkpoint" not in pointer
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return False  # delta-rs passes over it
