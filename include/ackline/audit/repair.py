"""Finds torn files in the logs of local tables, and removes those without which the table is whole.

A power cut can tear the newest log entry, and only before any process acted on it: every process syncs an entry before
it acts on it (`delta_log.DeltaLog.secure`). Without that entry the table is as it was before the commit, and the next
run makes the commit again. A checkpoint is torn only by damage to the disk. It is derived from the log, so it may go
where the checkpoint before it and the entries since are there.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ackline.audit.delta_log import POINTER, DeltaLog, is_whole
from ackline.audit.layout import LaneFolder, all_lanes
from ackline.audit.output_maintenance import output_tables
from ackline.audit.schemas import TABLES
from ackline.audit.storage import sync_folder
from ackline.audit.table import AuditTable


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
