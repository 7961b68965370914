"""An output table: a Delta table with the rows that a pipeline's steps emit, of acked records only.

It belongs to the user, who may read, compact and clean it with any tool. Ackline appends one commit a turn to it, which
carries a transaction id of the lane with a number of the turn. So a turn is published once.

delta-rs refuses a log entry for a table with a feature that it does not write. It does not check the data files, so
Ackline could break a constraint of the table. Ackline refuses such a table (`obstacle_of`), and a place where it can't
create one (`check_place`), before a record is handled: after the settlement the lane could only wait.
"""

import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, StructType
from deltalake.transaction import AddAction, RemoveAction

from ackline.delta.compaction import Compactor, Layout
from ackline.delta.errors import storage_errors, unusable
from ackline.delta.folder import Folder, prove_conditional_put
from ackline.delta.handle import LogState
from ackline.delta.object_store import is_remote
from ackline.delta.reads import table_files
from ackline.delta.table import FencedTable
from ackline.errors import AcklineError, ConfigError
from ackline.ledger.published import FinalFile, other_pipelines, publishers
from ackline.ledger.turns import LIVE, turn_in
from ackline.pipeline.output_columns import Columns, arrow_type, type_text
from ackline.pipeline.outputs import PARTITION_TYPES, ROW_COLUMNS, Rows, shadow_table
from ackline.scrub import scrub_address
from ackline.tables.audit_table import COLUMN_MAPPING, CONSTRAINT
from ackline.tables.layout import LaneFolder, folders_in
from ackline.tables.store import LedgerStore

WRITABLE_FEATURES = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
        "invariants", "timestampNtz", "variantType",
    }
)  # fmt: skip
"""The features for writers that a table may have. An upgrade of the protocol adds those for columns and constraints to
tables that do not use them, so `obstacle_of` looks for their use."""

_OF_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generation expression",
    "delta.identity.start": "identity values",
}
"""Keys in the metadata of a column that require something of a writer, and how an error names each."""


def obstacle_of(table: DeltaTable) -> str | None:
    """Returns what a table has that an output can't write, as an error names it; None if an output can append."""
    configuration = table.metadata().configuration
    mapping = configuration.get(COLUMN_MAPPING, "none")
    if mapping != "none":
        return f"column mapping ({COLUMN_MAPPING} is {mapping})"
    features = sorted(set(table.protocol().writer_features or ()) - WRITABLE_FEATURES)
    if features:
        return f"the table feature {', '.join(features)}"
    constraints = sorted(key.removeprefix(CONSTRAINT) for key in configuration if key.startswith(CONSTRAINT))
    if constraints:
        return f"the constraint {', '.join(constraints)}"
    for field in table.schema().fields:
        if not field.nullable:
            return f"the column {field.name} that is NOT NULL"
        for key, what in _OF_COLUMNS.items():
            if key in field.metadata:
                return f"the column {field.name} with {what}"
    return None


def check_place(uri: str) -> None:
    """Writes a small file where a table is to be created, a path or URI, and removes it. Raises FatalError if that
    fails, and TransientError if an object store does not answer.

    On a file system it tries the nearest folder that exists of the table and those above it, and of those above it
    alone: the lock of a table is in a folder beside it. So the check creates no folder, and removes none that another
    process may have created.
    """
    probe, what = f".probe-{uuid.uuid4()}", f"the table at {scrub_address(uri)} does not exist, and its place"
    with storage_errors(uri, lambda error: unusable(what, error, uri)):
        if is_remote(uri):
            folder = Folder(uri)
            folder.create_exclusively(probe)
            folder.delete(probe)
            return
        above = Path(uri).parents
        for folders in (Path(uri), *above), above:
            nearest = next(path for path in folders if path.is_symlink() or path.exists())
            (nearest / probe).touch()
            (nearest / probe).unlink()


ANCHORS = pa.list_(
    pa.struct(
        [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32()),
         ("outcome", pa.string())]
    )
)  # fmt: skip
"""The records that a row is anchored to, each with the outcome of its attempt."""

