"""One Delta table, with the only two things that the ledger does to it: a fenced append, and a pruned read.

A fenced append carries a Delta transaction id (application, version), and the table refuses it when that version is
taken. It replaces the compare-and-set that Kafka does not have. delta-rs alone appends a repeat again. So an append
reads the version and commits on one handle: if a rival commits in between, ours fails as a concurrent transaction.

An append to a local table is on the disk when it returns. The data files and their folders are synced before the log
entry is written, and the log entry and its folder after it, so a power cut leaves no log entry without its data. A read
syncs the newest log entry too, before the caller can act on it: the process that wrote it may have died before it did.
"""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction
from filelock import FileLock
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from ackline.audit.checkpoints import CheckpointError, expire_entries, write_checkpoint
from ackline.audit.conditional_put import prove_conditional_put
from ackline.audit.data_files import write_rows
from ackline.audit.delta_log import ACTIONS, DeltaLog, TornEntryError
from ackline.audit.object_store import is_remote, options_of, unusable
from ackline.audit.schemas import PARTITION_BY, TABLES
from ackline.audit.storage import Storage
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

_logger = logging.getLogger(__name__)
T = TypeVar("T")
Where: TypeAlias = Mapping[str, str | int]
"""Columns with the values that a row must have, all of them."""

CHECKPOINT_EVERY = 10
"""Commits between checkpoints. A commit since the last one adds 0.5 ms to opening; a checkpoint takes 4 ms."""
LOG_RETENTION = timedelta(days=1)
"""How long log entries stay that two checkpoints cover. Each commit lists them all. Data and transaction ids stay in
the checkpoint."""
RELOAD_AFTER = 60.0
"""Seconds for which a handle is updated instead of loaded anew."""
COMMIT_TRIES = 4
"""How often a commit is tried beside rivals. Under the lock of a local table there are none; without one, a compaction
or an added column can make a commit fail that is free to be made again at once."""
LEDGER_ID = "ackline.ledger"
"""The property of the settlements table that holds the id of the ledger."""
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""delta-rs writes no checkpoint after a commit and removes no log entry: it would sync neither."""
REWRITE = "ackline/compaction"
"""The transaction id of commits that stop naming files. delta-rs refuses the later of two that begin at the same
version."""
_COMMIT, _NOTE = "ackline.commit", "ackline.note"
_HISTORY_LIMITS = (8, 64, 512)
"""How many of the newest commits are searched for a note: first what nearly always holds it, at last a bound that does
not grow with the log."""
_IN_EVERY_VERSION = (*PARTITION_BY, "pipeline", "lane", "epoch", "turn", "run_id", "topic", "partition")


class AuditTable:
    """The table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    def __init__(self, folder: str, name: str) -> None:
        self.uri = f"{folder.rstrip('/')}/{name}"
        self.name = name
        self._folder = None if is_remote(folder) else Path(folder)
        self._loaded: DeltaTable | None = None
        self._loaded_at = 0.0
        self._has_all_columns = False
        """Whether this process has seen every column of the schema in the table. No column is ever removed."""

    def open(self) -> DeltaTable | None:
        """Returns the newest version, or None if the table does not exist.

        The version is on the disk: the caller may act on it. The handle keeps its version until the next call. It is
        loaded once, then updated by what was committed since, and loaded anew after RELOAD_AFTER seconds, before the
        log entries that it builds on can expire. Raises FatalError if the table can't be read; the error names the file
        if the last commit is torn. Raises TransientError if an object store does not answer.
        """
        try:
            if self._loaded is None or not self._update(self._loaded):
                self._loaded, self._loaded_at = self._load(), time.monotonic()
                self._check_is_ours(self._loaded)
            self._secure(self._loaded.version())
        except TornEntryError as error:
            self._loaded = None
            raise self._torn(error) from None
        except TableNotFoundError as error:
            # A mistyped scheme must not pass for a table that is still to be created.
            if str(error).startswith("Unknown scheme"):
                raise self.error(error) from error
            if self._folder is not None:
                self._check_is_no_file(self._folder)
            return None
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from error
        return self._loaded

    def _unreadable(self, error: Exception) -> FatalError | TransientError:
        """Returns the error for a table that can't be loaded. It names the newest checkpoint if that is torn."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                for checkpoint in self.log.files().checkpoints[-1:]:
                    if not self.log.is_readable(checkpoint):
                        return FatalError(
                            f"the table {self.name} at {scrub_address(self.uri)} can't be used: its checkpoint "
                            f"{Path(self.uri, checkpoint.path)} is damaged. `ackline maintain --repair` removes it if "
                            f"the log is whole without it"
                        )
        return self.error(error)

    def _check_is_no_file(self, folder: Path) -> None:
        """Raises FatalError if a file is where a folder, or a folder above it, is to be created."""
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            raise self.error(NotADirectoryError(f"{existing} is not a folder"))

    def _load(self) -> DeltaTable:
        if self._folder is not None:
            self.log.forget()
            self.log.secure()  # before delta-rs, whose error for a torn entry names no file
        return DeltaTable(self.uri, storage_options=options_of(self.uri))

    def _check_is_ours(self, table: DeltaTable) -> None:
        """Raises FatalError for a table that is not Ackline's."""
        existing = {field.name for field in table.schema().fields}
        missing = [name for name in _IN_EVERY_VERSION if name not in existing]
        if missing:
            self._loaded = None
            raise FatalError(
                f"the table {self.name} at {scrub_address(self.uri)} is not Ackline's: it has no column "
                f"{', '.join(missing)}. Check that ACKLINE_AUDIT is the right folder"
            )

    def _update(self, table: DeltaTable) -> bool:
        """Brings a handle to the newest version. Returns False if it has to be loaded anew."""
        self._loaded = None
        if time.monotonic() - self._loaded_at < RELOAD_AFTER:
            with contextlib.suppress(DeltaError, OSError):
                table.update_incremental()
                self._loaded = table
        return self._loaded is not None

    def create(self) -> DeltaTable:
        """Returns the table with every column that this version writes, and creates it if it does not exist.

        Two processes that create it at the same time get the same table.
        """

        def create() -> DeltaTable:
            with self.lock():
                return self._writable()

        try:
            return retry_beside_rivals(create)
        except (DeltaError, OSError) as error:
            raise self.error(error) from error

    def _writable(self) -> DeltaTable:
        """Returns the newest version for writing. Adds the columns that an earlier version did not have, nullable.

        Adding them is a commit of its own without a fence: if the process is killed after it, the table is valid and
        only has more columns. If a rival adds the same columns at once, ours raises CommitFailedError, and the next try
        finds them.
        """
        # The fences of an object store are its conditional puts: nothing is written where they don't hold. A process
        # proves each bucket once.
        prove_conditional_put(self.uri.rpartition("/")[0])
        table = self.open() or self._create_table()
        if not self._has_all_columns:
            missing = _missing_columns(table.schema(), TABLES[self.name])
            if missing:
                fields = Schema.from_arrow(pa.schema(missing)).fields
                table.alter.add_columns(fields, post_commithook_properties=_NO_HOOKS)
                self._secure(table.version())
            self._has_all_columns = True
        return table

    def ledger_id(self) -> str:
        """Returns the id of the ledger that this table of settlements begins; "" if the table does not exist.

        It is a property of the table, so a copy or a successor of the table keeps it. Raises FatalError if the table
        has lost it.
        """
        table = self.open()
        if table is None:
            return ""
        ledger_id = table.metadata().configuration.get(LEDGER_ID)
        if not ledger_id:
            raise self.error(ValueError(f"it has no property {LEDGER_ID}; restore its folder from a backup"))
        return ledger_id

    def _create_table(self) -> DeltaTable:
        ledger_id = {LEDGER_ID: str(uuid.uuid4())} if self.name == "settlements" else {}
        self.storage.make_durably("_delta_log")  # with the folders above it, which hold every later commit
        table = DeltaTable.create(
            self.uri,
            schema=TABLES[self.name],
            mode="ignore",
            partition_by=PARTITION_BY,
            configuration={
                "delta.appendOnly": "true",
                # No other writer checkpoints the log or removes entries of it: neither would sync what it writes.
                "delta.checkpointInterval": str(2**31 - 1),
                "delta.enableExpiredLogCleanup": "false",
                "delta.logRetentionDuration": f"interval {LOG_RETENTION.days} days",
                **ledger_id,
            },
            raise_if_key_not_exists=False,  # LEDGER_ID is a key of ours
            storage_options=options_of(self.uri),
            # delta-rs would try a creation that lost its race again as version 1, and so replace the ledger's id that
            # the winner has begun with. Without it the loser raises CommitFailedError, and opens the winner's table.
            commit_properties=CommitProperties(
                custom_metadata={ACTIONS: 2},  # protocol and metadata
                max_commit_retries=0,
            ),
            post_commithook_properties=_NO_HOOKS,
        )
        self._secure(table.version())
        return table

    def _secure(self, version: int) -> None:
        """Makes a version of a local table durable before any process acts on it."""
        if self._folder is not None:
            self.log.secure(version)

    @cached_property
    def storage(self) -> Storage:
        """The files of the table."""
        return Storage(self.uri)

    @cached_property
    def log(self) -> DeltaLog:
        """The log of the table."""
        return DeltaLog(self.storage)

    def transactions(self) -> dict[str, int]:
        """Returns the highest version of each transaction id; none if the table does not exist."""
        table = self.open()
        try:
            return {} if table is None else self.log.transactions(table.version())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.error(error) from error

    def version_of(self, application: str) -> int | None:
        """Returns the highest version that was committed under a transaction id, or None."""
        return self.versions_of([application])[0]

    def versions_of(self, applications: Iterable[str]) -> list[int | None]:
        """Returns the highest version that was committed under each transaction id, or None, all from one version of
        the table. Raises what `open` raises."""
        table = self.open()
        try:
            return [None if table is None else table.transaction_version(name) for name in applications]
        except (DeltaError, OSError) as error:  # delta-rs reads it from the log only now
            raise self.error(error) from error

    def append(
        self,
        rows: pa.Table | Sequence[AddAction],
        application: str,
        number: int,
        note: str | None = None,
        more: Sequence[str] = (),
        remove: Callable[[DeltaTable], Sequence[RemoveAction]] | None = None,
    ) -> bool:
        """Append rows, or files already written, as version `number` of `application`; zero rows are a commit too.

        `note` is stored in the metadata of the commit, where `note_of` finds it. `more` are further applications of
        which the commit takes the same number; they are no fence. `remove` returns which files the same commit stops
        naming, for the version that it is made upon.
        Returns True once the commit is stored, and False if the number is taken; then nothing is stored. Raises
        TransientError if rivals win each of COMMIT_TRIES commits, and FatalError if the store refuses the write (a full
        disk): then nothing is visible.
        """
        metadata = {} if note is None else {_COMMIT: f"{application}/{number}", _NOTE: note}
        fence = [Transaction(name, number) for name in (application, *more)]
        files: list[AddAction] | None = None

        def append() -> bool:
            nonlocal files
            with self.lock():
                try:
                    # The handle that proves the number free is the one that commits: a rival in between makes it fail.
                    table = self._writable()
                    if _is_taken(table.transaction_version(application), number):
                        return False
                    if files is None:  # a commit that is tried again names the same files
                        files = self._write(rows) if isinstance(rows, pa.Table) else list(rows)
                    removed = remove(table) if remove else ()
                    self.commit(table, [*files, *removed], fence, metadata)
                except CommitFailedError:  # a rival took the number; or compacted, and then the number is still free
                    if _is_taken(self.version_of(application), number):
                        return False
                    raise
            return True

        try:
            stored = retry_beside_rivals(append)
            if stored:
                self._checkpoint_if_due()
            return stored
        except CommitFailedError:
            raise TransientError(
                f"the table {scrub_address(self.uri)} refused {COMMIT_TRIES} commits in a row because others write to "
                f"it; run this again"
            ) from None
        except (DeltaError, OSError) as error:
            raise self.error(error) from error

    def _checkpoint_if_due(self) -> None:
        """Writes a checkpoint after CHECKPOINT_EVERY commits. The commit that was stored does not depend on it."""
        files = self.log.files()
        if files.entries and files.entries[-1].version - files.newest_checkpoint >= CHECKPOINT_EVERY:
            try:
                self.checkpoint()
            except (FatalError, TransientError) as error:
                _logger.warning("%s. The commit is stored; `ackline maintain` tries the checkpoint again", error)

    def checkpoint(self) -> None:
        """Writes a checkpoint of the newest version, and then removes the log entries that no reader needs any more.

        Raises FatalError if that fails; then the log holds what it held.
        """
        with self.lock():
            table = self.open()
            if table is None:
                return
            try:
                write_checkpoint(self.log, table)
                expire_entries(self.log, LOG_RETENTION)
            except (DeltaError, OSError, pa.ArrowException, CheckpointError) as error:
                raise self.error(error) from error

    def note_of(self, application: str, number: int) -> str | None:
        """Returns the note of the commit `number` of `application`.

        None if it has none, or if the Delta log has expired it: the log keeps the transaction id of a commit for good,
        but its metadata only for LOG_RETENTION.
        """
        table, wanted = self.open(), f"{application}/{number}"
        if table is None:
            return None
        for limit in _HISTORY_LIMITS:
            try:
                commits = table.history(limit)
            except (DeltaError, OSError, ValueError):
                return None
            for commit in commits:
                if commit.get(_COMMIT) == wanted:
                    return str(commit.get(_NOTE))
            if len(commits) < limit:
                return None
        return None

    def _write(self, rows: pa.Table) -> list[AddAction]:
        """Writes rows to durable files that no log entry names yet."""
        return [
            AddAction(file.path, file.size, partition, file.modification_time, True, file.stats)
            for file, partition in write_rows(self.storage, rows, PARTITION_BY)
        ]

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes one log entry upon the version of `table`, and syncs it. The data files are durable before.

        Raises CommitFailedError if a commit since that version carries one of these transaction ids.
        """
        metadata = {**(metadata or {}), ACTIONS: len(actions) + len(transactions)}
        table.create_write_transaction(
            list(actions),
            "append",
            table.schema(),
            PARTITION_BY,
            commit_properties=CommitProperties(app_transactions=list(transactions), custom_metadata=metadata),
            post_commithook_properties=_NO_HOOKS,
        )
        self._secure(table.version() + 1)

    def read(
        self, where: Where | None, columns: Sequence[str] | None = None, table: DeltaTable | None = None
    ) -> pa.Table:
        """Returns the rows that match `where`, or all rows. Opens only the files whose statistics allow a match."""
        table = table or self.open()
        if table is None:
            empty = TABLES[self.name].empty_table()
            return empty if columns is None else empty.select(list(columns))
        try:
            chosen = None if where is None else as_expression(where)
            return self.dataset(table, where).to_table(columns=list(columns) if columns else None, filter=chosen)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self.error(error) from error

    def dataset(self, table: DeltaTable, where: Where | None) -> ds.Dataset:
        """Returns the files whose statistics allow rows that match `where`; they are not opened yet.

        Arrow itself reads them, and not delta-rs's Python file system (`object_store.arrow_filesystem`).
        """
        schema = pa.schema(table.schema().to_arrow())
        for field in _missing_columns(table.schema(), TABLES[self.name]):  # null in a table of an earlier version
            schema = schema.append(field)
        pruning = None if where is None else _as_sql(where)
        return table.to_pyarrow_dataset(
            filesystem=self.storage.filesystem, file_pruning_predicate=pruning, schema=schema
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
        try:
            locks.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise self.error(error) from error
        try:
            yield
        finally:
            lock.release()

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

    def error(self, cause: BaseException) -> FatalError | TransientError:
        """Returns the error for a table whose log or files can't be read or written: TransientError if its object store
        does not answer."""
        return unusable(f"the table {self.name} at {scrub_address(self.uri)}", cause, self.uri)


def retry_beside_rivals(commit: Callable[[], T]) -> T:
    """Repeats a commit that a rival made fail, at once and up to COMMIT_TRIES times in all."""
    tries = Retrying(
        retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(COMMIT_TRIES), reraise=True
    )
    return tries(commit)


def _missing_columns(existing: Schema, wanted: pa.Schema) -> list[pa.Field]:
    names = {field.name for field in existing.fields}
    return [field for field in wanted if field.name not in names]


def _is_taken(last: int | None, number: int) -> bool:
    return last is not None and last >= number


def as_expression(where: Where) -> ds.Expression:
    """Returns `where` as Arrow's filter."""
    return reduce(and_, (ds.field(name) == value for name, value in where.items()))


def _as_sql(where: Where) -> str:
    """Returns `where` as the SQL predicate by which delta-rs prunes files."""
    return " AND ".join(f"{name} = {_sql_literal(value)}" for name, value in where.items())


def _sql_literal(value: str | int) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
