"""Reads all transaction ids that were ever committed to a Delta log. delta-rs only looks up an id that it is given."""

import json
import re

import pyarrow.fs as pafs
import pyarrow.parquet as pq

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint.*\.parquet")


def transaction_ids(table: pafs.FileSystem) -> set[str]:
    """Return all transaction ids in the log of the table whose folder `table` is.

    They are those of the entries that are there, and of the newest checkpoint, which holds those of earlier ones.
    """
    names = [info.base_name for info in table.get_file_info(pafs.FileSelector("_delta_log"))]
    ids: set[str] = set()
    for name in names:
        if name.endswith(".json"):
            with table.open_input_stream(f"_delta_log/{name}") as stream:
                ids.update(_ids_of_entry(stream.readall()))
    checkpoints = {name: match[1] for name in names if (match := _CHECKPOINT.fullmatch(name))}
    newest = max(checkpoints.values(), default=None)
    for name, version in checkpoints.items():
        if version == newest:  # it may have several parts
            with table.open_input_file(f"_delta_log/{name}") as file:
                rows = pq.read_table(file, columns=["txn"])["txn"].to_pylist()
            ids.update(row["appId"] for row in rows if row and row["appId"])
    return ids


def _ids_of_entry(content: bytes) -> set[str]:
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    return {action["txn"]["appId"] for action in actions if "txn" in action}
