"""A table of the ledger: how it is created, grows columns, holds the ledger's id, and drops lost files of void turns.

The fenced append and the reads are those of every Delta table (`ackline.delta.table`).
"""

import logging
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import RemoveAction

from ackline.delta.append import LOG_RETENTION, NO_HOOKS, REWRITE, missing_columns, retry_beside_rivals
from ackline.delta.files import row_groups
from ackline.delta.folder import check_user, prove_conditional_put
from ackline.delta.handle import LogState
from ackline.delta.reads import BOUNDS, table_files
from ackline.delta.table import FencedTable
from ackline.errors import ConfigError, FatalError
from ackline.scrub import scrub_address
from ackline.stored import DamagedError
from ackline.tables.schemas import DESCRIPTIONS, FORMER_COLUMNS, IN_EVERY_TABLE, PARTITION_BY, TABLES

LEDGER_ID = "ackline.ledger"
"""The property of the settlements table that holds the id of the ledger."""
_PROPERTIES = {
    "delta.appendOnly": "true",
    # No other writer checkpoints the log or removes entries of it: neither would sync what it writes.
    "delta.checkpointInterval": str(2**31 - 1),
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": f"interval {LOG_RETENTION.days} days",
}
FEATURES = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "identityColumns",
     "invariants"}
)  # fmt: skip
"""The table features that a table of the ledger may have. An upgrade of the protocol lists them though none is used."""
COLUMN_MAPPING, CONSTRAINT = "delta.columnMapping.mode", "delta.constraints."
Turn = tuple[int, int]
"""An epoch and a number in it."""
_log = logging.getLogger(__name__)


class AuditTable(FencedTable):
    """The table `name` of `schemas.TABLES` in a lane's folder, which is a path or an object-store URI."""

    _has_all_columns = False
    """Whether this process has seen every column of the schema in the table. No column is ever removed."""

    def __init__(self, folder: str, name: str) -> None:
        super().__init__(folder, name, TABLES[name], PARTITION_BY)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the lock of a local table as `TableHandle.lock`. Raises FatalError if the owner of the lane's tables
        could not use what this process writes there; a new table in the folder of a pipeline is of that owner, too."""
        with self.errors():
            lane = Path(self.uri).parent
            for folder in (lane, lane.parent) if self.has_lock else ():
                if (folder / "settlements").is_dir():
                    check_user(folder)
        with super().lock():
            yield

    def _check_is_ours(self, columns: Iterable[str]) -> None:
        """Raises FatalError for a table that is not Ackline's, and ConfigError for one with a column of a former
        name: it would be read as if the column were null."""
        existing = set(columns)
        missing = [name for name in IN_EVERY_TABLE if name not in existing]
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

    def _check_is_as_made(self, features: Collection[str], configuration: Mapping[str, str]) -> None:
        """Raises FatalError for a table to which another engine has given what Ackline does not write: a run would hand
        out records whose outcomes it can't store, or count rows that the engine has deleted."""
        unknown = sorted(set(features) - FEATURES)
        unknown += ["columnMapping"] * (configuration.get(COLUMN_MAPPING, "none") != "none")
        constraints = sorted(key.removeprefix(CONSTRAINT) for key in configuration if key.startswith(CONSTRAINT))
        if not unknown and not constraints:
            return
        what = f"the table feature {', '.join(unknown)}" if unknown else f"the constraint {', '.join(constraints)}"
        purge = [f"REORG TABLE delta.`{self.uri}` APPLY (PURGE)"] if "deletionVectors" in unknown else []
        # What Spark leaves in place of another feature that it has dropped goes with the history alone, a day later.
        truncated = {"checkpointProtection": " TRUNCATE HISTORY"}
        drops = [f"FEATURE {name}{truncated.get(name, '')}" for name in unknown] or [
            f"CONSTRAINT {name}" for name in constraints
        ]
        ends = "; ".join([*purge, *(f"ALTER TABLE delta.`{self.uri}` DROP {drop}" for drop in drops)])
        raise FatalError(
            f"the table {self.name} at {scrub_address(self.uri)} can't be used: another engine has given it {what}, "
            f"which Ackline does not write. This ends it, in Spark SQL: {ends}"
        )

    def _writable(self) -> LogState:
        """Returns the newest version of the table, which has every column that this version of Ackline writes."""
        # The fences of an object store are its conditional puts: nothing is written where they don't hold. A process
        # proves each bucket once.
        prove_conditional_put(self.uri.rpartition("/")[0])
        state = self.state()
        if state is None:
            ledger_id = {LEDGER_ID: str(uuid.uuid4())} if self.name == "settlements" else {}
            state = self._create(self.declared, DESCRIPTIONS[self.name], {**_PROPERTIES, **ledger_id})
        if not self._has_all_columns and missing_columns(state.schema, self.declared):
            _add_missing_columns(self, self.opened())
            return self._writable()
        self._has_all_columns = True
        return state

    def ledger_id(self) -> str:
        """Returns the id of the ledger that this table of settlements begins; "" if the table does not exist. It is a
        property of the table, so a copy of the table keeps it. Raises FatalError if the table has lost it."""
        state = self.state()
        if state is None:
            return ""
        ledger_id = state.configuration.get(LEDGER_ID)
        if not ledger_id:
            raise self._error(ValueError(f"it has no property {LEDGER_ID}; restore its folder from a backup"))
        return ledger_id

    def replace_ledger_id(self, old: str, new: str) -> None:
        """Gives the ledger the id `new` if its id is `old`, by a commit of its own upon the version that has `old`;
        does nothing otherwise. Raises FatalError if the store refuses the write."""

        def replace() -> None:
            with self.lock():
                table = self.opened()
                if table.metadata().configuration.get(LEDGER_ID) == old:
                    table.alter.set_table_properties(
                        {LEDGER_ID: new},
                        raise_if_not_exists=False,  # LEDGER_ID is a key of ours
                        # CommitFailedError if a rival has changed the properties since that version
                        commit_properties=CommitProperties(max_commit_retries=0),
                        post_commithook_properties=NO_HOOKS,
                    )
                    self.secure(table.version())

        with self.errors():
            retry_beside_rivals(replace)

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
        _log.warning(
            "%d lost files of void turns are not in the table %s at %s any more; no row of them counted",
            dropped, self.name, scrub_address(self.uri),
        )  # fmt: skip
        return dropped


def _add_missing_columns(handle: AuditTable, table: DeltaTable) -> None:
    """Adds the columns that an earlier version did not have, nullable. Brings `table` to that version. This is a commit
    of its own without a fence: if the process is killed after it, the table is valid and only has more columns. If a
    rival adds the same columns at once, ours raises CommitFailedError, and the next try finds them."""
    missing = missing_columns(table.schema(), handle.declared)
    if missing:
        fields = Schema.from_arrow(pa.schema(missing)).fields
        table.alter.add_columns(fields, post_commithook_properties=NO_HOOKS)
        handle.secure(table.version())


def files_of(version: DeltaTable, turns: Collection[Turn]) -> list[dict[str, Any]]:
    """Returns the files all rows of which are of one of these turns, by their statistics. A file that a compaction has
    mixed, and one without statistics, is none of them."""

    def is_of_turns(file: dict[str, Any]) -> bool:
        first, last = ((file.get(f"{bound}.epoch"), file.get(f"{bound}.turn")) for bound in BOUNDS)
        return first == last and first in turns

    return list(filter(is_of_turns, table_files(version).to_pylist()))


def lost_files(
    table: AuditTable, version: DeltaTable, turns: Collection[Turn], read: bool = False
) -> list[dict[str, Any]]:
    """Returns the files of these turns that do not exist, or do not have the size that the log names; with `read` also
    those whose content is damaged, at the cost of reading all. A store that does not answer is an OSError, and no loss.
    """
    files = files_of(version, turns)
    lost = set(table.storage.without_size({file["path"]: file["size_bytes"] for file in files}))
    return [file for file in files if file["path"] in lost or (read and not _is_whole(table, file["path"]))]


def _is_whole(table: AuditTable, path: str) -> bool:
    try:
        for _ in row_groups(table.storage, path):
            pass
    except DamagedError:
        return False
    return True


def removals(files: Sequence[dict[str, Any]]) -> list[RemoveAction]:
    """Returns the actions by which a commit stops naming these files. They are marked as no change of data, because the
    tables are append-only for every other writer."""
    now = int(time.time() * 1000)
    return [
        RemoveAction(
            file["path"], False, now, file["size_bytes"], {"plan_date": file["partition.plan_date"].isoformat()}
        )
        for file in files
    ]
