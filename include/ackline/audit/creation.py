"""Creates a table, and adds the columns that an earlier version of Ackline did not have."""

import uuid
from datetime import timedelta

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.schema import Schema

from ackline.audit.delta_log import ACTIONS
from ackline.audit.object_store import options_of
from ackline.audit.schemas import DESCRIPTIONS, PARTITION_BY, TABLES
from ackline.audit.table_handle import TableHandle

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
