"""The fenced append: one log entry that carries a Delta transaction id, and that a taken number refuses.

An append to a local table is on the disk when it returns. The data files and their folders are synced before the log
entry is written, and the log entry and its folder after it, so a power cut leaves no log entry without its data.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from ackline.audit.creation import NO_HOOKS
from ackline.audit.data_files import write_rows
from ackline.audit.delta_log import ACTIONS
from ackline.audit.schemas import PARTITION_BY
from ackline.audit.storage import Storage
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
) -> None:
    """Writes one log entry upon the version of `table`, and syncs it. The data files are durable before.

    Raises CommitFailedError if a commit since that version carries one of these transaction ids.
    """
    metadata = {**(metadata or {}), ACTIONS: len(actions) + len(transactions)}
    table.create_write_transaction(
        list(actions),
        "append",
        table.schema(),
        PARTITION_BY,
        commit_properties=CommitProperties(app_transactions=list(transactions), custom_metadata=metadata),
        post_commithook_properties=NO_HOOKS,
    )
    handle.secure(table.version() + 1)
