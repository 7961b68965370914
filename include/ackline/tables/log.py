"""Reads the log of a table, checks that its entries are whole, and syncs them to the disk.

delta-rs writes an entry under another name and links it into place, but syncs nothing. After a power cut the newest
entry may be empty or cut short. delta-rs reads an empty one as a commit of nothing, and one that ends after a line as a
commit without its transaction id. Either would lose a turn, so Ackline checks each entry before it reads the table.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ackline.tables.errors import DamagedError, IgnoredStorageErrors
from ackline.tables.files import Storage, sync_file, sync_folder

LOG = "_delta_log"
POINTER = f"{LOG}/_last_checkpoint"
"""Delta's file that names the newest checkpoint. Ackline's names the one before. A reader lists the log from there on,
and takes the newest checkpoint that it meets; it refuses the table if it meets none."""
ACTIONS = "ackline.actions"
"""The key of a commit's metadata for the number of its other actions: an entry that was cut after a line has less."""
_NAME = re.compile(r"(\d{20})(\.json|\.checkpoint\.parquet)")
_KEPT_ENTRIES, _KEPT_ACTIONS = 128, 1_000
"""How many entries a handle keeps parsed, and with how many actions each: a compaction may have 100,000."""


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
    """What the folder of the log holds, each in the order of versions."""

    entries: list[LogFile]
    checkpoints: list[LogFile]

    @property
    def newest_checkpoint(self) -> int:
        """The version of the newest checkpoint, -1 if there is none."""
        return self.checkpoints[-1].version if self.checkpoints else -1


class DeltaLog:
    """The log of one table, as one handle on the table sees it."""

    def __init__(self, storage: Storage) -> None:
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

    def is_readable(self, checkpoint: LogFile) -> bool:
        """Returns whether a checkpoint has a whole footer. Raises OSError if the file can't be opened."""
        with self.storage.filesystem.open_input_file(checkpoint.path) as file, IgnoredStorageErrors():
            pq.read_metadata(file)
            return True
        return False

    def checkpointed_rows(self) -> int:
        """Returns the rows of the newest checkpoint, about one for each file; 0 if there is none or it is damaged."""
        for checkpoint in self.files().checkpoints[-1:]:
            with (
                IgnoredStorageErrors(),
                self.storage.filesystem.open_input_file(checkpoint.path) as file,
            ):
                return int(pq.read_metadata(file).num_rows)
        return 0

    def forget(self) -> None:
        """Has the next call of `secure` check all entries that the newest checkpoint does not cover."""
        self._secured = self.files().newest_checkpoint
        self._entries.clear()

    def secure(self, version: int = -1) -> None:
        """Checks each entry up to `version` or later that this handle has not checked, and syncs the newest one.

        Every reader calls this first, so no process acts on a commit that a power cut could undo: neither on its own,
        nor on one whose writer died before it synced the entry. The older entries are on the disk already, because each
        writer calls this before it adds an entry. Does nothing in an object store. Raises TornEntryError, and OSError
        if the disk refuses.
        """
        if self.storage.folder is None:
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
                folder = self.storage.folder or Path(self.storage.uri)
                raise TornEntryError(folder / _path(version), is_last=self._content(version + 1) is None)
            if len(actions) > _KEPT_ACTIONS:
                return actions
            self._entries[version] = actions
            self._entries.pop(version - _KEPT_ENTRIES, None)
        return self._entries[version]

    def has_entry(self, version: int) -> bool:
        """Returns whether the log of a local table still has an entry; True for an object store, which is not asked."""
        return self.storage.folder is None or self._entry(version).exists()

    def _content(self, version: int) -> bytes | None:
        try:
            with self.storage.filesystem.open_input_file(_path(version)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _entry(self, version: int) -> Path:
        assert self.storage.folder is not None
        return self.storage.folder / _path(version)

    def transactions(self, version: int) -> dict[str, int]:
        """Returns the transaction ids as of a version: the last number of each application.

        They are read from the newest checkpoint and the entries after it, because delta-rs returns only those whose
        application is known.
        """
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
    """Returns whether a log entry is as its writer wrote it."""
    return whole_actions(entry.read_bytes()) is not None


def whole_actions(content: bytes) -> list[dict[str, Any]] | None:
    """Returns the actions of a log entry, or None if it is not as its writer wrote it.

    An entry of Ackline states the number of its actions. The entry of another writer is whole if each of its lines is.
    """
    try:
        actions = _actions_of(content)
        counts = [int(action["commitInfo"][ACTIONS]) for action in actions if ACTIONS in action.get("commitInfo", ())]
    except (ValueError, TypeError, AttributeError):
        return None
    whole = bool(actions) and all(actions) and all(count == len(actions) - 1 for count in counts)
    return actions if whole else None


def _path(version: int) -> str:
    return f"{LOG}/{version:020}.json"
