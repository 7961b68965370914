"""Reads of one Delta table: rows by what the log states of their files, and transaction ids without any file."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ackline.audit.commit_notes import find_note
from ackline.audit.delta_log import TornEntryError
from ackline.audit.pruned_read import Where, as_expression, pruned_dataset
from ackline.audit.schemas import TABLES
from ackline.audit.table_handle import TableHandle
from ackline.audit.turn_files import TurnFiles, files_of_entries, files_of_version, no_files


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
        try:
            return None if state is None else find_note(self.states, state, application, number)
        except (TornEntryError, OSError):  # an older entry, which nothing else needs
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
        try:
            chosen = None if where is None else as_expression(where)
            return self.dataset(table, where).to_table(columns=list(columns) if columns else None, filter=chosen)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self.error(error) from error

    def turn_files(self, where: Where, applications: Sequence[str], number: int) -> TurnFiles:
        """Returns the files that may hold rows of a turn which match `where`; they are not opened yet.

        No commit before the commit `number` of the first of these applications that has reached it may hold such rows.
        The cost does not grow with the files of other turns while the newest log entries hold that commit. Raises
        FatalError if the table can't be read.
        """
        try:
            state = self.state()
            if state is None:
                return no_files(self)
            added = self.states.files_since(state, applications, number)
            if added is not None:
                return files_of_entries(self, state, added, where)
            table = self.open()
            return no_files(self) if table is None else files_of_version(self, table, where)
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise self.error(error) from error

    def read_turn(self, where: Where, application: str, number: int) -> pa.Table:
        """Returns the rows of a turn that match `where`. No commit before `number` of `application` may hold them."""
        dataset = self.turn_files(where, [application], number).dataset
        try:
            return dataset.to_table(filter=as_expression(where))
        except (OSError, pa.ArrowException) as error:
            raise self.error(error) from error

    def dataset(self, table: DeltaTable, where: Where | None) -> ds.Dataset:
        """Returns the files of a version whose statistics allow rows that match `where`; they are not opened yet."""
        return pruned_dataset(self, table, where)
