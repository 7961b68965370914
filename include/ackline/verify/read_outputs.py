"""Reads the output tables of a pipeline: the Delta tables that the rows of its steps go to."""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from ackline.verify.evidence import Unreadable
from ackline.verify.read_transactions import transaction_ids
from ackline.verify.storage import filesystem_of, storage_options, storage_uri

_RECORD = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("attempt", pa.int32())]
SCHEMA = pa.schema([
    *((f"_{name}", kind) for name, kind in _RECORD),
    ("_lane", pa.string()), ("_epoch", pa.int32()), ("_turn", pa.int64()),
    ("_anchors", pa.list_(pa.struct([*_RECORD, ("outcome", pa.string())]))),
])  # fmt: skip
"""The columns of an output table that name the record and the turn of each row."""
_APPLICATION = re.compile(r"ackline/(?P<ledger>[^/]+)/(?P<pipeline>[^/]+)/(?P<lane>[^/]+)/\d+/output")
"""The transaction id under which a lane and epoch of a pipeline publishes its turns."""


@dataclass(frozen=True, slots=True)
class OutputTables:
    """Where the output tables of one pipeline and lane are."""

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

    def read_published(self, tables: Iterable[str], applications: Collection[str]) -> dict[str, dict[str, int]]:
        """Return the newest turn in the log of each table under each of these transaction ids; 0 for none."""
        return {table: self._published(table, applications) for table in tables}

    def foreign_writer(self, table: str, ledger: str | None) -> str | None:
        """Return another pipeline or ledger that has published rows of the lane in a table; None if there is none.

        Such rows can't be told from those of this pipeline: no column names the pipeline or the ledger of a row. Only a
        table outside the root, which is named by its URI, may have them. `ledger` is None if it is not known.
        """
        if "://" not in table or self._open(table) is None:
            return None
        uri = self.uri(table)
        try:
            ids = transaction_ids(filesystem_of(uri, storage_options(uri)))
        except Exception as error:  # as in `_open`
            raise Unreadable(f"output table {table}: {error}") from error
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
        uri = self.uri(table)
        try:
            dataset = opened.to_pyarrow_dataset(filesystem=filesystem_of(uri, storage_options(uri)))
            if not set(SCHEMA.names) <= set(dataset.schema.names):
                return SCHEMA.empty_table()
            return dataset.to_table(columns=SCHEMA.names, filter=pc.equal(pc.field("_lane"), self.lane))
        except Exception as error:  # as in `_open`
            raise Unreadable(f"output table {table}: {error}") from error

    def _published(self, table: str, applications: Collection[str]) -> dict[str, int]:
        opened = self._open(table)
        if opened is None:
            return dict.fromkeys(applications, 0)
        return {application: opened.transaction_version(application) or 0 for application in applications}

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


def named_in_settlements(settlements: pa.Table) -> set[str]:
    """Return the transaction ids under which settled turns publish their rows."""
    if "outputs" not in settlements.column_names:  # a table of a version that had no outputs
        return set()
    texts = pc.unique(settlements["outputs"]).to_pylist()
    return {json.loads(text)["application"] for text in texts if text}
