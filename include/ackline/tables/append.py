"""Writes into the log of a table: creates the table, adds columns, and appends under a fence.

An append is one log entry that carries a Delta transaction id, and that a taken number refuses. On a local table it is
on the disk when it returns. The data files and their folders are synced before the log entry is written, and the log
entry and its folder after it, so a power cut leaves no log entry without its data.

delta-rs writes each log entry. To write it into a table, it loads the metadata of every file of the table first, which
a turn needs for nothing. Under the lock of a local table it therefore writes the entry into an empty copy of the table,
and `link_entry` puts it into the log, where no entry of that version may exist.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from ackline.tables.files import write_rows
from ackline.tables.folder import Folder, sync_file
from ackline.tables.handle import LogState, TableHandle
from ackline.tables.log import ACTIONS, LOG
from ackline.tables.object_store import options_of
from ackline.tables.schemas import DESCRIPTIONS, PARTITION_BY, TABLES

LOG_RETENTION = timedelta(days=1)
"""How long log entries stay that two checkpoints cover. Each commit lists them all. Data and transaction ids stay in
the checkpoint."""
LEDGER_ID = "ackline.ledger"
"""The property of the settlements table that holds the id of the ledger."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""delta-rs writes no checkpoint after a commit and removes no log entry: it would sync neither."""


def create_table(handle: TableHandle) -> DeltaTable:
    """Returns the table, created unless another process has created it meanwhile. Its first entry is on the disk.

    Raises CommitFailedError if another process creates it at the same time; then its table can be opened.
    """
    ledger_id = {LEDGER_ID: str(uuid.uuid4())} if handle.name == "settlements" else {}
    handle.storage.make_durably("_delta_log")  # with the folders above it, which hold every later commit
    table = DeltaTable.create(
        handle.uri,
        schema=TABLES[handle.name],
        mode="ignore",
        partition_by=PARTITION_BY,
        description=DESCRIPTIONS[handle.name],
        configuration={
            "delta.appendOnly": "true",
            # No other writer checkpoints the log or removes entries of it: neither would sync what it writes.
            "delta.checkpointInterval": str(2**31 - 1),
            "delta.enableExpiredLogCleanup": "false",
            "delta.logRetentionDuration": f"interval {LOG_RETENTION.days} days",
            **ledger_id,
        },
        raise_if_key_not_exists=False,  # LEDGER_ID is a key of ours
        storage_options=options_of(handle.uri),
        # delta-rs would try a creation that lost its race again as version 1, and so replace the ledger's id that
        # the winner has begun with. Without it the loser raises CommitFailedError, and opens the winner's table.
        commit_properties=CommitProperties(
            custom_metadata={ACTIONS: 2},  # protocol and metadata
            max_commit_retries=0,
        ),
        post_commithook_properties=NO_HOOKS,
    )
    handle.secure(table.version())
    return table


def add_missing_columns(handle: TableHandle, table: DeltaTable) -> None:
    """Adds the columns that an earlier version did not have, nullable. Brings `table` to that version.

    This is a commit of its own without a fence: if the process is killed after it, the table is valid and only has more
    columns. If a rival adds the same columns at once, ours raises CommitFailedError, and the next try finds them.
    """
    missing = missing_columns(table.schema(), handle.name)
    if missing:
        fields = Schema.from_arrow(pa.schema(missing)).fields
        table.alter.add_columns(fields, post_commithook_properties=NO_HOOKS)
        handle.secure(table.version())


def store_ledger_id(handle: TableHandle, table: DeltaTable, ledger_id: str) -> None:
    """Replaces the id of the ledger, in a commit upon the version of `table`; its entry is on the disk then.

    Raises CommitFailedError if a rival has changed the table's properties since that version.
    """
    table.alter.set_table_properties(
        {LEDGER_ID: ledger_id},
        raise_if_not_exists=False,  # LEDGER_ID is a key of ours
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=NO_HOOKS,
    )
    handle.secure(table.version())


def missing_columns(existing: Schema, name: str) -> list[pa.Field]:
    """Returns the columns of the table `name` of `schemas.TABLES` that a version of it does not have."""
    names = {field.name for field in existing.fields}
    return [field for field in TABLES[name] if field.name not in names]


