"""Reads the three Delta tables and the output tables, also from an object store.

The login is that of the environment, or of ACKLINE_AUDIT_CONNECTION. Arrow's own file systems read the tables:
delta-rs's Python file system aborts the process at its end if one of Arrow's threads outlives the interpreter
(apache/arrow#34314). The transaction ids of a log are read from its files, because delta-rs only looks up an id that it
is given.
"""

import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from ackline.verify.evidence import Turn, Unreadable, turn_of

S3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL",
      "AWS_ALLOW_HTTP"}  # fmt: skip
EXTRA = {"region_name": "aws_region", "endpoint_url": "aws_endpoint_url", "allow_http": "aws_allow_http"}


def storage_uri(uri: str) -> str:
    """Return the URI as delta-rs expects it: a path for `file://`, and `s3` for `s3a`."""
    return uri.removeprefix("file://").replace("s3a://", "s3://", 1)


def storage_options(uri: str) -> dict[str, str]:
    """Return delta-rs's options for a URI; raises ValueError if the connection is not defined."""
    if not uri.startswith("s3://"):
        return {}
    if connection := os.environ.get("ACKLINE_AUDIT_CONNECTION"):
        return _options_of(connection)
    options = {name.lower(): os.environ[name] for name in S3 if os.environ.get(name)}
    if region := os.environ.get("AWS_DEFAULT_REGION"):
        options.setdefault("aws_region", region)
    # The order of AWS's own tools. delta-rs takes the first one, whatever option it gets.
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        if endpoint := os.environ.get(name):
            options["aws_endpoint_url"] = endpoint
    return options


def _options_of(connection: str) -> dict[str, str]:
    variable = f"AIRFLOW_CONN_{connection.upper()}"
    text = os.environ.get(variable)
    if text is None:
        raise ValueError(f"the connection {connection} is not defined here: set {variable}")
    if text.lstrip().startswith("{"):
        fields = json.loads(text)
        extra = fields.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        login, password = fields.get("login"), fields.get("password")
    else:
        parts = urlsplit(text)
        extra = dict(parse_qsl(parts.query))
        extra = json.loads(extra["__extra__"]) if "__extra__" in extra else extra
        login, password = (unquote(part) if part else None for part in (parts.username, parts.password))
    options = {"aws_access_key_id": login, "aws_secret_access_key": password}
    options |= {EXTRA.get(name, name): value for name, value in extra.items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
            if value not in (None, "")}  # fmt: skip


def filesystem_of(uri: str, options: dict[str, str]) -> pafs.FileSystem:
    """Return Arrow's own file system, whose paths begin at the folder of a table."""
    if "://" not in uri:
        return pafs.SubTreeFileSystem(uri, pafs.LocalFileSystem())
    if not uri.startswith("s3://"):
        store, path = pafs.FileSystem.from_uri(uri)
        return pafs.SubTreeFileSystem(path, store)
    endpoint = urlsplit(options.get("aws_endpoint_url", ""))
    arguments: dict[str, Any] = {
        "access_key": options.get("aws_access_key_id"),
        "secret_key": options.get("aws_secret_access_key"),
        "session_token": options.get("aws_session_token"),
        "region": options.get("aws_region"),
        "scheme": endpoint.scheme,
        "endpoint_override": endpoint.netloc,
    }
    store = pafs.S3FileSystem(**{name: value for name, value in arguments.items() if value})
    return pafs.SubTreeFileSystem(uri.removeprefix("s3://"), store)


COLUMNS = {
    "settlements": ["lane", "epoch", "turn", "kind", "topic", "partition", "old_floor", "new_floor",
                    "complete_to", "pending", "counts", "gaps", "reason"],
    "plans": ["lane", "epoch", "turn", "kind", "topic", "partition", "start_offset", "end_offset", "settings"],
    "outcomes": ["lane", "epoch", "turn", "topic", "partition", "offset", "end_offset", "attempt", "outcome",
                 "error_class", "handled_at"],
}  # fmt: skip
OF_BACKFILLS = {"settlements": ["ranges"], "plans": ["retries"]}
"""Columns that are read of backfill lanes alone: what was chosen, and the single offsets that turns read."""
OF_OUTPUTS = {"settlements": ["outputs"]}
NEWER = {
    "outcomes": ["answer", "key_hash64"],
    "settlements": ["topic_id", "leader_epoch", "arguments", "rescued", "released"],
}
"""Columns, as those of outputs, that a table of an earlier version may not have."""
TEXT_COLUMNS = frozenset({"lane", "kind", "topic", "outcome", "error_class", "settings", "reason"})