OF_ROW = pa.schema(
    [
        pa.field("_topic", pa.string(), metadata={"comment": "The record of the row, null if the row is not tracked."}),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_attempt", pa.int32(), metadata={"comment": "The attempt at the record that was acked, from 1."}),
        pa.field("_lane", pa.string(), metadata={"comment": "`live`, or the lane of a backfill."}),
        pa.field("_epoch", pa.int32()),
        pa.field("_turn", pa.int64(), metadata={"comment": "The turn that acked the record and published the row."}),
        pa.field("_anchors", ANCHORS, metadata={"comment": "All records that the row is anchored to."}),
    ]
)
"""The columns that each output table has beside the emitted ones; `outputs.ROW_COLUMNS` of the pipeline names them."""
_SQL_TYPES = {
    "_topic": "STRING", "_partition": "INT", "_offset": "BIGINT", "_attempt": "INT", "_lane": "STRING", "_epoch": "INT",
    "_turn": "BIGINT",
    "_anchors": "ARRAY<STRUCT<topic: STRING, partition: INT, offset: BIGINT, attempt: INT, outcome: STRING>>",
}  # fmt: skip
"""The same columns in Spark SQL, for the user of a table that lacks one."""

_ENTRIES_STAY = timedelta(days=30)
"""How long log entries stay that two checkpoints cover: Delta's own default, for the user's time travel."""
_KEEP_ENTRIES, _KEEP_FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
"""Properties of a table with which its user keeps log entries or unused files for another time."""
_REMOVES_ENTRIES = "delta.enableExpiredLogCleanup"
"""The property of a table with which its user keeps all log entries."""
_KEPT = "ackline.rows"
"""The property of a table that Ackline has created with which rows of a record it keeps."""
_NO_REMOVALS = ("delta.appendOnly", "delta.enableChangeDataFeed")
"""Properties with which a table takes no entry that rewrites a file, or needs the single changes beside it."""
_INTERVAL = re.compile(r"interval (\d+) (week|day|hour|minute|second|millisecond)s?", re.IGNORECASE)
_NO_END = timedelta(days=36_500)


