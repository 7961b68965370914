"""`ackline sql`: one SELECT over the tables of the pipelines."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from typing import Annotated

import pyarrow as pa
import typer

from ackline.cli import tables
from ackline.cli.options import Json, pipeline_named
from ackline.cli.rows import Csv, Parquet, check_formats, json_row, write_rows
from ackline.cli.verbosity import notice

SHOWN = 200
"""Rows that are printed as a table."""
Pipelines = Annotated[
    list[str] | None,
    typer.Option("--pipeline", help="Read only this pipeline; may be given several times.", show_default=False),
]


class Engine(StrEnum):
    """What runs the query."""

    DUCKDB = "duckdb"
    SPARK = "spark"


Engines = Annotated[Engine, typer.Option("--engine", help="What runs the query; spark is for tables past one machine.")]


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT, in the SQL of the engine.", show_default=False)],
    pipeline: Pipelines = None,
    engine: Engines = Engine.DUCKDB,
    as_json: Json = False,
    as_csv: Csv = False,
    parquet: Parquet = None,
) -> None:
    """Run one SELECT over the tables of all pipelines, read-only.

    Views: `outcomes` (effective rows of the live lanes' newest epochs), `attempts` (all rows), `records` (one row a
    record), `pending`, `plans`, `settlements`, `turns`, `runs`. docs/cookbook.md has twelve questions with their SQL.

    Example: `ackline sql "SELECT error_class, count(*) FROM outcomes WHERE outcome = 'dead' GROUP BY ALL"`
    """
    check_formats(as_json, as_csv, parquet)
    with _result(engine, query, pipeline or []) as reader:
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


@contextmanager
def _result(engine: Engine, query: str, pipelines: list[str]) -> Iterator[pa.RecordBatchReader]:
    """Gives the rows of the query in batches. Spark runs on the master of the environment, with the block `spark:` of
    the pipeline if the command names one."""
    from ackline.audit.schemas import TABLES
    from ackline.audit.sql import sql_result, table_folders, view_definitions
    from ackline.paths import audit_root

    if engine is Engine.DUCKDB:
        with sql_result(audit_root(), query, pipelines) as reader:
            yield reader
        return
    from ackline.spark.sql import create_views, open_sql_session, select

    folders = table_folders(audit_root(), query, pipelines)
    block = pipeline_named(pipelines[0]).spark if len(pipelines) == 1 else None
    notice("starting Spark …")
    spark = open_sql_session(block)
    create_views(spark, folders, TABLES, view_definitions())
    yield select(spark, query).to_reader()


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(sql)
