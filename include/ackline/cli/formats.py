"""What commands print for a program: JSON, CSV and Parquet. The keys are a public format.

Rows of a query go out as a JSON list, as CSV or to a Parquet file, one page of rows at a time.
"""

import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from ackline.actions.objects import JsonObject
from ackline.errors import ConfigError, FatalError


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value.dump() if isinstance(value, JsonObject) else value))


def print_result(body: JsonObject, text: str, as_json: bool) -> None:
    """Print a result as one line of JSON, or as text for a person."""
    if as_json:
        print_json(body)
    else:
        print(text)


def print_json_list(values: Iterable[object]) -> int:
    """Print values as a JSON list, a line each and each as it comes. Returns how many they were."""
    printed = 0
    for value in values:
        print(",\n" if printed else "[", json.dumps(value), sep="", end="")
        printed += 1
    print("]" if printed else "[]")
    return printed


Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")]
Parquet = Annotated[
    str | None,
    typer.Option("--parquet", help="Write the rows to this Parquet file.", metavar="FILE", show_default=False),
]
_BATCH_ROWS = 1_000
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters by which a spreadsheet takes a cell for a formula, or splits it."""


def check_formats(as_json: bool, as_csv: bool, parquet: str | None) -> None:
    """Raises ConfigError if more than one of `--json`, `--csv` and `--parquet` is given."""
    if sum([as_json, as_csv, parquet is not None]) > 1:
        raise ConfigError("--json, --csv and --parquet exclude one another: give one of them", key="--json")


def write_rows(pages: Iterable[pa.Table], schema: pa.Schema, as_json: bool = False, parquet: str | None = None) -> int:
    """Writes the rows of pages as a JSON list, to a Parquet file, or otherwise as CSV. Returns how many they were.

    Raises ConfigError if the Parquet file can't be written.
    """
    if parquet is not None:
        return _write_parquet(pages, schema, Path(parquet))
    if as_json:
        return print_json_list(map(json_row, _rows(pages)))
    writer = csv.writer(sys.stdout)  # ends lines with CR LF, so that it quotes a cell that holds either
    writer.writerow(map(harmless_cell, schema.names))
    printed = 0
    for printed, row in enumerate(_rows(pages), 1):  # noqa: B007
        writer.writerow(harmless_cell(row[name]) for name in schema.names)
    return printed


def json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row whose values JSON can hold: times as ISO 8601 text, durations as seconds, decimals as numbers."""
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, Mapping):
        return {str(name): _json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    return value


def _rows(pages: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
    for page in pages:
        for batch in page.to_batches(_BATCH_ROWS):
            yield from batch.to_pylist()


def harmless_cell(value: Any) -> Any:
    """Returns a value as a cell of CSV. A text that a spreadsheet would run as a formula gets an apostrophe before it.

    An error message comes from a record or a handler, so any sender of records may have chosen its first character.
    """
    cell = _json_value(value)
    if isinstance(cell, dict | list):
        cell = json.dumps(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _write_parquet(pages: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    # Beside its place first: a query that fails in the middle leaves no half a file, and no old one is lost.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    written = 0
    try:
        try:
            opened = pq.ParquetWriter(beside, schema)
        except OSError as error:
            reason = f"--parquet {path}: can't be written: {error.strerror or error}"
            raise ConfigError(reason, key="--parquet") from error
        with opened as writer:
            for page in pages:
                writer.write_table(page.cast(schema))
                written += page.num_rows
        beside.replace(path)
    except OSError as error:
        raise FatalError(f"{path} can't be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return written
