"""A handle on the newest version of one Delta table: opens it, updates it, locks it, and turns errors into Ackline's.

delta-rs loads the metadata of every file when it opens a table. The steps of a turn need little of it: they decide by
transaction ids, and read rows of the newest turns, whose files the newest log entries name. So `LogStates` reads what
the log holds beside its list of files, and the cost of a turn does not grow with the files of other days.

A read syncs the newest log entry before the caller can act on it: the process that wrote the entry may have died before
it did.
"""

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.schema import Schema
from filelock import FileLock

from ackline.delta.errors import IgnoredStorageErrors, storage_errors, unusable
from ackline.delta.folder import Folder
from ackline.delta.log import DeltaLog, TornEntryError
from ackline.delta.object_store import is_remote, options_of
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

RELOAD_AFTER = 60.0
"""Seconds after which a handle loads the table anew; until then it reads the log entries since. Entries stay far
longer, so none that it needs is gone."""
_SEARCHED_ENTRIES = 64
"""How many of the newest entries are searched for a commit. A turn has a handful of commits in each table."""
_OF_NO_FILE = {"txn": "txn.appId", "metaData": "metaData.id", "protocol": "protocol.minReaderVersion"}
"""The actions of a checkpoint that concern no file, each with a column that every such action has."""
Action = Mapping[str, Any]


@dataclass(frozen=True)
class LogState:
    """A version of a table, without its files."""

    version: int
    transactions: Mapping[str, int]
    """The highest version that was committed under each transaction id."""
    metadata: Action
    """Delta's action `metaData`: the properties and the columns of the table."""
    protocol: Action

    @property
    def configuration(self) -> dict[str, str]:
        """The table properties, by name."""
        return dict(self.metadata.get("configuration", {}))

    @cached_property
    def schema(self) -> Schema:
        return Schema.from_json(self.metadata["schemaString"])

    def after(self, version: int, actions: Iterable[Action]) -> "LogState":
        """Returns the state of `version`: this state, changed by the actions of a log entry or a checkpoint."""
        numbers, changed = dict(self.transactions), {}
        for action in actions:
            if "txn" in action:
                numbers[action["txn"]["appId"]] = action["txn"]["version"]
            if "metaData" in action:
                changed["metadata"] = action["metaData"]
            if "protocol" in action:
                changed["protocol"] = action["protocol"]
        return replace(self, version=version, transactions=numbers, **changed)