def read_table(root: str, name: str, pipeline: str, lane: str) -> tuple[pa.Table, str]:
    """Return the rows of one pipeline and lane, and the id of the ledger, which is a property of `settlements`.

    If `plans` or `outcomes` does not exist, the rows are none: a lane that has only begun has neither, and for a table
    that was lost the settlements show what is missing. Raises Unreadable for `settlements`, without which nothing can
    be judged, and for a table that exists but cannot be read.
    """
    try:
        folder = f"{root.rstrip('/')}/{pipeline}" + ("" if lane == "live" else f"/{lane}")
        uri = storage_uri(f"{folder}/{name}")
        options = storage_options(uri)
        table = DeltaTable(uri, storage_options=options)
        dataset = table.to_pyarrow_dataset(filesystem=filesystem_of(uri, options))
        more = OF_BACKFILLS.get(name, []) if lane.startswith("backfill-") else []
        newer = [*OF_OUTPUTS.get(name, []), *NEWER.get(name, [])]
        more = more + [column for column in newer if column in dataset.schema.names]
        rows = dataset.to_table(columns=[*COLUMNS[name], *more])
    except Exception as error:  # the storage and the table may fail in many ways, and each one means no verdict
        if isinstance(error, TableNotFoundError) and name != "settlements":
            types = {column: pa.string() if column in TEXT_COLUMNS else pa.int64() for column in COLUMNS[name]}
            return pa.table({column: pa.array([], type_) for column, type_ in types.items()}), ""
        raise Unreadable(f"table {name} under {root}: {error}") from error
    return rows.filter(pc.equal(rows["lane"], lane)), table.metadata().configuration.get("ackline.ledger", "")


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


def transactions_of(table: pafs.FileSystem) -> dict[str, list[int]]:
    """Return all transaction ids in the log of the table whose folder `table` is, each with its versions, ascending.

    The versions are those of the entries that are there: none of an id that only the newest checkpoint has.
    """
    names = [info.base_name for info in table.get_file_info(pafs.FileSelector("_delta_log"))]
    ids: dict[str, list[int]] = {}
    for name in names:
        if name.endswith(".json"):
            with table.open_input_stream(f"_delta_log/{name}") as stream:
                actions = [json.loads(line) for line in stream.readall().splitlines() if line.strip()]
            for action in actions:
                if "txn" in action:
                    ids.setdefault(action["txn"]["appId"], []).append(action["txn"]["version"])
    checkpoints = {name: match[1] for name in names if (match := _CHECKPOINT.fullmatch(name))}
    newest = max(checkpoints.values(), default=None)
    for name, version in checkpoints.items():
        if version == newest:  # it may have several parts
            with table.open_input_file(f"_delta_log/{name}") as file:
                rows = pq.read_table(file, columns=["txn"])["txn"].to_pylist()
            for row in rows:
                if row and row["appId"]:
                    ids.setdefault(row["appId"], [])
    return {id_: sorted(versions) for id_, versions in ids.items()}


_RECORD = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32())]
SCHEMA = pa.schema([
    *((f"_{name}", kind) for name, kind in _RECORD),
    ("_lane", pa.string()), ("_epoch", pa.int32()), ("_turn", pa.int64()),
    ("_anchors", pa.list_(pa.struct([*_RECORD, ("outcome", pa.string())]))),
])  # fmt: skip
"""The columns of an output table that name the record and the turn of each row."""
_APPLICATION = re.compile(r"ackline/(?P<ledger>[^/]+)/(?P<pipeline>[^/]+)/(?P<lane>[^/]+)(?:/\d+)?/output")
"""The transaction id under which a lane of a pipeline publishes its turns; of an earlier version, with the epoch."""


