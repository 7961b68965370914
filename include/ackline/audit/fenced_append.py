"""The fenced append: one log entry that carries a Delta transaction id, and that a taken number refuses.

An append to a local table is on the disk when it returns. The data files and their folders are synced before the log
entry is written, and the log entry and its folder after it, so a power cut leaves no log entry without its data.

delta-rs writes each log entry. To write it into a table, it loads the metadata of every file of the table first, which
a turn needs for nothing. Under the lock of a local table it therefore writes the entry into an empty copy of the table,
and `link_entry` puts it into the log, where no entry of that version may exist.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from ackline.audit.creation import NO_HOOKS
from ackline.audit.data_files import write_rows
from ackline.audit.delta_log import ACTIONS, LOG
from ackline.audit.log_state import LogState
from ackline.audit.schemas import PARTITION_BY
from ackline.audit.storage import Storage, sync_file
from ackline.audit.table_handle import TableHandle

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


def is_taken(last: int | None, number: int) -> bool:
    """Returns whether a number is taken, if `last` is the highest one of its application."""
    return last is not None and last >= number


def write_files(storage: Storage, rows: pa.Table) -> list[AddAction]:
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
    log = handle.storage.folder
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
