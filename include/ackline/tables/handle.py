"""A handle on the newest version of one Delta table: opens it, keeps it new, locks it, and names its errors.

A read syncs the newest log entry before the caller can act on it: the process that wrote the entry may have died before
it did.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from filelock import FileLock

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.scrub import scrub_address
from ackline.tables.errors import IgnoredStorageErrors, storage_errors, unusable
from ackline.tables.folder import Folder
from ackline.tables.log import DeltaLog, TornEntryError
from ackline.tables.log_state import RELOAD_AFTER, LogState, LogStates
from ackline.tables.object_store import is_remote, options_of
from ackline.tables.schemas import FORMER_COLUMNS, PARTITION_BY

_IN_EVERY_VERSION = (*PARTITION_BY, "pipeline", "lane", "epoch", "turn", "run_id", "topic", "partition")


class TableHandle:
    """The table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    def __init__(self, folder: str, name: str) -> None:
        self.uri = f"{folder.rstrip('/')}/{name}"
        self.name = name
        self.partition_by: Sequence[str] = PARTITION_BY
        self._folder = None if is_remote(folder) else Path(folder)
        self._loaded: DeltaTable | None = None
        self._loaded_at = 0.0

    @cached_property
    def storage(self) -> Folder:
        """The files of the table."""
        return Folder(self.uri)

    @cached_property
    def log(self) -> DeltaLog:
        """The log of the table."""
        return DeltaLog(self.storage)

    @cached_property
    def states(self) -> LogStates:
        """Reads the newest states of the log."""
        return LogStates(self.log)

    def state(self) -> LogState | None:
        """Returns the newest version without its files, or None if the table does not exist.

        The version is on the disk: the caller may act on it. Raises FatalError if the log can't be read; the error
        names the file if the last commit is torn.
        """
        with self.errors():
            state = self.states.newest()
        if state is not None:
            self._check_is_ours(field.name for field in state.schema.fields)
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
            except TableNotFoundError as error:
                # A mistyped scheme must not pass for a table that is still to be created.
                if str(error).startswith("Unknown scheme"):
                    raise
                if self._folder is not None:
                    self._check_is_no_file(self._folder)
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
        """Brings a handle to the newest version. Returns False if it has to be loaded anew."""
        if time.monotonic() - self._loaded_at < RELOAD_AFTER:
            with IgnoredStorageErrors():
                table.update_incremental()
                return True
        return False

    def _check_is_ours(self, columns: Iterable[str]) -> None:
        """Raises FatalError for a table that is not Ackline's, and ConfigError for one with a column of a former
        name: it would be read as if the column were null."""
        existing = set(columns)
        missing = [name for name in _IN_EVERY_VERSION if name not in existing]
        if missing:
            raise FatalError(
                f"the table {self.name} at {scrub_address(self.uri)} is not Ackline's: it has no column "
                f"{', '.join(missing)}. Check that ACKLINE_AUDIT is the right folder"
            )
        former = sorted(existing & FORMER_COLUMNS.keys())
        if former:
            raise ConfigError(
                f"the table {self.name} at {scrub_address(self.uri)} was made before Ackline's first release: its "
                f"column {former[0]} is now {FORMER_COLUMNS[former[0]]}. Point ACKLINE_AUDIT at an empty folder, and "
                f"take each consumer group over from its committed offsets",
                key="ACKLINE_AUDIT",
            )

    @property
    def has_lock(self) -> bool:
        """Whether `lock` keeps other processes out. An object store has no such lock."""
        return self._folder is not None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the operating-system lock of a local table, across processes and both Delta writers.

        Neither writer promises to be safe on a local path by itself. Does nothing on an object store, whose conditional
        put takes the lock's place.
        """
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
        """Raises an error that names the table in place of one of its storage: FatalError, or TransientError if its
        object store does not answer. Each operation on the table runs in it."""
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
        """Returns the error for a log entry that is not whole."""
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