@dataclass(frozen=True, slots=True)
class OutputTables:
    """Reads the output tables of one pipeline and lane."""

    root: str
    pipeline: str
    lane: str

    def uri(self, table: str) -> str:
        """Return the path or URI of a table, by its name or URI in the pipeline file."""
        own = f"{self.root.rstrip('/')}/{self.pipeline}/outputs/{table}"
        return storage_uri(table if "://" in table else own)

    def read_rows(self, tables: Iterable[str]) -> dict[str, pa.Table]:
        """Return the rows of the lane in each table, with the columns of SCHEMA.

        A table that does not exist, or lacks one of these columns, has no rows.
        """
        return {table: self._rows(table) for table in tables}

    def read_history(self, table: str) -> tuple[pa.Table | None, list[tuple[str, int, int]]]:
        """Return the rows of all lanes in a table, and the lane, epoch and turn of each entry of its log that is there,
        oldest first, up to the version that has these rows. Rows are None if the table does not exist."""
        opened = self._open(table)
        if opened is None:
            return None, []
        rows, uri = self._rows_of(table, opened), self.uri(table)
        try:
            files = filesystem_of(uri, storage_options(uri))
            names = [info.base_name for info in files.get_file_info(pafs.FileSelector("_delta_log"))]
            entries = list[tuple[str, int, int]]()
            for name in sorted(name for name in names if re.fullmatch(r"\d{20}\.json", name)):
                if int(name[:20]) <= opened.version():
                    with files.open_input_stream(f"_delta_log/{name}") as stream:
                        actions = [json.loads(line) for line in stream.readall().splitlines() if line.strip()]
                    for txn in (action["txn"] for action in actions if "txn" in action):
                        if (match := _APPLICATION.fullmatch(txn["appId"])) and match["pipeline"] == self.pipeline:
                            entries.append((match["lane"], *turn_of(txn["version"])))
            return rows, entries
        except Exception as error:  # as in `_open`
            raise Unreadable(f"output table {table}: {error}") from error

    def read_published(self, tables: Iterable[str], applications: Collection[str]) -> dict[str, dict[str, Turn]]:
        """Return the newest turn in the log of each table under each of these transaction ids; (0, 0) for none."""
        opened = {table: self._open(table) for table in tables}
        return {
            table: {each: turn_of((found.transaction_version(each) if found else None) or 0) for each in applications}
            for table, found in opened.items()
        }

    def transactions(self, table: str) -> dict[str, list[int]]:
        """Return what `transactions_of` does of a table; nothing if it does not exist. Raises Unreadable."""
        if self._open(table) is None:
            return {}
        uri = self.uri(table)
        try:
            return transactions_of(filesystem_of(uri, storage_options(uri)))
        except Exception as error:  # as in `_open`
            raise Unreadable(f"output table {table}: {error}") from error

    def foreign_writer(self, ids: Iterable[str], ledger: str | None) -> str | None:
        """Return another pipeline or ledger that has published rows of the lane in a table with these transaction ids;
        None if there is none.

        Such rows can't be told from those of this pipeline: no column names the pipeline or the ledger of a row. A
        table outside the root, which is named by its URI, may have them, and any table of a ledger that was adopted as
        an older copy of another one. `ledger` is None if it is not known.
        """
        writers = {match.group("ledger", "pipeline", "lane") for id_ in ids if (match := _APPLICATION.fullmatch(id_))}
        foreign = {
            f"pipeline {of}" if of != self.pipeline else f"ledger {by}"
            for by, of, lane in writers
            if lane == self.lane and (of != self.pipeline or by != ledger)
        }
        return min(foreign, default=None)

    def _rows(self, table: str) -> pa.Table:
        opened = self._open(table)
        if opened is None:
            return SCHEMA.empty_table()
        rows = self._rows_of(table, opened)
        return rows.filter(pc.equal(rows["_lane"], self.lane))

    def _rows_of(self, table: str, opened: DeltaTable) -> pa.Table:
        uri = self.uri(table)
        try:
            dataset = opened.to_pyarrow_dataset(filesystem=filesystem_of(uri, storage_options(uri)))
            if not set(SCHEMA.names) <= set(dataset.schema.names):
                return SCHEMA.empty_table()
            # Filtered here: delta-rs gives a column without statistics, as texts are, bounds of null, and Arrow then
            # skips each file for any filter on it.
            return dataset.to_table(columns=SCHEMA.names)
        except Exception as error:  # as in `_open`
            raise Unreadable(f"output table {table}: {error}") from error

    def _open(self, table: str) -> DeltaTable | None:
        """Return a table; None if it does not exist. Raises Unreadable if it cannot be read."""
        uri = self.uri(table)
        try:
            return DeltaTable(uri, storage_options=storage_options(uri))
        except TableNotFoundError:
            return None
        except Exception as error:  # the storage and the table may fail in many ways, and each one means no verdict
            raise Unreadable(f"output table {table}: {error}") from error


def named_in_plans(plans: pa.Table) -> list[str]:
    """Return the output tables that the settings of any plan name, sorted. `plans` needs only the column `settings`."""
    texts = pc.unique(plans["settings"]).drop_null().to_pylist()
    outputs = [output for text in texts for output in json.loads(text).get("outputs") or ()]
    return sorted({output["table"] for output in outputs if output.get("table")})


def named_in_settlements(settlements: pa.Table) -> tuple[set[str], set[str]]:
    """Return the output tables that settled turns publish rows in, and the transaction ids under which they do."""
    if "outputs" not in settlements.column_names:  # a table of a version that had no outputs
        return set(), set()
    outputs = [json.loads(text) for text in pc.unique(settlements["outputs"]).to_pylist() if text]
    tables = {table for of_turn in outputs for table in of_turn.get("tables", ())}
    ids = {id_ for of_turn in outputs for numbers in of_turn.get("expected", {}).values() for id_ in numbers}
    return tables, ids
