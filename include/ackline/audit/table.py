"""One Delta table, with the only two things that the ledger does to it: a fenced append, and a pruned read.

A fenced append carries a Delta transaction id (application, version), and the table refuses it when that version is
taken. It replaces the compare-and-set that Kafka does not have. delta-rs alone appends a repeat again. So an append
reads the version and commits on one handle: if a rival commits in between, ours fails as a concurrent transaction.

Opening a table and its lock are in `table_handle.py`, its creation in `creation.py`, the log entry of an append and the
order of its writes in `fenced_append.py`, the notes of commits in `commit_notes.py`, reads in `pruned_read.py`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ackline.audit.checkpoints import CheckpointError, expire_entries, write_checkpoint
from ackline.audit.commit_notes import as_metadata, find_note
from ackline.audit.conditional_put import prove_conditional_put
from ackline.audit.creation import LEDGER_ID, LOG_RETENTION, add_missing_columns, create_table
from ackline.audit.fenced_append import COMMIT_TRIES, is_taken, retry_beside_rivals, write_entry, write_files
from ackline.audit.pruned_read import Where, as_expression, pruned_dataset
from ackline.audit.schemas import TABLES
from ackline.audit.table_handle import TableHandle
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

_logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 10
"""Commits between checkpoints. A commit since the last one adds 0.5 ms to opening; a checkpoint takes 4 ms."""


class AuditTable(TableHandle):
    """The table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    _has_all_columns = False
    """Whether this process has seen every column of the schema in the table. No column is ever removed."""

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
        """Returns the newest version for writing, with every column that this version of Ackline writes."""
        # The fences of an object store are its conditional puts: nothing is written where they don't hold. A process
        # proves each bucket once.
        prove_conditional_put(self.uri.rpartition("/")[0])
        table = self.open() or create_table(self)
        if not self._has_all_columns:
            add_missing_columns(self, table)
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

    def transactions(self) -> dict[str, int]:
        """Returns the highest version of each transaction id; none if the table does not exist."""
        table = self.open()
        try:
            return {} if table is None else self.log.transactions(table.version())
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.error(error) from error

    def version_of(self, application: str) -> int | None:
        """Returns the highest version that was committed under a transaction id, or None."""
        table = self.open()
        try:
            return None if table is None else table.transaction_version(application)
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
        metadata = as_metadata(application, number, note)
        fence = [Transaction(name, number) for name in (application, *more)]
        files: list[AddAction] | None = None

        def append() -> bool:
            nonlocal files
            with self.lock():
                try:
                    # The handle that proves the number free is the one that commits: a rival in between makes it fail.
                    table = self._writable()
                    if is_taken(table.transaction_version(application), number):
                        return False
                    if files is None:  # a commit that is tried again names the same files
                        files = write_files(self.storage, rows) if isinstance(rows, pa.Table) else list(rows)
                    removed = remove(table) if remove else ()
                    self.commit(table, [*files, *removed], fence, metadata)
                except CommitFailedError:  # a rival took the number; or compacted, and then the number is still free
                    if is_taken(self.version_of(application), number):
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
            except FatalError as error:
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
        table = self.open()
        return None if table is None else find_note(table, application, number)

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
        write_entry(self, table, actions, transactions, metadata)

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
        """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet."""
        return pruned_dataset(self, table, where)