class LogStates:
    """Reads the newest state of one log. Keeps it, and reads only the entries since at the next call."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._state: LogState | None = None
        self._loaded_at = 0.0

    def newest(self) -> LogState | None:
        """Returns the newest state, or None if there is no log. The caller may act on it: its entry is on the disk.
        Raises TornEntryError if an entry is not whole, and OSError, ValueError or ArrowException if the log can't be
        read or lacks an entry."""
        try:
            if self._state is None or self._is_outdated(self._state):
                self._state, self._loaded_at = self._load(), time.monotonic()
            if self._state is not None:
                self._state = self._with_later_entries(self._state)
                self._log.secure(self._state.version)
        except BaseException:
            self._state = None
            raise
        return self._state

    def _is_outdated(self, state: LogState) -> bool:
        # The newest entry of a log never expires. If it is gone, an operator has put another log in its place, and the
        # next entry must follow that log.
        return time.monotonic() - self._loaded_at >= RELOAD_AFTER or not self._log.has_entry(state.version)

    def _load(self) -> LogState | None:
        files = self._log.forget()
        if not files.entries and not files.checkpoints:
            self._log.check_is_new()
            return None
        state = LogState(-1, {}, {}, {})
        for checkpoint in files.checkpoints[-1:]:
            for path in checkpoint.paths:
                state = state.after(checkpoint.version, self._checkpointed(path))
        state = self._with_later_entries(state)
        newest = max(file.version for file in (*files.entries, *files.checkpoints))
        if state.version < newest or not state.metadata or not state.protocol:
            raise self._log.gap(state.version + 1)
        return state

    def _with_later_entries(self, state: LogState) -> LogState:
        while (actions := self._log.entry(state.version + 1)) is not None:
            state = state.after(state.version + 1, actions)
        return state

    def _checkpointed(self, path: str) -> list[Action]:
        """Returns the transaction ids, metadata and protocol in a file of a checkpoint, as actions. In one that Ackline
        has written they have row groups of their own, so the cost does not grow with the files of the table."""
        with self._log.storage.filesystem.open_input_file(path) as file, pq.ParquetFile(file) as checkpoint:
            groups = [group for group in range(checkpoint.num_row_groups) if _may_hold(checkpoint.metadata, group)]
            columns = checkpoint.read_row_groups(groups, columns=list(_OF_NO_FILE))
        return [{name: _as_in_entry(a)} for name in _OF_NO_FILE for a in pc.drop_null(columns[name]).to_pylist()]

    def files_since(self, state: LogState, applications: Sequence[str], number: int) -> list[Action] | None:
        """Returns the `add` action of each file that one commit or a later one has added, if no commit has removed it.

        The commit is `number` of the first of `applications` that has reached it; if none has, the list is empty. Rows
        that no earlier commit can have are in these files alone, also after a compaction, which adds a file of its own.
        Returns None if the newest entries do not hold the commit, or if the table has a feature that only delta-rs
        reads.
        """
        application = next((a for a in applications if state.transactions.get(a, -1) >= number), None)
        if application is None:
            return []
        if state.protocol.get("minReaderVersion", 1) > 1:
            return None
        added: list[Action] = []
        removed: set[str] = set()
        for version in range(state.version, max(state.version - _SEARCHED_ENTRIES, -1), -1):
            actions = self._log.entry(version)
            if actions is None:  # expired
                return None
            # From the newest entry to older ones: what a later entry has removed is known by then.
            added += [action["add"] for action in actions if "add" in action and action["add"]["path"] not in removed]
            removed.update(action["remove"]["path"] for action in actions if "remove" in action)
            if any((txn.get("appId"), txn.get("version")) == (application, number) for txn in _transactions(actions)):
                return added
        return None

    def versions_around(self, state: LogState, commits: Sequence[tuple[str, int]]) -> tuple[int | None, int | None]:
        """Returns the version before the first of some commits, and that of the last one that the log has. Each commit
        is a transaction id and its number, in order; some may never have been stored. None for a version whose entry
        has expired. Reads the entries since the first commit."""
        first = last = None
        wanted = set(commits)
        for version in range(state.version, -1, -1):
            actions = self._log.entry(version)
            if actions is None:
                return None, last
            if found := wanted.intersection((txn["appId"], txn["version"]) for txn in _transactions(actions)):
                first, last = version, version if last is None else last
                if commits[0] in found:
                    break
        return None if first is None else first - 1, last

    def commit_info(self, state: LogState, key: str, value: str, limit: int) -> Action | None:
        """Returns the metadata of the commit that has `value` under `key`; None if none of the newest `limit` has
        it."""
        for version in range(state.version, max(state.version - limit, -1), -1):
            actions = self._log.entry(version)
            if actions is None:
                return None
            for action in actions:
                info: Action = action.get("commitInfo", {})
                if info.get(key) == value:
                    return info
        return None


def _may_hold(checkpoint: pq.FileMetaData, group: int) -> bool:
    """Returns whether the statistics of a row group allow an action that concerns no file."""
    rows = checkpoint.row_group(group)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    chosen = [column for column in columns if column.path_in_schema in _OF_NO_FILE.values()]
    return len(chosen) < len(_OF_NO_FILE) or any(
        column.statistics is None
        or not column.statistics.has_null_count
        or column.statistics.null_count < column.num_values
        for column in chosen
    )


def _as_in_entry(action: Action) -> dict[str, Any]:
    """Returns an action of a checkpoint as an entry holds it: without nulls, and with mappings in place of pairs."""
    known = {name: value for name, value in action.items() if value is not None}
    if "configuration" in known:
        known["configuration"] = dict(known["configuration"])
        known["format"] = {**known["format"], "options": dict(known["format"]["options"])}
    return known


def _transactions(actions: Iterable[Action]) -> list[Action]:
    return [action["txn"] for action in actions if "txn" in action]


class TableHandle:
    """The table `name` in `folder`, which is a path or an object-store URI. `declared` are the columns that this
    version of Ackline writes; those that a table of an earlier version lacks are null."""

    def __init__(self, folder: str, name: str, declared: pa.Schema, partition_by: Sequence[str]) -> None:
        self.uri = f"{folder.rstrip('/')}/{name}"
        self.name = name
        self.declared = declared
        self.partition_by = partition_by
        self._folder = None if is_remote(folder) else Path(folder)
        self._loaded: DeltaTable | None = None
        self._loaded_at = 0.0

    @cached_property
    def storage(self) -> Folder:
        """The folder of the table, which holds the data files and the log."""
        return Folder(self.uri)

    @cached_property
    def log(self) -> DeltaLog:
        return DeltaLog(self.storage)

    @cached_property
    def states(self) -> LogStates:
        return LogStates(self.log)

    def state(self) -> LogState | None:
        """Returns the newest version without its files, or None if the table does not exist. It is on the disk: the
        caller may act on it. Raises FatalError if the log can't be read; the error names the file if the last commit is
        torn."""
        with self.errors():
            state = self.states.newest()
        if state is not None:
            self._check_is_ours(field.name for field in state.schema.fields)
            features = {*(state.protocol.get("writerFeatures") or ()), *(state.protocol.get("readerFeatures") or ())}
            self._check_is_as_made(features, state.configuration)
        elif self._folder is not None:
            self._check_is_no_file(Path(self.uri))
        else:
            self.open()  # delta-rs raises an error for a missing bucket, in which Arrow's listing finds nothing
        return state

    def open(self) -> DeltaTable | None:
        """Returns the newest version, or None if the table does not exist.

        The version is on the disk: the caller may act on it. The handle keeps its version until the next call. It is
        loaded once, then updated by what was committed since, and loaded anew after RELOAD_AFTER seconds, before the
        log entries that it builds on can expire. Raises FatalError if the table can't be read; the error names the file
        if the last commit is torn.
        """
        loaded, self._loaded = self._loaded, None
        with self.errors():
            try:
                if loaded is None or not self._update(loaded):
                    loaded, self._loaded_at = self._load(), time.monotonic()
                    self._check_is_ours(field.name for field in loaded.schema().fields)
                protocol = loaded.protocol()
                features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
                self._check_is_as_made(features, loaded.metadata().configuration)
            except TableNotFoundError as error:
                # A mistyped scheme must not pass for a table that is still to be created.
                if str(error).startswith("Unknown scheme"):
                    raise
                if self._folder is not None:
                    self._check_is_no_file(self._folder)
                self.log.check_is_new()
                return None
            self.secure(loaded.version())
        self._loaded = loaded
        return loaded

    def secure(self, version: int) -> None:
        """Makes a version of a local table durable before any process acts on it."""
        if self._folder is not None:
            self.log.secure(version)

    def _load(self) -> DeltaTable:
        if self._folder is not None:
            self.log.forget()
            self.log.secure()  # before delta-rs, whose error for a torn entry names no file
        return DeltaTable(self.uri, storage_options=options_of(self.uri))

    def _update(self, table: DeltaTable) -> bool:
        """Updates a loaded table to the newest version. Returns False if it has to be loaded anew."""
        if time.monotonic() - self._loaded_at < RELOAD_AFTER:
            with IgnoredStorageErrors():
                table.update_incremental()
                return True
        return False

    def _check_is_ours(self, columns: Iterable[str]) -> None:
        """A subclass raises ConfigError or FatalError here if it must not use a table with these columns."""

    def _check_is_as_made(self, features: Collection[str], configuration: Mapping[str, str]) -> None:
        """A subclass raises FatalError here if it can't read or write a table with these features and properties, which
        another engine may have given it at any version."""

    @property
    def has_lock(self) -> bool:
        """Whether `lock` keeps other processes out. An object store has no such lock."""
        return self._folder is not None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the operating-system lock of a local table, across processes and both Delta writers: neither promises
        to be safe on a local path. Does nothing on an object store, whose conditional put takes the lock's place."""
        if self._folder is None:
            yield
            return
        locks = self._folder / ".locks"
        lock = FileLock(locks / f"{self.name}.lock")
        with self.errors():
            locks.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that raises an error naming the table in place of one of its storage: FatalError, or
        TransientError if its object store does not answer. Each operation on the table runs in it."""
        return storage_errors(self.uri, self._error)

    def _error(self, cause: BaseException) -> FatalError | TransientError:
        """Returns the error for a table that can't be used. It names a log entry or the newest checkpoint if that is
        torn."""
        if isinstance(cause, TornEntryError):
            return self._torn(cause)
        if self._folder is not None:
            with IgnoredStorageErrors():
                for checkpoint in self.log.files().checkpoints[-1:]:
                    if not self.log.is_readable(checkpoint):
                        return FatalError(
                            f"the table {self.name} at {scrub_address(self.uri)} can't be used: its checkpoint "
                            f"{Path(self.uri, checkpoint.path)} is damaged. `ackline maintain --repair` removes it if "
                            f"the log is whole without it"
                        )
        return unusable(f"the table {self.name} at {scrub_address(self.uri)}", cause, self.uri)

    def _torn(self, torn: TornEntryError) -> FatalError:
        what_to_do = (
            "The machine went down while it was written, and no process has acted on it. Remove it with "
            "`ackline maintain --repair`, then run this again"
            if torn.is_last
            else "Later commits build on it: restore the folder of the table from a backup"
        )
        return FatalError(
            f"the table {self.name} at {scrub_address(self.uri)} can't be used: its log entry {torn.path} is empty or "
            f"cut short. {what_to_do}"
        )

    def _check_is_no_file(self, folder: Path) -> None:
        """Raises FatalError if a file is where a folder, or a folder above it, is to be created."""
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise self._error(NotADirectoryError(f"{existing} is not a folder"))
