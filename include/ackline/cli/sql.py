"""`ackline sql`: one SELECT over the tables of the pipelines."""

from itertools import islice
from typing import Annotated

import pyarrow as pa
import typer

from ackline.cli import tables
from ackline.cli.options import Json
from ackline.cli.rows import Csv, Parquet, check_formats, json_row, write_rows

SHOWN = 200
"""Rows that are printed as a table."""
Pipelines = Annotated[
    list[str] | None,
    typer.Option("--pipeline", help="Read only this pipeline; may be given several times.", show_default=False),
]


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT, in DuckDB's SQL.", show_default=False)],
    pipeline: Pipelines = None,
    as_json: Json = False,
    as_csv: Csv = False,
    parquet: Parquet = None,
) -> None:
    """Run one SELECT over the tables of all pipelines, read-only.

    Views: `outcomes` (effective rows of the live lanes' newest epochs), `attempts` (all rows), `records` (one row a
    record), `pending`, `plans`, `settlements`, `turns`, `runs`. docs/cookbook.md has twelve questions with their SQL.

    Example: `ackline sql "SELECT error_class, count(*) FROM outcomes WHERE outcome = 'dead' GROUP BY ALL"`
    """
    from ackline.audit.sql import sql_result
    from ackline.paths import audit_root

    check_formats(as_json, as_csv, parquet)
    with sql_result(audit_root(), query, pipeline or ()) as reader:
        pages = (pa.table(batch) for batch in reader)
        if as_json or as_csv or parquet is not None:
            write_rows(pages, reader.schema, as_json, parquet)
            return
        rows = (row for page in pages for row in page.to_pylist())
        shown = [list(json_row(row).values()) for row in islice(rows, SHOWN)]
        more = next(rows, None) is not None
    out = tables.console()
    tables.print_table(out, None, reader.schema.names, shown)
    if not shown:
        out.print("No rows.")
    if more:
        out.print("… and more. --json, --csv or --parquet FILE shows them all.")


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(sql)
