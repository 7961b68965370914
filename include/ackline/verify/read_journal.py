"""Reads a journal of handler calls."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv

COLUMNS = ("topic", "partition", "offset", "attempt", "pid")


def read_calls(path: str) -> pa.Table:
    """Return the handler calls of a journal: one a line, its columns separated by tabs; none if there is no file."""
    types = {name: pa.string() if name == "topic" else pa.int64() for name in COLUMNS}
    if not Path(path).exists() or not Path(path).stat().st_size:
        return pa.table({name: pa.array([], types[name]) for name in COLUMNS})
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(column_names=list(COLUMNS)),
        parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )
