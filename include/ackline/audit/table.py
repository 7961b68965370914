"""One Delta table, with the only two things the ledger does to it: a fenced append, and a pruned read.

A fenced append carries a Delta transaction id (application, version) and is refused when that number is taken: Kafka's
missing compare-and-set. delta-rs does not check that by itself (a repeat is written again), so the number is read and
written on one handle: a rival that commits in between makes ours fail as a concurrent transaction.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction
from filelock import FileLock

from ackline.audit.schemas import PARTITION_BY, TABLES
from ackline.errors import FatalError, TransientError
from ackline.scrub import scrub_address

CHECKPOINT_EVERY = 10
"""Commits between checkpoints: each since the last adds half a millisecond to opening, and writing one takes four."""
LOG_RETENTION = "interval 1 days"
"""How long Delta keeps entries of the log that a checkpoint has summed up: each commit lists them all. No data goes
with them, and no transaction id."""
RELOAD_AFTER = 60.0
"""Seconds for which a handle is brought forward instead of loaded."""
_COMMIT, _NOTE = "ackline.commit", "ackline.note"
_LOOKED_THROUGH = (8, 64, 512)
"""How many of the newest commits are looked through for a note, from what is nearly always enough to what is too far:
a bound that does not grow with the log."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""delta-rs paints its errors, whoever reads them."""
_IN_EVERY_VERSION = (*PARTITION_BY, "lane", "epoch", "turn", "run_id", "topic", "partition")
_BACKTRACE = re.compile(r" 0: <unknown>.*")
"""What Delta's kernel puts after its message."""


class AuditTable:
    """A table `name` of `schemas.TABLES` below an audit root (a path or an object-store URI)."""

    def __init__(self, root: str, name: str) -> None:
        self.uri = f"{root.rstrip('/')}/{name}"
        self.name = name
        self._root = None if "://" in root else Path(root)
        self._loaded: DeltaTable | None = None
        self._loaded_at = 0.0
        self._whole = False
        """Whether the table is known to have every column of its schema here: none is ever taken away."""

    def open(self) -> DeltaTable | None:
        """The newest version, or None where the table is not there yet. Raises FatalError where it can't be read.

        A handle holds still until this is asked again: it is loaded once, then brought forward by what was committed
        since, and loaded anew after RELOAD_AFTER, before what it knows of the log has expired.
        """
        try:
            if self._loaded is None or not self._brought_forward(self._loaded):
                self._loaded, self._loaded_at = DeltaTable(self.uri), time.monotonic()
                self._check_is_ours(self._loaded)
        except TableNotFoundError as error:
            if str(error).startswith("Unknown scheme"):  # else a typing error would pass for tables still to be made
                raise self.unreadable(error) from error
            if self._root is not None and self._root.exists() and not self._root.is_dir():
                raise self.unreadable(NotADirectoryError(f"{self._root} is not a folder")) from None
            return None
        except (DeltaError, OSError) as error:
            raise self.unreadable(error) from error
        return self._loaded

    def _check_is_ours(self, table: DeltaTable) -> None:
        """Raise FatalError for a table of something else."""
        there = {field.name for field in table.schema().fields}
        missing = [name for name in _IN_EVERY_VERSION if name not in there]
        if missing:
            self._loaded = None
            raise FatalError(
                f"the table {self.name} at {scrub_address(self.uri)} is none of Ackline's: it has no column "
                f"{', '.join(missing)}. Is ACKLINE_AUDIT the right folder?"
            )

    def _brought_forward(self, table: DeltaTable) -> bool:
        self._loaded = None
        if time.monotonic() - self._loaded_at < RELOAD_AFTER:
            with contextlib.suppress(DeltaError, OSError):
                table.update_incremental()
                self._loaded = table
        return self._loaded is not None

    def create(self) -> DeltaTable:
        """The table, made where it is missing, with every column that this version writes; of two who make it at once,
        both get the same one."""
        for last in (False, False, False, True):
            with self.guard():
                try:
                    return self._writable()
                except CommitFailedError as error:  # only without a lock: a rival has written meanwhile
                    if last:
                        raise self.unreadable(error) from error
                except (DeltaError, OSError) as error:
                    raise self.unreadable(error) from error
        raise AssertionError("the last try returns or raises")

    def _writable(self) -> DeltaTable:
        """The newest version, for writing. Columns that an earlier version did not know are added first, nullable.

        Adding them is a commit of its own, without a number: killed after it, the table is whole and nothing else has
        changed. A rival that adds the same at once makes ours fail with CommitFailedError, and is found on a new look.
        """
        table = self.open() or self._made()
        if not self._whole:
            missing = _missing(table.schema(), TABLES[self.name])
            if missing:
                table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            self._whole = True
        return table

    def _made(self) -> DeltaTable:
        try:
            return DeltaTable.create(
                self.uri,
                schema=TABLES[self.name],
                mode="ignore",
                partition_by=PARTITION_BY,
                configuration={
                    "delta.appendOnly": "true",
                    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
                    "delta.logRetentionDuration": LOG_RETENTION,
                },
            )
        except (DeltaError, OSError) as error:
            raise self.unreadable(error) from error

    def version_of(self, application: str) -> int | None:
        """The highest number that was committed under a transaction id, or None."""
        table = self.open()
        try:
            return None if table is None else table.transaction_version(application)
        except (DeltaError, OSError) as error:  # it is read from the log when it is asked for
            raise self.unreadable(error) from error

    def append(
        self, rows: pa.Table | Sequence[AddAction], application: str, number: int, note: str | None = None
    ) -> bool:
        """Append rows, or files already written, as `number` of `application`, zero of them too.

        A `note` goes with the commit and is found again by `note_of`.
        Returns False, having stored nothing, when the number is taken. Durable when it returns True. Raises FatalError
        where the store refuses (a full disk): then nothing is visible.
        """
        said = None if note is None else {_COMMIT: f"{application}/{number}", _NOTE: note}
        fence = CommitProperties(app_transactions=[Transaction(application, number)], custom_metadata=said)
        for last in (False, False, False, True):
            with self.guard():
                try:
                    table = self._writable()
                    if _is_taken(table.transaction_version(application), number):
                        return False
                    self._commit(table, rows, fence)
                    return True
                except CommitFailedError:  # a rival took the number; or began a compaction, which hurts nobody
                    if _is_taken(self.version_of(application), number):
                        return False
                    if last:
                        raise TransientError(
                            f"the table {scrub_address(self.uri)} is being written by others all the time; run this "
                            "again"
                        ) from None
                except (DeltaError, OSError) as error:
                    raise self.unreadable(error) from error
        raise AssertionError("the last try returns or raises")

    def note_of(self, application: str, number: int) -> str | None:
        """The note that `number` of `application` was committed with; None where there is none, or it can't be found
        any more: Delta's log forgets what was said of a commit, unlike the commit."""
        table, wanted = self.open(), f"{application}/{number}"
        if table is None:
            return None
        for limit in _LOOKED_THROUGH:
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

    def _commit(self, table: DeltaTable, rows: pa.Table | Sequence[AddAction], fence: CommitProperties) -> None:
        if isinstance(rows, pa.Table) and rows.num_rows:
            write_deltalake(table, rows, mode="append", commit_properties=fence)
        else:  # write_deltalake makes no commit for zero rows; zero rows are a proof like any other
            files = [] if isinstance(rows, pa.Table) else list(rows)
            table.create_write_transaction(files, "append", table.schema(), PARTITION_BY, commit_properties=fence)

    def read(
        self, where: str | None, columns: Sequence[str] | None = None, table: DeltaTable | None = None
    ) -> pa.Table:
        """The rows for which the SQL predicate holds, or all rows; opens only the files whose statistics allow it."""
        table = table or self.open()
        if table is None:
            wanted = TABLES[self.name]
            return wanted.empty_table() if columns is None else wanted.empty_table().select(list(columns))
        try:
            dataset = self.dataset(table, where)
            chosen = None if where is None else _expression(where)
            return dataset.to_table(columns=list(columns) if columns else None, filter=chosen)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise self.unreadable(error) from error

    def dataset(self, table: DeltaTable, where: str | None) -> ds.Dataset:
        """The files whose statistics allow rows for which the SQL predicate holds; they are not opened yet.

        Local ones are read by Arrow itself: through delta-rs's Python file system, threads of Arrow that end after the
        interpreter abort the process once all is done (apache/arrow#34314).
        """
        local = None if self._root is None else pafs.SubTreeFileSystem(self.uri, pafs.LocalFileSystem())
        schema = pa.schema(table.schema().to_arrow())
        for field in _missing(table.schema(), TABLES[self.name]):  # in a table of an earlier version they are null
            schema = schema.append(field)
        return table.to_pyarrow_dataset(filesystem=local, file_pruning_predicate=where, schema=schema)

    @property
    def guarded(self) -> bool:
        """Whether `guard` keeps others out: on an object store there is no lock to be had."""
        return self._root is not None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """An operating-system lock on a local table: neither Delta writer promises to be safe there by itself."""
        if self._root is None:
            yield
            return
        folder = self._root / ".locks"
        lock = FileLock(folder / f"{self.name}.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise self.unreadable(error) from error
        try:
            yield
        finally:
            lock.release()

    def unreadable(self, error: BaseException) -> FatalError:
        """The error for a table whose log or files can't be read or written."""
        why = _BACKTRACE.sub("", " ".join(_COLOURS.sub("", str(error)).split()))[:300]
        return FatalError(f"the table {self.name} at {scrub_address(self.uri)} can't be used: {scrub_address(why)}")


def _missing(there: Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The columns of `wanted` that a table does not have yet."""
    known = {field.name for field in there.fields}
    return [field for field in wanted if field.name not in known]


def _is_taken(last: int | None, number: int) -> bool:
    return last is not None and last >= number


def _expression(where: str) -> Any:
    """The same predicate for Arrow: a conjunction of `column = value` with quoted texts and bare integers."""
    expression = None
    for part in where.split(" AND "):
        name, _, value = part.partition(" = ")
        one = ds.field(name) == (value[1:-1] if value.startswith("'") else int(value))
        expression = one if expression is None else expression & one
    return expression


def matching(**values: str | int) -> str:
    """A conjunction `column = value AND …` for `AuditTable.read`; texts hold no quote (they are checked names)."""
    parts = []
    for name, value in values.items():
        if isinstance(value, str) and ("'" in value or " AND " in value):
            raise ValueError(f"not a name: {value!r}")
        parts.append(f"{name} = '{value}'" if isinstance(value, str) else f"{name} = {value}")
    return " AND ".join(parts)