class OutputTable(FencedTable):
    """The output table at a path or URI. `create` makes it with `columns`. Without `columns`, a table that does not
    exist can only be looked at."""

    def __init__(
        self,
        uri: str,
        columns: Columns | None = None,
        partition_by: Sequence[str] = (),
        kept: Rows = Rows.NEWEST,
    ) -> None:
        folder, _, name = uri.rstrip("/").rpartition("/")
        super().__init__(folder, name, pa.schema([]), tuple(partition_by))
        self._columns, self._kept = columns, kept

    def kept(self) -> Rows:
        """Returns which rows of a record the table keeps where the pipeline file is silent: what Ackline has created it
        with, all rows if its user has, and those of the newest handling if it does not exist."""
        state = self.state()
        is_newest = state is None or state.configuration.get(_KEPT) == Rows.NEWEST
        return Rows.NEWEST if is_newest else Rows.ALL

    def check_replaceable(self, pipeline: str) -> None:
        """Raises ConfigError if a turn of `pipeline` can't remove older rows from the table: it takes rows only, hides
        rows in a way that a rewrite would undo, or has rows of another pipeline, which no column tells apart."""
        table, state = self.open(), self.state()
        if table is None or state is None:
            return
        others = sorted(other_pipelines(state.transactions, pipeline))
        on = [name for name in _NO_REMOVALS if state.configuration.get(name, "false").lower() == "true"]
        if table.protocol().min_reader_version > _READERS:
            on.append("a protocol for readers that may hide rows")
        if others or on:
            what = f"pipeline {others[0]} publishes there, too" if others else f"the table has {', '.join(on)}"
            raise ConfigError(
                f"older rows can't be removed from the table at {scrub_address(self.uri)}: {what}. Write `rows: all` "
                f"for this output{' in both files' if others else ''}, or name another table",
                key="outputs",
            )

    def columns(self) -> dict[str, str] | None:
        """Returns the emitted columns of the table; None if it does not exist. Raises ConfigError if it has a feature
        or a column that no output can write, is partitioned by a column of another type than those of PARTITION_TYPES,
        or lacks one of `OF_ROW`."""
        table = self.open()
        if table is None:
            return None
        with self.errors():
            obstacle, schema = obstacle_of(table), pa.schema(table.schema().to_arrow())
            partition_by = table.metadata().partition_columns
        if obstacle is not None:
            raise ConfigError(
                f"the table at {scrub_address(self.uri)} has {obstacle}, which an output can't write; name another "
                f"table, or remove this from the table with the tool that has set it",
                key="outputs",
            )
        fields = {field.name: field.type for field in schema}
        missing = [name for name in ROW_COLUMNS if name not in fields]
        if missing:
            added = ", ".join(f"{name} {_SQL_TYPES[name]}" for name in missing)
            raise ConfigError(
                f"the table at {scrub_address(self.uri)} has no column {', '.join(missing)}, which the rows of an "
                f"output need; name a table that does not exist yet, or add them in Spark SQL: ALTER TABLE "
                f"delta.`{self.uri}` ADD COLUMNS ({added})",
                key="outputs",
            )
        # Rows of another type would be stored all the same, and then no reader could read the table.
        existing, needed = (
            {f.name: _of_values(f.type) for f in each.fields} for each in (table.schema(), Schema.from_arrow(OF_ROW))
        )
        other = ", ".join(f"{name} {_SQL_TYPES[name]}" for name in ROW_COLUMNS if existing[name] != needed[name])
        if other:
            raise ConfigError(
                f"the table at {scrub_address(self.uri)} has columns of other types than the rows of an output: they "
                f"need {other}; name another table, or write this one anew with these types",
                key="outputs",
            )
        columns: dict[str, str] = {}
        for name, kind in fields.items():
            if name in ROW_COLUMNS:
                continue
            text = type_text(pa.schema([(name, kind)])[0].type)
            if text is None:
                raise ConfigError(
                    f"the column {name} of the table at {scrub_address(self.uri)} has the type {kind}, which an output "
                    f"can't write; name another table",
                    key="outputs",
                )
            columns[name] = text
        self.partition_by = tuple(partition_by)
        for name in self.partition_by:
            # The log holds the values as texts, and tools write and read those of other types in different ways.
            if name not in ROW_COLUMNS and columns[name] not in PARTITION_TYPES:
                raise ConfigError(
                    f"the table at {scrub_address(self.uri)} is partitioned by {name} of type {columns[name]}, which "
                    f"an output can't write; name a table that is partitioned by columns of type string, long or "
                    f"boolean",
                    key="outputs",
                )
        return columns

    def is_new(self, state: LogState) -> bool:
        """Returns whether the version `state` has had no row: no lane has published there, and it has no file.
        Raises CommitFailedError if a later version is there."""
        if publishers(state.transactions):
            return False
        version = self.opened()
        self.check_is_at(version, state)
        return not table_files(version).num_rows

    def has_files(self, files: Sequence[FinalFile]) -> bool:
        """Returns whether files that no version names yet are there, with these sizes and for the partition columns
        that the table has. Raises FatalError and TransientError."""
        if any(file.partition.keys() != set(self.partition_by) for file in files):
            return False
        with self.errors():
            return not self.storage.without_size({file.path: file.size for file in files})

    def _is_taken(self, last: int | None, number: int) -> bool:
        """Returns whether the table has a turn, whichever execution of it was published."""
        return last is not None and turn_in(last) >= turn_in(number)

    def _writable(self) -> LogState:
        prove_conditional_put(self.uri)
        state = self.state()
        if state is not None:
            return state
        assert self._columns is not None
        schema = pa.schema([*OF_ROW, *((name, arrow_type(kind)) for name, kind in self._columns.items())])
        return self._create(schema, configuration={_KEPT: self._kept.value})

    def log_retention(self, table: DeltaTable) -> timedelta:
        """Returns how long log entries stay that a checkpoint covers: the property of the table, or Delta's default.
        They stay for good if the user of the table has switched their removal off."""
        if table.metadata().configuration.get(_REMOVES_ENTRIES, "true").lower() == "false":
            return _NO_END
        return _longest(table, _KEEP_ENTRIES, _ENTRIES_STAY)


def _of_values(kind: Any) -> Any:
    """Returns a type of the log without what it promises of nulls within a value, but for `outcome`: nothing else in
    the rows of an output is null there."""
    if isinstance(kind, ArrayType):
        return ArrayType(_of_values(kind.element_type))
    if isinstance(kind, StructType):
        return StructType(
            [Field(f.name, _of_values(f.type), nullable=f.nullable or f.name != "outcome") for f in kind.fields]
        )
    return kind


def _longest(table: DeltaTable, name: str, at_least: timedelta) -> timedelta:
    """Returns the time of a property such as `interval 60 days`, or `at_least` if that is longer or the property is not
    set. For a value that Ackline can't parse it returns 100 years, so that Ackline removes nothing."""
    text = table.metadata().configuration.get(name)
    if text is None:
        return at_least
    match = _INTERVAL.fullmatch(text.strip())
    return _NO_END if match is None else max(at_least, timedelta(**{f"{match[2].lower()}s": int(match[1])}))


def table_of(
    store: LedgerStore,
    table: str,
    columns: Columns | None = None,
    partition_by: Sequence[str] = (),
    kept: Rows = Rows.NEWEST,
) -> OutputTable:
    """Returns an output table by its name, URI or place. Without `columns`, to look at; it may not exist yet."""
    return OutputTable(output_folder(store.live_folder, table), columns, partition_by, kept)


