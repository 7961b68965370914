"""Writes the checkpoints of a table's log, and removes the log entries that they cover.

delta-rs's own checkpoints and its clean-up of the log are off: it syncs no checkpoint and reads none back, but removes
the entries that only the checkpoint still holds.
"""

import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ackline.tables.errors import DamagedError
from ackline.tables.files import sync_file, sync_folder
from ackline.tables.log import LOG, POINTER, DeltaLog
from ackline.tables.object_store import options_of

_ROWS_OF_A_GROUP = 50_000
_LARGE = 1_000
"""Rows from which on a checkpoint is grouped: below, a reader saves nothing."""
_SCRATCH = ".checkpoint"
"""The folder below a local table in which a checkpoint is written and read back."""


class CheckpointError(DamagedError):
    """A checkpoint does not hold what the log holds. It is not part of the log, and no entry was removed."""


def write_checkpoint(log: DeltaLog, table: DeltaTable) -> None:
    """Writes a checkpoint of the version that `table` has loaded. The caller holds the table's lock.

    On a local disk no checkpoint becomes part of the log before it is synced and read back, so a power cut or a kill
    leaves none that is torn. Raises CheckpointError, DeltaError and OSError; then the log is as it was.
    """
    version = table.version()
    if log.files().newest_checkpoint >= version:
        return
    if log.storage.folder is None:  # an object store never shows a part of a file
        table.create_checkpoint()
        written = DeltaTable(log.storage.uri, version, storage_options=options_of(log.storage.uri))
        _compare(written, table, log.transactions(version), log.transactions(version))
        return
    scratch = log.storage.folder / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    try:
        checkpoint = _checkpoint_in(scratch, log, table)
        # From here on the entries that it covers may go: it is on the disk, and has been read back.
        os.replace(checkpoint, log.storage.folder / LOG / checkpoint.name)
        sync_folder(log.storage.folder / LOG)
        _point_at_older_checkpoint(log)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _point_at_older_checkpoint(log: DeltaLog) -> None:
    """Has readers list the log from the checkpoint before the newest on, instead of from its beginning.

    A pointer to the newest one would make delta-rs refuse the table if that is lost. This pointer is not synced:
    delta-rs passes over a torn one.
    """
    assert log.storage.folder is not None
    pointer, checkpoints = log.storage.folder / POINTER, log.files().checkpoints
    if len(checkpoints) < 2:
        pointer.unlink(missing_ok=True)
        return
    rows = pq.read_metadata(log.storage.folder / checkpoints[-2].path).num_rows
    beside = log.storage.folder / _SCRATCH / pointer.name
    beside.write_text(json.dumps({"version": checkpoints[-2].version, "size": rows}))
    os.replace(beside, pointer)


def _checkpoint_in(scratch: Path, log: DeltaLog, table: DeltaTable) -> Path:
    """Writes the checkpoint in a table of its own, which has the same log, and returns its path."""
    assert log.storage.folder is not None
    version, files = table.version(), log.files()
    start = files.newest_checkpoint
    (scratch / LOG).mkdir(parents=True)
    for file in [*files.checkpoints[-1:], *files.entries]:
        if start <= file.version <= version:
            os.link(log.storage.folder / file.path, scratch / file.path)
    DeltaTable(scratch).create_checkpoint()
    checkpoint = scratch / LOG / f"{version:020}.checkpoint.parquet"
    if pq.read_metadata(checkpoint).num_rows >= _LARGE:
        _group_files(checkpoint)
    sync_file(checkpoint)
    for other in set((scratch / LOG).iterdir()) - {checkpoint}:
        other.unlink()  # so that nothing but the checkpoint is read back
    read_back = DeltaLog(type(log.storage)(str(scratch)))
    _compare(DeltaTable(scratch), table, read_back.transactions(version), log.transactions(version))
    return checkpoint


def _group_files(checkpoint: Path) -> None:
    """Gives the rows about files row groups of their own. Each step reads the others alone (`log_state.py`)."""
    grouped = checkpoint.with_suffix(".grouped")
    with pq.ParquetFile(checkpoint) as source, pq.ParquetWriter(grouped, source.schema_arrow) as target:
        others = []
        for batch in source.iter_batches(_ROWS_OF_A_GROUP):
            about_files = pc.or_(pc.is_valid(batch["add"]), pc.is_valid(batch["remove"]))
            target.write_batch(batch.filter(about_files))
            others.append(batch.filter(pc.invert(about_files)))
        target.write_table(pa.Table.from_batches(others))
    os.replace(grouped, checkpoint)


def _compare(checkpoint: DeltaTable, table: DeltaTable, transactions: dict[str, int], expected: dict[str, int]) -> None:
    """Raises CheckpointError unless a checkpoint holds the version, files and transaction ids of the table."""
    same = (
        checkpoint.version() == table.version()
        and transactions == expected
        and _files(checkpoint).equals(_files(table))
        and checkpoint.schema() == table.schema()
        and checkpoint.metadata().id == table.metadata().id
        and checkpoint.metadata().configuration == table.metadata().configuration
    )
    if not same:
        raise CheckpointError(f"the checkpoint of version {table.version()} does not hold what the log holds")


def _files(table: DeltaTable) -> pa.Table:
    """Returns the files of a version with their statistics, by which settle counts."""
    files = pa.table(table.get_add_actions(flatten=True))
    return files.sort_by("path") if files.num_rows else files


def expire_entries(log: DeltaLog, retention: timedelta) -> None:
    """Removes the entries and checkpoints of the log that are older than the retention and no longer needed.

    The newest checkpoint but one stays, with all entries since, so the table is whole even if the newest checkpoint
    is lost. The caller holds the table's lock.
    """
    files, horizon = log.files(), time.time() - retention.total_seconds()
    if len(files.checkpoints) < 2:
        return
    kept = files.checkpoints[-2].version
    for file in [*files.entries, *files.checkpoints]:
        if file.version < kept and file.modified < horizon:
            log.storage.filesystem.delete_file(file.path)
