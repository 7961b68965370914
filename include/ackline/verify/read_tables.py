"""Reads the three Delta tables."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from ackline.verify.evidence import Unreadable
from ackline.verify.storage import filesystem_of, storage_options, storage_uri

COLUMNS = {
    "settlements": ["lane", "epoch", "turn", "kind", "topic", "partition", "old_floor", "new_floor",
                    "complete_to", "pending", "counts", "gaps", "reason"],
    "plans": ["lane", "epoch", "turn", "kind", "topic", "partition", "start_offset", "end_offset", "settings"],
    "outcomes": ["lane", "epoch", "turn", "topic", "partition", "offset", "end_offset", "attempt", "outcome",
                 "error_class", "handled_at"],
}  # fmt: skip
OF_BACKFILLS = {"settlements": ["ranges"], "plans": ["retries"]}
"""Columns that are read of backfill lanes alone: what was chosen, and the single offsets that turns read."""
OF_ANSWERS = {"outcomes": ["answer"]}
OF_OUTPUTS = {"settlements": ["outputs"]}
"""Columns that a table of an earlier version may not have."""
TEXT_COLUMNS = frozenset({"lane", "kind", "topic", "outcome", "error_class", "settings", "reason"})


def read_table(root: str, name: str, pipeline: str, lane: str) -> tuple[pa.Table, str]:
    """Return the rows of one pipeline and lane, and the id of the ledger, which is a property of `settlements`.

    If `plans` or `outcomes` does not exist, the rows are none: a lane that has only begun has
    neither, and for a table that was lost the settlements show what is missing. Raises Unreadable for `settlements`,
    without which nothing can be judged, and for a table that exists but cannot be read.
    """
    try:
        folder = f"{root.rstrip('/')}/{pipeline}" + ("" if lane == "live" else f"/{lane}")
        uri = storage_uri(f"{folder}/{name}")
        options = storage_options(uri)
        table = DeltaTable(uri, storage_options=options)
        dataset = table.to_pyarrow_dataset(filesystem=filesystem_of(uri, options))
        more = OF_BACKFILLS.get(name, []) if lane.startswith("backfill-") else []
        newer = [*OF_ANSWERS.get(name, []), *OF_OUTPUTS.get(name, [])]
        more = more + [column for column in newer if column in dataset.schema.names]
        rows = dataset.to_table(columns=[*COLUMNS[name], *more])
    except Exception as error:  # the storage and the table may fail in many ways, and each one means no verdict
        if isinstance(error, TableNotFoundError) and name != "settlements":
            return _empty_table(name), ""
        raise Unreadable(f"table {name} under {root}: {error}") from error
    return rows.filter(pc.equal(rows["lane"], lane)), table.metadata().configuration.get("ackline.ledger", "")


def _empty_table(name: str) -> pa.Table:
    types = {column: pa.string() if column in TEXT_COLUMNS else pa.int64() for column in COLUMNS[name]}
    return pa.table({column: pa.array([], type_) for column, type_ in types.items()})
