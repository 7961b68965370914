"""One Delta table, with the two things that the ledger does to it: a fenced append, and a pruned read.

An append is one commit that carries a number, and is refused if the number is taken. Its metadata may hold a note: the
report of a turn's tasks, or the subscription of a lane's first genesis.
"""

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial, reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.append import (
    COMMIT_TRIES,
    LOG_RETENTION,
    NO_HOOKS,
    link_entry,
    retry_beside_rivals,
    write_entry,
    write_files,
)
from ackline.delta.checkpoints import expire_entries, write_checkpoint
from ackline.delta.errors import IgnoredStorageErrors, is_storage_error
from ackline.delta.handle import LogState, TableHandle
from ackline.delta.log import ACTIONS, LOG
from ackline.delta.object_store import options_of
from ackline.delta.reads import (
    TurnFiles,
    Where,
    as_expression,
    files_of_entries,
    files_of_version,
    no_files,
    pruned_dataset,
)
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

_COMMIT, _NOTE, _NONCE = "ackline.commit", "ackline.note", "ackline.nonce"
_SEARCHED_ENTRIES = 512
"""How many of the newest commits are searched for a note: a bound that does not grow with the log."""
_logger = logging.getLogger(__name__)

CHECKPOINT_EVERY, AT_LEAST_EVERY = 10, 100
"""Commits between checkpoints: of a small table, and of a large one. A commit since the last checkpoint adds 0.5 ms to
opening the table; a checkpoint takes 4 ms, and 30 ms for each 1,000 files."""
_FILES_A_COMMIT = 250
"""Files of the table for each commit between two checkpoints, so that a commit's share of a checkpoint hardly grows."""


@dataclass(frozen=True, slots=True)
class Upon:
    """What a commit has beside its own files, for the version that it is made upon: `actions` for files of that
    version, and `numbers` of further transaction ids. With `exclusive` or actions it fails if there is any commit since
    that version."""

    actions: Sequence[AddAction | RemoveAction] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class _Commit:
    """What one append stores. Each try commits the same files."""

    files: Callable[[], Sequence[AddAction]]
    """Returns the files that the commit adds. The first call writes them, if the commit is of rows."""
    application: str
    number: int
    more: Mapping[str, int]
    metadata: Mapping[str, str]
    upon: "Callable[[LogState], Upon] | None"

    def fence(self, upon: "Upon") -> list[Transaction]:
        """Returns the transaction ids that the commit sets."""
        numbers = {self.application: self.number} | dict(self.more) | dict(upon.numbers)
        return [Transaction(name, version) for name, version in numbers.items()]