def output_folder(live_folder: str, table: str) -> str:
    """Returns the folder or URI of an output table, given that of the pipeline's live tables."""
    if table.startswith("file://"):
        return table.removeprefix("file://")
    return table if "://" in table else f"{live_folder}/outputs/{table}"


def shadows_of(uri: str) -> list[str]:
    """Returns the folders or URIs of the tables of shadows beside the output table at a path or URI; none if the folder
    above them can't be listed."""
    folder, _, name = uri.rstrip("/").rpartition("/")
    with suppress(AcklineError):
        return [f"{folder}/{each}" for each in sorted(folders_in(folder)) if each.startswith(shadow_table(name, ""))]
    return []


def location_of(store: LedgerStore, table: str) -> str:
    """Returns where an output table is: a path or a URI, the same one for each name of the table today."""
    uri = output_folder(store.live_folder, table)
    return uri if is_remote(uri) else os.path.realpath(uri)


def place_of(store: LedgerStore, table: str, known: Iterable[str] = ()) -> str:
    """Returns the name or URI under which the ledger knows an output table: the one of `known` that is this table, or
    else its name, and of a URI below the pipeline's folder the name there. It stays the same if the folder is copied or
    mounted elsewhere, if a table is moved and linked from where it was, if a link is pointed at another copy, and
    whatever a pipeline file calls the table."""
    location, below = location_of(store, table), f"{location_of(store, '').rstrip('/')}/"
    of_table = (place for place in known if location_of(store, place) == location)
    is_below = "://" in table and location.startswith(below)
    return next(of_table, location.removeprefix(below) if is_below else table)


def check_columns(table: str, existing: Mapping[str, str], declared: Mapping[str, str] | None) -> None:
    """Raises ConfigError if the pipeline file declares other columns than an existing table has."""
    if declared is not None and dict(declared) != dict(existing):
        differing = sorted(name for name in {*declared, *existing} if declared.get(name) != existing.get(name))
        raise ConfigError(
            f"outputs: the table {scrub_address(table)} exists with other columns than the file declares "
            f"({', '.join(differing)}); correct `columns`, or name another table",
            key="outputs",
        )


def check_staged_columns(table: str, columns: Mapping[str, str], existing: Mapping[str, str]) -> None:
    """Raises ConfigError if rows with `columns` do not fit a table with the columns `existing`: a user may have changed
    the table or the pipeline file since a task staged the rows."""
    differing = sorted(name for name, kind in columns.items() if existing.get(name) != kind)
    if differing:
        raise ConfigError(
            f"outputs: staged rows wait for the table {scrub_address(table)}, and their columns differ from "
            f"those of the table or of the pipeline file ({', '.join(differing)}); restore these columns. If you "
            f"can't, close the open turn, if there is one, with `ackline void`; then drop the rows of records in "
            f"flight with `ackline reset`",
            key="outputs",
        )


OUTPUT_LAYOUT = Layout(64 << 20, 131_072)
_READERS = 1
"""The version of Delta's protocol for readers whose files hold all rows and columns as they are. A later one may have
columns under other names, or rows that a deletion vector hides."""


class OutputCompactor(Compactor[OutputTable]):
    """Keeps an output table quick, which is its user's."""

    def may_rewrite(self, version: DeltaTable) -> bool:
        """Returns whether this is an output table whose files Ackline can rewrite. If its user has given it a feature
        that Ackline does not rewrite, its user maintains it."""
        names = {field.name for field in version.schema().fields}
        is_old = version.protocol().min_reader_version <= _READERS
        return is_old and set(ROW_COLUMNS) <= names and obstacle_of(version) is None

    def commit(self, upon: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Commits as the version after `upon`. Raises CommitFailedError if a rival has stored that version: users'
        tools take no lock."""
        self.table.partition_by = tuple(upon.metadata().partition_columns)
        self.table.commit(upon, actions, [])

    def keep_unused_for(self, version: DeltaTable) -> timedelta:
        """Returns how long unused files stay: the retention, or longer if a property of the table asks for it."""
        return _longest(version, _KEEP_FILES, self.retention)


def output_tables(lane: LaneFolder) -> list[OutputTable]:
    """Returns the output tables below the folder of a live lane; none for another lane, which writes to the same ones.
    A table that the pipeline file names by a URI is not among them: it belongs to the user."""
    if lane.lane != LIVE:
        return []
    names = sorted(folders_in(output_folder(lane.folder, "").rstrip("/")))
    return [OutputTable(output_folder(lane.folder, name)) for name in names]
