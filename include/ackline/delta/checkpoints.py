"""Writes the checkpoints of a log, reads them back, and removes the entries that they cover.

delta-rs's own checkpoints and its clean-up of the log are off: it syncs no checkpoint and reads none back, but removes
the entries that only the checkpoint still holds. Ackline removes no entry before the checkpoint was read back.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ackline.delta.errors import temporary_folder
from ackline.delta.folder import sync_file, sync_folder
from ackline.delta.handle import LogStates
from ackline.delta.log import LOG, POINTER, DeltaLog
from ackline.stored import DamagedError

_ROWS_OF_A_GROUP = 50_000
_LARGE = 1_000
"""Rows from which on a checkpoint is grouped (`_group_files`). In a smaller one a reader would save nothing."""
_COPY_TRIES = 5
"""How often a log is copied while other processes, which hold no lock in an object store, remove files of it."""
_SCRATCH = ".checkpoint"
"""The folder below a local table in which a checkpoint is written and read back."""


class CheckpointError(DamagedError):
    """A checkpoint does not hold what the log holds. It was not put into the log, and no entry was removed."""


def write_checkpoint(log: DeltaLog, table: DeltaTable) -> None:
    """Writes a checkpoint of the version that `table` has loaded. The caller holds the lock of a local table.

    No checkpoint becomes part of the log before it was compared with the log as it was. It is written and read back on
    the disk of this machine, and synced if the table is there: a power cut or a kill leaves none that is torn. Raises
    CheckpointError and what the storage raises; then the log is as it was.
    """
    version = table.version()
    if log.files().newest_checkpoint >= version:
        return
    with _scratch_of(log) as scratch:
        checkpoint = _checkpoint_in(scratch, log, table)
        if checkpoint is None:
            return
        # From here on the entries that it covers may go: it is on the disk, and has been read back.
        if log.storage.local is not None:
            os.replace(checkpoint, log.storage.local / LOG / checkpoint.name)
            sync_folder(log.storage.local / LOG)
        else:  # an object store never shows a part of a file, and of two writers the last one wins
            with log.storage.filesystem.open_output_stream(f"{LOG}/{checkpoint.name}") as stored:
                stored.write(checkpoint.read_bytes())
        _point_at_older_checkpoint(log, scratch)


@contextlib.contextmanager
def _scratch_of(log: DeltaLog) -> Iterator[Path]:
    """Yields a folder in which a checkpoint is written and read back: below a local table, so that `os.replace` can
    move the checkpoint into the log; else a temporary one on this machine."""
    if log.storage.local is None:
        with temporary_folder("ackline-checkpoint-") as scratch:
            yield scratch
        return
    folder = log.storage.local / _SCRATCH
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _point_at_older_checkpoint(log: DeltaLog, scratch: Path) -> None:
    """Makes readers list the log from the last checkpoint but one, instead of from its beginning.

    delta-rs refuses a table if the checkpoint that the pointer names is lost, so it does not name the newest. This
    pointer is not synced: delta-rs ignores a torn one. Without a lock, another process may have removed the checkpoint
    in the meantime: then a pointer to a later one takes its place.
    """
    local, checkpoints = log.storage.local, log.files().checkpoints
    while len(checkpoints) > 1:
        older = checkpoints[-2]
        with contextlib.suppress(FileNotFoundError):
            parts = {"parts": len(older.paths)} if older.more else {}
            pointer = json.dumps({"version": older.version, "size": log.rows_of(older), **parts})
            if local is not None:
                beside = scratch / Path(POINTER).name
                beside.write_text(pointer)
                os.replace(beside, local / POINTER)
            else:
                with log.storage.filesystem.open_output_stream(POINTER) as stored:
                    stored.write(pointer.encode())
        checkpoints = log.files().checkpoints
        if older in checkpoints:
            return
    with contextlib.suppress(FileNotFoundError):
        log.storage.filesystem.delete_file(POINTER)


def _checkpoint_in(scratch: Path, log: DeltaLog, table: DeltaTable) -> Path | None:
    """Writes a checkpoint from a copy of the log in `scratch`, reads it back, and returns its path. Returns None if
    another process, which needs no lock in an object store, has written this checkpoint or a later one."""
    version = table.version()
    (scratch / LOG).mkdir(parents=True)
    copied = DeltaLog(type(log.storage)(str(scratch)))
    for _ in range(_COPY_TRIES):
        with contextlib.suppress(FileNotFoundError):  # without a lock, another process has expired a file since
            if not _copy_log(log, scratch, version):
                return None
            break
    else:
        raise CheckpointError(f"other processes have removed entries of the log at version {version} again and again")
    # As of the log, before there is a checkpoint that this could be read from.
    expected = _transactions(copied)
    DeltaTable(scratch).create_checkpoint()
    checkpoint = scratch / LOG / f"{version:020}.checkpoint.parquet"
    if pq.read_metadata(checkpoint).num_rows >= _LARGE:
        _group_files(checkpoint)
    sync_file(checkpoint)
    for other in set((scratch / LOG).iterdir()) - {checkpoint}:
        other.unlink()  # so that nothing but the checkpoint is read back
    _compare(DeltaTable(scratch), table, _transactions(copied), expected)
    return checkpoint


def _transactions(log: DeltaLog) -> Mapping[str, int]:
    """Returns the highest version of each transaction id in a log. delta-rs returns only that of an id which the caller
    names."""
    state = LogStates(log).newest()
    return state.transactions if state is not None else {}


def _copy_log(log: DeltaLog, scratch: Path, version: int) -> bool:
    """Puts the newest checkpoint, and the entries from there to a version, into a folder. Returns False if there is a
    checkpoint of this version or of a later one. Raises FileNotFoundError if a file is removed meanwhile."""
    for left in (scratch / LOG).iterdir():
        left.unlink()
    files = log.files()
    start = files.newest_checkpoint
    if start >= version:
        return False
    kept = (file for file in [*files.checkpoints[-1:], *files.entries] if start <= file.version <= version)
    for path in (path for file in kept for path in file.paths):
        if log.storage.local is not None:
            os.link(log.storage.local / path, scratch / path)
        else:
            with log.storage.filesystem.open_input_file(path) as source:
                (scratch / path).write_bytes(source.read())
    return True


def _group_files(checkpoint: Path) -> None:
    """Moves the rows about files into row groups of their own. `LogStates` reads only the other groups."""
    grouped = checkpoint.with_suffix(".grouped")
    with pq.ParquetFile(checkpoint) as source, pq.ParquetWriter(grouped, source.schema_arrow) as target:
        others = []
        for batch in source.iter_batches(_ROWS_OF_A_GROUP):
            about_files = pc.or_(pc.is_valid(batch["add"]), pc.is_valid(batch["remove"]))
            target.write_batch(batch.filter(about_files))
            others.append(batch.filter(pc.invert(about_files)))
        target.write_table(pa.Table.from_batches(others))
    os.replace(grouped, checkpoint)


def _compare(
    checkpoint: DeltaTable, table: DeltaTable, transactions: Mapping[str, int], expected: Mapping[str, int]
) -> None:
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
    """Returns the files of a version with their statistics, sorted by path."""
    files = pa.table(table.get_add_actions(flatten=True))
    return files.sort_by("path") if files.num_rows else files


def expire_entries(log: DeltaLog, retention: timedelta) -> None:
    """Removes the entries and checkpoints of the log that are older than the retention and no longer needed. The newest
    checkpoint but one stays, with all entries since, so the table is whole even if the newest checkpoint is lost. The
    caller holds the lock of a local table; in an object store several processes may do this at once."""
    files, horizon = log.files(), time.time() - retention.total_seconds()
    if len(files.checkpoints) < 2:
        return
    kept = files.checkpoints[-2].version
    for file in [*files.entries, *files.checkpoints]:
        if file.version < kept and file.modified < horizon:
            for path in file.paths:
                with contextlib.suppress(FileNotFoundError):  # without a lock, another process expires the same files
                    log.storage.filesystem.delete_file(path)
