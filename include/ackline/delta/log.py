"""The log of a table: reads it, checks that its entries are whole, syncs them, and writes its checkpoints.

delta-rs writes an entry under another name and links it into place, but syncs nothing. After a power cut the newest
entry may be empty or cut short. delta-rs reads an empty one as a commit of nothing, and one that ends after a line as a
commit without its transaction id. Either would lose a turn, so Ackline checks each entry before it reads the table.

delta-rs's own checkpoints and its clean-up of the log are off: it syncs no checkpoint and reads none back, but removes
the entries that only the checkpoint still holds. Ackline removes no entry before the checkpoint was read back.
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ackline.delta.errors import IgnoredStorageErrors
from ackline.delta.folder import Folder, sync_file, sync_folder
from ackline.stored import DamagedError

LOG = "_delta_log"
POINTER = f"{LOG}/_last_checkpoint"
"""Delta's file that names the checkpoint from which a reader lists the log. Ackline names the last but one in it. A
reader takes the newest checkpoint that it finds from there on, and refuses the table if it finds none."""
ACTIONS = "ackline.actions"
"""The key in a commit's metadata for the number of the entry's other actions. An entry that has fewer was cut short."""
_NAME = re.compile(r"(\d{20})(\.json|\.checkpoint\.parquet)")
_KEPT_ENTRIES, _KEPT_ACTIONS = 128, 1_000
"""How many entries a handle keeps parsed, and with how many actions each: a compaction may have 100,000."""
_ROWS_OF_A_GROUP = 50_000
_LARGE = 1_000
"""Rows from which on a checkpoint is grouped (`_group_files`). In a smaller one a reader would save nothing."""
_COPY_TRIES = 5
"""How often a log is copied while other processes, which hold no lock in an object store, remove files of it."""
_SCRATCH = ".checkpoint"
"""The folder below a local table in which a checkpoint is written and read back."""


class TornEntryError(DamagedError):
    """A log entry is not whole. `is_last` states whether no later entry exists."""

    def __init__(self, path: Path, is_last: bool) -> None:
        super().__init__(str(path))
        self.path = path
        self.is_last = is_last


class LogFile(NamedTuple):
    """An entry or a checkpoint of the log. `modified` is in seconds since 1970, `path` relative to the table."""

    version: int
    path: str
    modified: float


class LogFiles(NamedTuple):
    """The entries and the checkpoints of a log, each by ascending version."""

    entries: list[LogFile]
    checkpoints: list[LogFile]

    @property
    def newest_checkpoint(self) -> int:
        """The version of the newest checkpoint, -1 if there is none."""
        return self.checkpoints[-1].version if self.checkpoints else -1


class LogStamp(NamedTuple):
    """A log at one time. A log that was put in place of another one, such as a copy that was restored, has another
    `identity`, or goes back in `position`."""

    identity: int
    position: int
    newest: tuple[LogFile, ...] = ()

    def precedes(self, later: "LogStamp") -> bool:
        """Returns whether the log of `later` is this one, with no or more commits."""
        return self.identity == later.identity and self.position <= later.position


class DeltaLog:
    """The log of one table. An instance keeps the entries that it has read."""

    def __init__(self, storage: Folder) -> None:
        self.storage = storage
        self._secured = -1
        """All entries up to this version are whole and on the disk."""
        self._entries: dict[int, list[dict[str, Any]]] = {}
        """The newest entries that were read. An entry never changes once it is whole."""

    def files(self) -> LogFiles:
        """Returns the entries and checkpoints; none if there is no log."""
        files: dict[str, list[LogFile]] = {".json": [], ".checkpoint.parquet": []}
        for info in self.storage.filesystem.get_file_info(pafs.FileSelector(LOG, allow_not_found=True)):
            # Nothing is ever written into an empty checkpoint. delta-rs, too, passes over it.
            if (match := _NAME.fullmatch(info.base_name)) and (info.size or match[2] == ".json"):
                files[match[2]].append(LogFile(int(match[1]), info.path, info.mtime_ns / 1e9))
        return LogFiles(sorted(files[".json"]), sorted(files[".checkpoint.parquet"]))

    def stamp(self) -> LogStamp:
        """Returns what changes with each commit. On a disk it costs the status of the folder, however many entries the
        log has; in an object store, their listing."""
        if self.storage.local is None:
            files = self.files()
            newest = (*files.entries[-1:], *files.checkpoints[-1:])
            return LogStamp(0, max((file.version for file in newest), default=-1), newest)
        try:
            status = (self.storage.local / LOG).stat()
        except FileNotFoundError:
            return LogStamp(0, -1)
        return LogStamp(status.st_ino, status.st_mtime_ns)

    def is_readable(self, checkpoint: LogFile) -> bool:
        """Returns whether a checkpoint has a whole footer. Raises OSError if the file can't be opened."""
        with self.storage.filesystem.open_input_file(checkpoint.path) as file, IgnoredStorageErrors():
            pq.read_metadata(file)
            return True
        return False

    def checkpointed_rows(self) -> int:
        """Returns how many rows the newest checkpoint has, about one a file; 0 if there is none or it is damaged."""
        for checkpoint in self.files().checkpoints[-1:]:
            with (
                IgnoredStorageErrors(),
                self.storage.filesystem.open_input_file(checkpoint.path) as file,
            ):
                return int(pq.read_metadata(file).num_rows)
        return 0

    def forget(self) -> None:
        """Drops the cached entries. The next `secure` checks all entries that the newest checkpoint does not cover."""
        self._secured = self.files().newest_checkpoint
        self._entries.clear()

    def secure(self, version: int = -1) -> None:
        """Checks the entries that this instance has not checked, at least up to `version`, and syncs the newest one.

        Every reader calls this first, so no process acts on a commit that a power cut could undo: neither on its own,
        nor on one whose writer died before it synced the entry. The older entries are on the disk already, because each
        writer calls this before it adds an entry. Does nothing in an object store. Raises TornEntryError, and OSError
        if the disk refuses.
        """
        if self.storage.local is None:
            return
        newest = self._checked_from(self._secured)
        if newest < version:  # entries in between are gone, and a checkpoint covers them
            newest = self._checked_from(self.files().newest_checkpoint)
        if newest > self._secured:
            if self._entry(newest).exists():
                sync_file(self._entry(newest))
                sync_folder(self._entry(newest).parent)
            self._secured = newest

    def _checked_from(self, version: int) -> int:
        """Checks the entries after a version, and returns the version of the last one."""
        while self.entry(version + 1) is not None:
            version += 1
        return version

    def entry(self, version: int) -> list[dict[str, Any]] | None:
        """Returns the actions of an entry, or None if it does not exist. Raises TornEntryError if it is not whole."""
        if version not in self._entries:
            content = self._content(version)
            if content is None:
                return None
            actions = whole_actions(content)
            if actions is None:
                folder = self.storage.local or Path(self.storage.uri)
                raise TornEntryError(folder / _path(version), is_last=self._content(version + 1) is None)
            if len(actions) > _KEPT_ACTIONS:
                return actions
            self._entries[version] = actions
            self._entries.pop(version - _KEPT_ENTRIES, None)
        return self._entries[version]

    def has_entry(self, version: int) -> bool:
        """Returns whether the log of a local table still has an entry; always True for an object store."""
        return self.storage.local is None or self._entry(version).exists()

    def _content(self, version: int) -> bytes | None:
        try:
            with self.storage.filesystem.open_input_file(_path(version)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _entry(self, version: int) -> Path:
        assert self.storage.local is not None
        return self.storage.local / _path(version)

    def transactions(self, version: int) -> dict[str, int]:
        """Returns the highest version that was committed under each transaction id, as of `version` of the table.
        delta-rs returns only that of an id which the caller names."""
        files, numbers = self.files(), dict[str, int]()
        before = [checkpoint for checkpoint in files.checkpoints if checkpoint.version <= version]
        start = -1
        if before:
            start = before[-1].version
            numbers.update(self._checkpointed_transactions(before[-1].path))
        for entry in files.entries:
            if start < entry.version <= version:
                with self.storage.filesystem.open_input_file(entry.path) as file:
                    numbers.update(_transactions_of(file.read()))
        return numbers

    def _checkpointed_transactions(self, path: str) -> Iterator[tuple[str, int]]:
        with self.storage.filesystem.open_input_file(path) as file:
            for transaction in pc.drop_null(pq.read_table(file, columns=["txn"])["txn"]).to_pylist():
                yield transaction["appId"], transaction["version"]


def _transactions_of(entry: bytes) -> Iterator[tuple[str, int]]:
    for action in _actions_of(entry):
        if "txn" in action:
            yield action["txn"]["appId"], action["txn"]["version"]


def _actions_of(entry: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in entry.splitlines()]


def is_whole(entry: Path) -> bool:
    """Returns whether a log entry is whole: neither empty nor cut short."""
    return whole_actions(entry.read_bytes()) is not None


def whole_actions(content: bytes) -> list[dict[str, Any]] | None:
    """Returns the actions of a log entry, or None if it is not as its writer wrote it. An entry of Ackline states the
    number of its actions; that of another writer is whole if each of its lines is."""
    try:
        actions = _actions_of(content)
        counts = [int(action["commitInfo"][ACTIONS]) for action in actions if ACTIONS in action.get("commitInfo", ())]
    except (ValueError, TypeError, AttributeError):
        return None
    whole = bool(actions) and all(actions) and all(count == len(actions) - 1 for count in counts)
    return actions if whole else None


def _path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


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
        with tempfile.TemporaryDirectory(prefix="ackline-checkpoint-") as scratch:
            yield Path(scratch)
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
        with contextlib.suppress(FileNotFoundError), log.storage.filesystem.open_input_file(older.path) as file:
            pointer = json.dumps({"version": older.version, "size": pq.read_metadata(file).num_rows})
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
    expected = copied.transactions(version)
    DeltaTable(scratch).create_checkpoint()
    checkpoint = scratch / LOG / f"{version:020}.checkpoint.parquet"
    if pq.read_metadata(checkpoint).num_rows >= _LARGE:
        _group_files(checkpoint)
    sync_file(checkpoint)
    for other in set((scratch / LOG).iterdir()) - {checkpoint}:
        other.unlink()  # so that nothing but the checkpoint is read back
    _compare(DeltaTable(scratch), table, copied.transactions(version), expected)
    return checkpoint


def _copy_log(log: DeltaLog, scratch: Path, version: int) -> bool:
    """Puts the newest checkpoint, and the entries from there to a version, into a folder. Returns False if there is a
    checkpoint of this version or of a later one. Raises FileNotFoundError if a file is removed meanwhile."""
    for left in (scratch / LOG).iterdir():
        left.unlink()
    files = log.files()
    start = files.newest_checkpoint
    if start >= version:
        return False
    for file in [*files.checkpoints[-1:], *files.entries]:
        if start <= file.version <= version:
            if log.storage.local is not None:
                os.link(log.storage.local / file.path, scratch / file.path)
            else:
                with log.storage.filesystem.open_input_file(file.path) as source:
                    (scratch / file.path).write_bytes(source.read())
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
            with contextlib.suppress(FileNotFoundError):  # without a lock, another process expires the same files
                log.storage.filesystem.delete_file(file.path)
