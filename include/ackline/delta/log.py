"""The log of a table: lists it, reads it, checks that its entries are whole, and syncs them.

delta-rs writes an entry under another name and links it into place, but syncs nothing. After a power cut the newest
entry may be empty or cut short. delta-rs reads an empty one as a commit of nothing, and one that ends after a line as a
commit without its transaction id. Either would lose a turn, so Ackline checks each entry before it reads the table.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ackline.delta.errors import IgnoredStorageErrors
from ackline.delta.folder import Folder, sync_file, sync_folder
from ackline.stored import DamagedError

LOG = "_delta_log"
POINTER = f"{LOG}/_last_checkpoint"
"""Delta's file that names the checkpoint from which a reader lists the log. Ackline names the last but one in it. A
reader takes the newest checkpoint that it finds from there on, and refuses the table if it finds none."""
ACTIONS = "ackline.actions"
"""The key in a commit's metadata for the number of the entry's other actions. An entry that has fewer was cut short."""
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
"""A checkpoint in one file, or a part of one in several, with its number and how many parts there are."""
_V2_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_OF_A_VERSION = re.compile(r"\d{20}\..+|_last_checkpoint")
"""What a log holds only once it has an entry, and what an entry that goes leaves behind."""
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
    more: tuple[str, ...] = ()
    """The paths of the other parts of a checkpoint that another tool has written in several files."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files of it."""
        return self.path, *self.more


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
        self._last_listed: LogFiles | None = None

    def files(self) -> LogFiles:
        """Returns the entries and checkpoints; none if there is no log. A checkpoint that lacks a part is none, nor is
        one of version 2."""
        entries, parts = [], dict[tuple[int, int], list[pafs.FileInfo]]()
        for info in self._listed():
            if match := _ENTRY.fullmatch(info.base_name):
                entries.append(LogFile(int(match[1]), info.path, info.mtime_ns / 1e9))
            # Nothing is ever written into an empty checkpoint. delta-rs, too, passes over it.
            elif (match := _CHECKPOINT.fullmatch(info.base_name)) and info.size:
                parts.setdefault((int(match[1]), int(match[3] or 0)), []).append(info)
        checkpoints = dict[int, LogFile]()
        for (version, number), infos in sorted(parts.items(), reverse=True):  # the one in one file last
            if len(infos) == (number or 1):
                first, *more = sorted(info.path for info in infos)
                checkpoints[version] = LogFile(version, first, max(i.mtime_ns for i in infos) / 1e9, tuple(more))
        self._last_listed = LogFiles(sorted(entries), sorted(checkpoints.values()))
        return self._last_listed

    def _listed(self) -> list[pafs.FileInfo]:
        return list(self.storage.filesystem.get_file_info(pafs.FileSelector(LOG, allow_not_found=True)))

    def gap(self, version: int) -> ValueError:
        """Returns the error of a log that can't be read from `version` on, with what its folder shows of the cause."""
        names = [info.base_name for info in self._listed()]
        if any(map(_V2_CHECKPOINT.fullmatch, names)):
            return ValueError(
                f"its log begins with a checkpoint of version 2, which Ackline does not read. In Spark SQL, ALTER "
                f"TABLE delta.`{self.storage.uri}` DROP FEATURE v2Checkpoint ends it, and a day later DROP FEATURE "
                f"checkpointProtection TRUNCATE HISTORY"
            )
        parts = sorted(name for name in names if (match := _CHECKPOINT.fullmatch(name)) and match[2])
        lacks = f", and parts of its checkpoint {parts[-1]} are missing" if parts else ""
        return ValueError(f"its log has no entry {version}{lacks}; restore its folder from a backup")

    def check_is_new(self) -> None:
        """Raises ValueError if a log without an entry has had one: a table that is made anew there would hide the rows
        of the old one."""
        names = [info.base_name for info in self._listed()]
        if any(map(_OF_A_VERSION.fullmatch, names)) and not any(map(_ENTRY.fullmatch, names)):  # one made just now
            raise self.gap(0)

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
        return all(map(self._has_footer, checkpoint.paths))

    def _has_footer(self, path: str) -> bool:
        with self.storage.filesystem.open_input_file(path) as file, IgnoredStorageErrors():
            pq.read_metadata(file)
            return True
        return False

    def rows_of(self, checkpoint: LogFile) -> int:
        """Returns how many rows a checkpoint has, about one a file of the table."""
        rows = 0
        for path in checkpoint.paths:
            with self.storage.filesystem.open_input_file(path) as file:
                rows += pq.read_metadata(file).num_rows
        return rows

    def since_checkpoint(self) -> tuple[int, int]:
        """Returns how many commits came after the newest checkpoint, and how many rows that has, about one a file; no
        rows if there is none or it is damaged. On a disk this lists nothing: it takes the last listing, and the entries
        that were checked since. So it may miss a checkpoint of another process, and count too many commits."""
        files = self._last_listed if self.storage.local is not None and self._last_listed else self.files()
        newest = max([self._secured, *(entry.version for entry in files.entries[-1:])])
        rows = 0
        with IgnoredStorageErrors():
            rows = sum(map(self.rows_of, files.checkpoints[-1:]))
        return newest - files.newest_checkpoint, rows

    def forget(self) -> LogFiles:
        """Drops the cached entries, and returns what the log has now. The next `secure` checks all entries that the
        newest checkpoint does not cover."""
        files = self.files()
        self._secured = files.newest_checkpoint
        self._entries.clear()
        return files

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
            for other in (version - _KEPT_ENTRIES, version + _KEPT_ENTRIES):  # read upward, or downward
                self._entries.pop(other, None)
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
