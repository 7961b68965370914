"""One Delta table, with the only two things that the ledger does to it: a fenced append, and a pruned read.

A fenced append carries a Delta transaction id (application, version), and the table refuses it when that version is
taken. It replaces the compare-and-set that Kafka does not have. delta-rs alone appends a repeat again. So an append
reads the version and commits on one handle: if a rival commits in between, ours fails as a concurrent transaction.

Opening a table and its lock are in `table_handle.py`, its creation in `creation.py`, the log entry of an append and the
order of its writes in `fenced_append.py`, the notes of commits in `commit_notes.py`, reads in `table_reads.py`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ackline.audit.checkpoints import CheckpointError, expire_entries, write_checkpoint
from ackline.audit.commit_notes import as_metadata
from ackline.audit.conditional_put import prove_conditional_put
from ackline.audit.creation import (
    LEDGER_ID,
    LOG_RETENTION,
    add_missing_columns,
    create_table,
    missing_columns,
    store_ledger_id,
)
from ackline.audit.fenced_append import (
    COMMIT_TRIES,
    is_taken,
    link_entry,
    retry_beside_rivals,
    write_entry,
    write_files,
)
from ackline.audit.log_state import LogState
from ackline.audit.table_reads import TableReads
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

_logger = logging.getLogger(__name__)

CHECKPOINT_EVERY, AT_LEAST_EVERY = 10, 100
"""Commits between checkpoints: of a small table, and of a large one. A commit since the last checkpoint adds 0.5 ms to
opening the table; a checkpoint takes 4 ms, and 30 ms for each 1,000 files."""
_FILES_A_COMMIT = 250
"""Files of the table for each commit between two checkpoints, so that a commit's share of a checkpoint hardly grows."""


class AuditTable(TableReads):
    """The table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    _has_all_columns = False
    """Whether this process has seen every column of the schema in the table. No column is ever removed."""

    def create(self) -> None:
        """Creates the table if it does not exist, and adds the columns that an earlier version did not have.

        Two processes that create it at the same time get the same table.
        """

        def create() -> None:
            with self.lock():
                self._writable()

        try:
            retry_beside_rivals(create)
        except (DeltaError, OSError) as error:
            raise self.error(error) from error

    def _writable(self) -> LogState:
        """Returns the newest version of the table, which has every column that this version of Ackline writes."""
        # The fences of an object store are its conditional puts: nothing is written where they don't hold. A process
        # proves each bucket once.
        prove_conditional_put(self.uri.rpartition("/")[0])
        state = self.state()
        if state is None:
            create_table(self)
        elif not self._has_all_columns and missing_columns(state.schema, self.name):
            add_missing_columns(self, self.opened())
        else:
            self._has_all_columns = True
            return state
        return self._writable()

    def ledger_id(self) -> str:
        """Returns the id of the ledger that this table of settlements begins; "" if the table does not exist.

        It is a property of the table, so a copy or a successor of the table keeps it. Raises FatalError if the table
        has lost it.
        """
        state = self.state()
        if state is None:
            return ""
        ledger_id = state.configuration.get(LEDGER_ID)
        if not ledger_id:
            raise self.error(ValueError(f"it has no property {LEDGER_ID}; restore its folder from a backup"))
        return ledger_id

    def replace_ledger_id(self, old: str, new: str) -> None:
        """Gives the ledger the id `new` if its id is `old`; does nothing otherwise.

        The change is a commit of its own, upon the version that has the id `old`. Raises FatalError if the store
        refuses the write.
        """

        def replace() -> None:
            with self.lock():
                table = self.opened()
                if table.metadata().configuration.get(LEDGER_ID) == old:
                    store_ledger_id(self, table, new)

        try:
            retry_beside_rivals(replace)
        except (DeltaError, OSError) as error:
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
                    # The version that proves the number free is the one that is committed upon: a rival in between
                    # makes the commit fail.
                    state = self._writable()
                    if is_taken(state.version_of(application), number):
                        return False
                    if files is None:  # a commit that is tried again names the same files
                        files = write_files(self.storage, rows) if isinstance(rows, pa.Table) else list(rows)
                    if self.has_lock and remove is None:
                        link_entry(self, state, files, fence, metadata)
                        return True
                    table = self.opened()
                    if is_taken(table.transaction_version(application), number):
                        return False
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
        """Writes a checkpoint after enough commits. The commit that was stored does not depend on it."""
        files = self.log.files()
        commits = files.entries[-1].version - files.newest_checkpoint if files.entries else 0
        if commits < CHECKPOINT_EVERY or commits < min(self.log.checkpointed_rows() // _FILES_A_COMMIT, AT_LEAST_EVERY):
            return
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
                expire_entries(self.log, self.log_retention(table))
            except (DeltaError, OSError, pa.ArrowException, CheckpointError) as error:
                raise self.error(error) from error

    def log_retention(self, table: DeltaTable) -> timedelta:
        """Returns how long log entries stay that a checkpoint covers."""
        return LOG_RETENTION

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