class FencedTable(TableHandle, ABC):
    """A table in which each number of a transaction id is committed once. A subclass creates it (`_writable`)."""

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
        return [None if state is None else state.transactions.get(application) for application in applications]

    def note_of(self, application: str, number: int) -> str | None:
        """Returns the note of the commit `number` of `application`. None if it has none, or if the Delta log has
        expired it: the log keeps the transaction id of a commit for good, but its metadata only for LOG_RETENTION."""
        state = self.state()
        with IgnoredStorageErrors():  # of an older entry, which nothing else needs
            commit = f"{application}/{number}"
            if state is not None and (info := self.states.commit_info(state, _COMMIT, commit, _SEARCHED_ENTRIES)):
                return str(info.get(_NOTE))
        return None

    def was_set_back(self, entries: int) -> bool:
        """Returns whether one of the newest log entries is a RESTORE: it takes rows, and keeps the transaction ids."""
        state = self.state()
        return state is not None and self.states.commit_info(state, "operation", "RESTORE", entries) is not None

    def opened(self) -> DeltaTable:
        """Returns the newest version. The caller has made sure that the table exists."""
        table = self.open()
        assert table is not None
        return table

    def read(
        self,
        where: Where | None,
        columns: Sequence[str] | None = None,
        table: DeltaTable | None = None,
        also: ds.Expression | None = None,
    ) -> pa.Table:
        """Returns the rows that match `where` and `also`, or all rows. Opens only the files whose statistics allow a
        match; none if the table does not exist. Raises FatalError or TransientError if the table can't be read."""
        table = table or self.open()
        if table is None:
            empty = self.declared.empty_table()
            return empty if columns is None else empty.select(list(columns))
        with self.errors():
            filters = ([as_expression(where)] if where is not None else []) + ([also] if also is not None else [])
            chosen = reduce(and_, filters) if filters else None
            dataset = pruned_dataset(self, table, where)
            return dataset.to_table(columns=list(columns) if columns else None, filter=chosen)

    def turn_files(self, where: Where, applications: Sequence[str], number: int) -> TurnFiles:
        """Returns the files that may hold rows of a turn which match `where`; they are not opened yet.

        `applications` and `number` name the first commit that can hold such rows: `number` of the first application
        that has reached it. The cost does not grow with the files of other turns while the newest log entries hold that
        commit. Raises FatalError if the table can't be read.
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
        """Returns the rows of a turn that match `where`. No commit before `number` of `application` has such rows."""
        dataset = self.turn_files(where, [application], number).dataset
        with self.errors():
            return dataset.to_table(columns=list(columns) if columns else None, filter=as_expression(where))

    def create(self) -> None:
        """Creates the table if it does not exist. Two processes that create it at the same time get the same table."""

        def create() -> None:
            with self.lock():
                self._writable()

        with self.errors():
            retry_beside_rivals(create)

    def _create(
        self, schema: pa.Schema, description: str | None = None, configuration: Mapping[str, str | None] | None = None
    ) -> LogState:
        """Creates the table, unless another process has created it meanwhile, and returns it. Its first entry is on the
        disk. Raises CommitFailedError if another process creates it at the same time; then its table can be opened."""
        self.storage.make_durably(LOG)  # with the folders above it, which hold every later commit
        table = DeltaTable.create(
            self.uri,
            schema=schema,
            mode="ignore",
            partition_by=list(self.partition_by),
            description=description,
            configuration=configuration,
            raise_if_key_not_exists=False,  # a property may be one of ours
            storage_options=options_of(self.uri),
            # delta-rs would try a creation that lost its race again as version 1, and so replace the ledger's id that
            # the winner has begun with. Without it the loser raises CommitFailedError, and opens the winner's table.
            commit_properties=CommitProperties(
                custom_metadata={ACTIONS: 2},  # protocol and metadata
                max_commit_retries=0,
            ),
            post_commithook_properties=NO_HOOKS,
        )
        self.secure(table.version())
        state = self.state()
        if state is None:  # another attempt would find the same
            raise self.log.gap(0)
        return state

    @abstractmethod
    def _writable(self) -> LogState:
        """Returns the newest version of the table, which has every column that is written. Creates the table if it does
        not exist."""

    def append(
        self,
        rows: pa.Table | Sequence[AddAction],
        application: str,
        number: int,
        note: str | None = None,
        more: Mapping[str, int] | None = None,
        upon: Callable[[LogState], Upon] | None = None,
    ) -> bool:
        """Appends rows, or files already written, as version `number` of `application`; zero rows are a commit too.

        `note` is stored in the metadata of the commit, where `note_of` finds it. `more` are the numbers of
        further applications that the commit sets; they are no fence. `upon` returns what the same commit has for the
        version that it is made upon; each try calls it, under the lock of a local table.
        Returns True once the commit is stored, and False if another commit has taken the number; then nothing is
        stored. A commit whose answer is lost counts as stored if its entry is found. Raises TransientError if rivals
        win each of COMMIT_TRIES commits, and FatalError if the store refuses the write (a full disk): then nothing is
        visible, unless an object store has lost the answer and does not answer since.
        """
        metadata = {_NONCE: str(uuid.uuid4())}
        if note is not None:
            metadata |= {_COMMIT: f"{application}/{number}", _NOTE: note}

        @cache
        def files() -> Sequence[AddAction]:
            return write_files(self.storage, rows, self.partition_by) if isinstance(rows, pa.Table) else list(rows)

        commit = _Commit(files, application, number, more or {}, metadata, upon)
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
        """Stores a commit; returns False if its number is taken. Raises CommitFailedError if a rival, such as a
        compaction, makes it fail and its number is still free."""
        with self.lock():
            try:
                # The version that proves the number free is the one that is committed upon: a rival in between makes
                # the commit fail.
                state = self._writable()
                if self._is_taken(state.transactions.get(commit.application), commit.number):
                    return False
                upon = commit.upon(state) if commit.upon is not None else Upon()
                if self.has_lock and not upon.actions:
                    link_entry(self, state, commit.files(), commit.fence(upon), commit.metadata)
                    return True
                return self._store_upon_files(commit, state, upon)
            except CommitFailedError:
                # By a rival, or by the entry of this commit, if the answer to its write is lost and it is repeated.
                if self._is_taken(self.version_of(commit.application), commit.number):
                    return self._is_stored(commit)
                raise

    def _store_upon_files(self, commit: "_Commit", state: LogState, upon: Upon) -> bool:
        """Stores a commit in an object store, or one that removes files; returns False if its number is taken. It costs
        more than `link_entry`: delta-rs loads the files of the version that it commits upon."""
        table = self.opened()
        if self._is_taken(table.transaction_version(commit.application), commit.number):
            return False
        if commit.upon is not None:
            self.check_is_at(table, state)
        actions = [*commit.files(), *upon.actions]
        self.commit(table, actions, commit.fence(upon), commit.metadata, upon.exclusive)
        return True

    def check_is_at(self, table: DeltaTable, state: LogState) -> None:
        """Raises CommitFailedError, as a commit does that a rival was faster than, unless both are one version."""
        if table.version() != state.version:
            raise CommitFailedError(f"version {state.version + 1} is stored already")

    def _is_taken(self, last: int | None, number: int) -> bool:
        return last is not None and last >= number

    def _checkpoint_if_due(self) -> None:
        """Writes a checkpoint after enough commits. The commit that was stored does not depend on it, so what fails
        here raises nothing."""
        try:
            with self.errors():
                commits, rows = self.log.since_checkpoint()
                enough = min(rows // _FILES_A_COMMIT, AT_LEAST_EVERY)
            if commits >= max(CHECKPOINT_EVERY, enough):
                self.checkpoint()
        except (FatalError, TransientError) as error:
            _logger.warning("%s. The commit is stored; `ackline maintain` tries the checkpoint again", error)

    def checkpoint(self) -> None:
        """Writes a checkpoint of the newest version, and then removes the log entries that no reader needs any more.
        Raises FatalError if that fails; then the log holds what it held."""
        with self.lock():
            table = self.open()
            if table is None:
                return
            with self.errors():
                write_checkpoint(self.log, table)
                expire_entries(self.log, self.log_retention(table))

    def log_retention(self, table: DeltaTable) -> timedelta:
        """Returns how long a log entry stays after checkpoints cover it."""
        return LOG_RETENTION

    def commit(
        self,
        table: DeltaTable,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
        metadata: Mapping[str, Any] | None = None,
        exclusive: bool = False,
    ) -> None:
        """Writes one log entry upon the version of `table`, and syncs it. The caller has synced the data files before.
        Raises CommitFailedError if a commit since that version carries one of these transaction ids; of an entry that
        removes files, or is `exclusive`, if there is any commit since that version. delta-rs lets an entry with
        removals follow one that has removed the same files, as a user's OPTIMIZE does, and then the table holds every
        row twice."""
        retries = 0 if exclusive or any(isinstance(action, RemoveAction) for action in actions) else None
        write_entry(table, actions, transactions, metadata or {}, self.partition_by, retries)
        self.secure(table.version() + 1)
