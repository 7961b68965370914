"""One Delta table, with the two things that the ledger does to it: a fenced append, and a pruned read.

A read opens only the files that may hold its rows, by what the log states of them; transaction ids need no file. An
append is one commit that carries a number, and is refused if the number is taken. Its metadata may hold a note: the
report of a turn's tasks, or the subscription of a lane's first genesis.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address
from ackline.tables.append import (
    COMMIT_TRIES,
    LEDGER_ID,
    LOG_RETENTION,
    REWRITE,
    add_missing_columns,
    create_table,
    link_entry,
    missing_columns,
    retry_beside_rivals,
    store_ledger_id,
    write_entry,
    write_files,
)
from ackline.tables.errors import IgnoredStorageErrors, is_storage_error
from ackline.tables.folder import Folder, prove_conditional_put
from ackline.tables.handle import LogState, TableHandle
from ackline.tables.log import expire_entries, write_checkpoint
from ackline.tables.reads import (
    Turn,
    TurnFiles,
    Where,
    as_expression,
    files_of_entries,
    files_of_version,
    lost_files,
    no_files,
    pruned_dataset,
    removals,
)
from ackline.tables.schemas import TABLES

_COMMIT, _NOTE, _NONCE = "ackline.commit", "ackline.note", "ackline.nonce"
_SEARCHED_ENTRIES = 512
"""How many of the newest commits are searched for a note: a bound that does not grow with the log."""


class TableReads(TableHandle):
    """The reads of the table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    def transactions(self) -> dict[str, int]:
        """Returns the highest version of each transaction id; none if the table does not exist."""
        state = self.state()
        return {} if state is None else dict(state.transactions)

    def version_of(self, application: str) -> int | None:
        """Returns the highest version that was committed under a transaction id, or None."""
        return self.versions_of([application])[0]

    def versions_of(self, applications: Iterable[str]) -> list[int | None]:
        """Returns the highest version that was committed under each transaction id, or None, all from one version of
        the table."""
        state = self.state()
        return [None if state is None else state.version_of(application) for application in applications]

    def note_of(self, application: str, number: int) -> str | None:
        """Returns the note of the commit `number` of `application`.

        None if it has none, or if the Delta log has expired it: the log keeps the transaction id of a commit for good,
        but its metadata only for LOG_RETENTION.
        """
        state = self.state()
        with IgnoredStorageErrors():  # of an older entry, which nothing else needs
            commit = f"{application}/{number}"
            if state is not None and (info := self.states.commit_info(state, _COMMIT, commit, _SEARCHED_ENTRIES)):
                return str(info.get(_NOTE))
        return None

    def opened(self) -> DeltaTable:
        """Returns the newest version of a table that exists."""
        table = self.open()
        assert table is not None
        return table

    def read(
        self, where: Where | None, columns: Sequence[str] | None = None, table: DeltaTable | None = None
    ) -> pa.Table:
        """Returns the rows that match `where`, or all rows. Opens only the files whose statistics allow a match."""
        table = table or self.open()
        if table is None:
            empty = TABLES[self.name].empty_table()
            return empty if columns is None else empty.select(list(columns))
        with self.errors():
            chosen = None if where is None else as_expression(where)
            return self.dataset(table, where).to_table(columns=list(columns) if columns else None, filter=chosen)

    def turn_files(self, where: Where, applications: Sequence[str], number: int) -> TurnFiles:
        """Returns the files that may hold rows of a turn which match `where`; they are not opened yet.

        No commit before the commit `number` of the first of these applications that has reached it may hold such rows.
        The cost does not grow with the files of other turns while the newest log entries hold that commit. Raises
        FatalError if the table can't be read.
        """
        with self.errors():
            state = self.state()
            if state is None:
                return no_files(self)
            added = self.states.files_since(state, applications, number)
            if added is not None:
                return files_of_entries(self, state, added, where)
            table = self.open()
            return no_files(self) if table is None else files_of_version(self, table, where)

    def read_turn(self, where: Where, application: str, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of a turn that match `where`. No commit before `number` of `application` may hold them."""
        dataset = self.turn_files(where, [application], number).dataset
        with self.errors():
            return dataset.to_table(columns=list(columns) if columns else None, filter=as_expression(where))

    def dataset(self, table: DeltaTable, where: Where | None) -> ds.Dataset:
        """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet."""
        return pruned_dataset(self, table, where)


_logger = logging.getLogger(__name__)

CHECKPOINT_EVERY, AT_LEAST_EVERY = 10, 100
"""Commits between checkpoints: of a small table, and of a large one. A commit since the last checkpoint adds 0.5 ms to
opening the table; a checkpoint takes 4 ms, and 30 ms for each 1,000 files."""
_FILES_A_COMMIT = 250
"""Files of the table for each commit between two checkpoints, so that a commit's share of a checkpoint hardly grows."""


@dataclass(slots=True)
class _Commit:
    """What an append stores. It is tried again with the same files."""

    rows: pa.Table | Sequence[AddAction]
    application: str
    number: int
    fence: Sequence[Transaction]
    metadata: Mapping[str, str]
    remove: Callable[[DeltaTable], Sequence[RemoveAction]] | None
    _files: Sequence[AddAction] | None = None

    def files(self, storage: Folder) -> Sequence[AddAction]:
        """Returns the files that the commit adds. The first call writes them, if the commit is of rows."""
        if self._files is None:
            self._files = write_files(storage, self.rows) if isinstance(self.rows, pa.Table) else list(self.rows)
        return self._files


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

        with self.errors():
            retry_beside_rivals(create)

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
            raise self._error(ValueError(f"it has no property {LEDGER_ID}; restore its folder from a backup"))
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

        with self.errors():
            retry_beside_rivals(replace)

    def append(
        self,
        rows: pa.Table | Sequence[AddAction],
        application: str,
        number: int,
        note: str | None = None,
        more: Mapping[str, int] | None = None,
        remove: Callable[[DeltaTable], Sequence[RemoveAction]] | None = None,
    ) -> bool:
        """Append rows, or files already written, as version `number` of `application`; zero rows are a commit too.

        `note` is stored in the metadata of the commit, where `note_of` finds it. `more` are the numbers of
        further applications that the commit sets; they are no fence. `remove` returns which files the same commit stops
        naming, for the version that it is made upon.
        Returns True once the commit is stored, and False if another commit has taken the number; then nothing is
        stored. A commit whose answer is lost counts as stored if its entry is found. Raises TransientError if rivals
        win each of COMMIT_TRIES commits, and FatalError if the store refuses the write (a full disk): then nothing is
        visible, unless an object store has lost the answer and does not answer since.
        """
        fence = [Transaction(name, version) for name, version in ({application: number} | dict(more or {})).items()]
        metadata = {_NONCE: str(uuid.uuid4())}
        if note is not None:
            metadata |= {_COMMIT: f"{application}/{number}", _NOTE: note}
        commit = _Commit(rows, application, number, fence, metadata, remove)
        with self.errors():
            try:
                stored = retry_beside_rivals(partial(self._store, commit))
            except CommitFailedError:
                raise TransientError(
                    f"the table {scrub_address(self.uri)} refused {COMMIT_TRIES} commits in a row because others write "
                    f"to it; run this again"
                ) from None
            except BaseException as error:
                if not is_storage_error(error) or not self._is_stored(commit):
                    raise
                stored = True
        if stored:
            self._checkpoint_if_due()
        return stored

    def _is_stored(self, commit: "_Commit") -> bool:
        """Returns whether the log has this very commit: a store may keep a write and lose its answer. A rival that has
        taken the number has another nonce."""
        with IgnoredStorageErrors():
            state = self.states.newest()
            nonce = commit.metadata[_NONCE]
            return state is not None and self.states.commit_info(state, _NONCE, nonce, _SEARCHED_ENTRIES) is not None
        return False

    def _store(self, commit: "_Commit") -> bool:
        """Stores a commit; returns False if its number is taken. Raises CommitFailedError if a rival makes it fail and
        the number is still free: a compaction."""
        with self.lock():
            try:
                # The version that proves the number free is the one that is committed upon: a rival in between makes
                # the commit fail.
                state = self._writable()
                if self._is_taken(state.version_of(commit.application), commit.number):
                    return False
                if self.has_lock and commit.remove is None:
                    link_entry(self, state, commit.files(self.storage), commit.fence, commit.metadata)
                    return True
                return self._store_upon_files(commit)
            except CommitFailedError:
                # By a rival, or by the entry of this commit, if the answer to its write is lost and it is repeated.
                if self._is_taken(self.version_of(commit.application), commit.number):
                    return self._is_stored(commit)
                raise

    def _store_upon_files(self, commit: "_Commit") -> bool:
        """Stores a commit as `_store` does, in an object store, or if it removes files: delta-rs loads the files of
        the version that it commits upon."""
        table = self.opened()
        if self._is_taken(table.transaction_version(commit.application), commit.number):
            return False
        removed = commit.remove(table) if commit.remove else ()
        self.commit(table, [*commit.files(self.storage), *removed], commit.fence, commit.metadata)
        return True

    def _is_taken(self, last: int | None, number: int) -> bool:
        """Returns whether a number is taken, if `last` is the last one of its application."""
        return last is not None and last >= number

    def _checkpoint_if_due(self) -> None:
        """Writes a checkpoint after enough commits. The commit that was stored does not depend on it, so what fails
        here raises nothing."""
        try:
            with self.errors():
                files = self.log.files()
                commits = files.entries[-1].version - files.newest_checkpoint if files.entries else 0
                enough = min(self.log.checkpointed_rows() // _FILES_A_COMMIT, AT_LEAST_EVERY)
            if commits >= max(CHECKPOINT_EVERY, enough):
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
            with self.errors():
                write_checkpoint(self.log, table)
                expire_entries(self.log, self.log_retention(table))

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

    def drop_lost_files(self, turns: Collection[Turn], read: bool = False) -> int:
        """Stops naming the lost files of these turns, all of which are void. Returns how many they were. With `read`,
        looks also for files with a damaged content, at the cost of reading all files of these turns.

        A file is dropped only if all its rows are of one void turn, so that no row of it can count. One of a turn that
        counts stays named: its rows are outcomes that nothing else proves. One commit, and none if no file is lost; so
        a repeat changes nothing. It needs no fence of a turn: a void turn stays void. Raises FatalError if the table
        can't be read or written.
        """

        def drop() -> int:
            with self.lock():
                version = self.open()
                lost = [] if version is None else lost_files(self, version, turns, read)
                if version is not None and lost:
                    # Files are removed under the id of compactions, so of two at once one fails and looks again.
                    self.commit(version, removals(lost), [Transaction(REWRITE, version.version() + 1)])
                return len(lost)

        with self.errors():
            version = self.open()  # without the lock: usually nothing is lost, and writers need not wait
            if version is None or not turns or not lost_files(self, version, turns, read):
                return 0
            dropped = retry_beside_rivals(drop)
        _logger.warning(
            "%d lost files of void turns are not in the table %s at %s any more; no row of them counted",
            dropped, self.name, scrub_address(self.uri),
        )  # fmt: skip
        return dropped
