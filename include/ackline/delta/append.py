"""Writes entries into the log of a table.

On a local table the data files and their folders are synced before the log entry is written, and the log entry and its
folder after it, so a power cut leaves no log entry without its data.

delta-rs writes each log entry. To write it into a table, it first loads the metadata of every file, of which a turn
needs nothing. Under the lock of a local table it therefore writes the entry into an empty copy of the table, and
`link_entry` puts it into the log, where no entry of that version may exist.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from ackline.delta.errors import temporary_folder
from ackline.delta.files import write_rows
from ackline.delta.folder import Folder, sync_file
from ackline.delta.handle import LogState, TableHandle
from ackline.delta.log import ACTIONS, LOG

LOG_RETENTION = timedelta(days=1)
"""How long a log entry stays once two checkpoints cover it. Short, because each commit lists all entries. Data and
transaction ids stay in the checkpoint."""
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""With these, delta-rs writes no checkpoint after a commit and removes no log entry: it would sync neither."""


def missing_columns(existing: Schema, declared: pa.Schema) -> list[pa.Field]:
    """Returns the declared columns that a version of a table does not have."""
    names = {field.name for field in existing.fields}
    return [field for field in declared if field.name not in names]


T = TypeVar("T")

COMMIT_TRIES = 4
"""How often a commit is tried. On a local table the lock keeps rivals out. In an object store a compaction or an added
column makes a commit fail, and the next try may succeed at once."""
_BY_RIVAL = re.compile("Failed to commit transaction|Tried committing existing table version|is stored already")
"""Texts of delta-rs's errors of a commit that has met another one, and that of `link_entry`."""
REWRITE = "ackline/compaction"
"""The transaction id of commits that stop naming files. delta-rs refuses the later of two that begin at the same
version."""


def retry_beside_rivals(commit: Callable[[], T]) -> T:
    """Tries a commit up to COMMIT_TRIES times, without a pause. Raises the CommitFailedError of the last try, and
    DeltaError for one that no rival has caused: the next try would meet it again."""
    tries = Retrying(retry=retry_if_exception(_is_by_rival), stop=stop_after_attempt(COMMIT_TRIES), reraise=True)
    try:
        return tries(commit)
    except CommitFailedError as error:
        if _is_by_rival(error):
            raise
        raise DeltaError(str(error)) from error


def _is_by_rival(error: BaseException) -> bool:
    """Returns whether a commit failed because of another one. delta-rs has one class for that and for a table that it
    can't write, such as one with a feature that it does not know."""
    return isinstance(error, CommitFailedError) and _BY_RIVAL.search(str(error)) is not None


def write_files(storage: Folder, rows: pa.Table, partition_by: Sequence[str]) -> list[AddAction]:
    """Writes rows to durable files, and returns the actions that add them. No log entry names the files yet."""
    return [
        AddAction(file.path, file.size, partition, file.modification_time, True, file.stats)
        for file, partition in write_rows(storage, rows, partition_by)
    ]


def write_entry(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    transactions: Sequence[Transaction],
    metadata: Mapping[str, Any],
    partition_by: Sequence[str],
    max_retries: int | None = None,
) -> None:
    """Writes one log entry upon the version of `table`, and does not sync it. Raises as `FencedTable.commit`."""
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
    """Writes the log entry after the version `upon` of a local table, durably. The caller holds the table's lock. The
    cost does not grow with the files of the table. Under the lock nothing is committed since `upon`. A writer that does
    not take the lock may still have stored the version: then this raises CommitFailedError and stores nothing."""
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
    """Links a file as an entry. Raises FileExistsError if another file has that name, on every file system."""
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
    """Returns the log entry that delta-rs writes into an empty table with the same columns and properties."""
    with temporary_folder("ackline-entry-") as folder:
        log = folder / LOG
        log.mkdir()
        begun = [{"protocol": upon.protocol}, {"metaData": upon.metadata}]
        (log / f"{0:020}.json").write_text("\n".join(json.dumps(action) for action in begun))
        version = {"readVersion": upon.version}  # of the table, and not of its copy
        write_entry(DeltaTable(folder), actions, transactions, {**metadata, **version}, handle.partition_by)
        return (log / f"{1:020}.json").read_bytes()