T = TypeVar("T")

COMMIT_TRIES = 4
"""How often a commit is tried beside rivals. Under the lock of a local table there are none; without one, a compaction
or an added column can make a commit fail that is free to be made again at once."""
REWRITE = "ackline/compaction"
"""The transaction id of commits that stop naming files. delta-rs refuses the later of two that begin at the same
version."""


def retry_beside_rivals(commit: Callable[[], T]) -> T:
    """Repeats a commit that a rival made fail, at once and up to COMMIT_TRIES times in all."""
    tries = Retrying(
        retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(COMMIT_TRIES), reraise=True
    )
    return tries(commit)


def write_files(storage: Folder, rows: pa.Table) -> list[AddAction]:
    """Writes rows to durable files that no log entry names yet."""
    return [
        AddAction(file.path, file.size, partition, file.modification_time, True, file.stats)
        for file, partition in write_rows(storage, rows, PARTITION_BY)
    ]


def write_entry(
    handle: TableHandle,
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, Any] | None = None,
    max_retries: int | None = None,
) -> None:
    """Writes one log entry upon the version of `table`, and syncs it. The data files are durable before.

    Raises CommitFailedError if a commit since that version carries one of these transaction ids; with `max_retries` 0
    if there is any commit since that version.
    """
    _write(table, actions, transactions, metadata or {}, handle.partition_by, max_retries)
    handle.secure(table.version() + 1)


def _write(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, Any],
    partition_by: Sequence[str],
    max_retries: int | None = None,
) -> None:
    table.create_write_transaction(
        list(actions),
        "append",
        table.schema(),
        list(partition_by),
        commit_properties=CommitProperties(
            app_transactions=list(transactions),
            custom_metadata={**metadata, ACTIONS: len(actions) + len(transactions)},
            max_commit_retries=max_retries,
        ),
        post_commithook_properties=NO_HOOKS,
    )


def link_entry(
    handle: TableHandle,
    upon: LogState,
    actions: Sequence[AddAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, Any],
) -> None:
    """Writes the log entry after the version `upon` of a local table, durably. The caller holds the table's lock.

    The cost does not grow with the files of the table. Under the lock nothing is committed since `upon`. A writer that
    does not take the lock may still have stored the version: then this raises CommitFailedError and stores nothing.
    """
    log = handle.storage.local
    assert log is not None
    beside = log / LOG / f".{uuid.uuid4()}.tmp"
    try:
        beside.write_bytes(_entry(handle, upon, actions, transactions, metadata))
        sync_file(beside)  # before it has its name: no reader ever meets a part of it
        _link(beside, log / LOG / f"{upon.version + 1:020}.json")
    except FileExistsError:
        raise CommitFailedError(f"version {upon.version + 1} is stored already") from None
    finally:
        beside.unlink(missing_ok=True)
    handle.secure(upon.version + 1)


def _link(beside: Path, entry: Path) -> None:
    """Gives a file its second name. Raises FileExistsError if another file has that name, on every file system."""
    try:
        os.link(beside, entry)
    except FileExistsError:
        # On NFS the server may make the link, and the network lose its answer. The client then repeats the request, and
        # the name is taken by our own file. link(2) recommends to look at the number of links.
        with contextlib.suppress(OSError):
            if beside.stat().st_nlink == 2 and beside.samefile(entry):
                return
        raise


def _entry(
    handle: TableHandle,
    upon: LogState,
    actions: Sequence[AddAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, Any],
) -> bytes:
    """Returns the log entry that delta-rs writes, made in a table that has the columns and properties but no file."""
    with TemporaryDirectory(prefix="ackline-entry-") as folder:
        log = Path(folder, LOG)
        log.mkdir()
        begun = [{"protocol": upon.protocol}, {"metaData": upon.metadata}]
        (log / f"{0:020}.json").write_text("\n".join(json.dumps(action) for action in begun))
        version = {"readVersion": upon.version}  # of the table, and not of its copy
        _write(DeltaTable(folder), actions, transactions, {**metadata, **version}, handle.partition_by)
        return (log / f"{1:020}.json").read_bytes()
