"""`ackline audit` and `ackline sql`: rows of the audit table, and one SELECT over the tables of all pipelines."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from ackline.cli import options, tables
from ackline.cli.formats import Csv, Parquet, check_formats, json_row, write_rows
from ackline.cli.notices import notice
from ackline.cli.options import pipeline_named
from ackline.errors import AcklineError, ConfigError, did_you_mean
from ackline.forms.arguments import LAST
from ackline.ledger.outcomes import Outcome
from ackline.local.connection import connection_of
from ackline.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from ackline.audit.queries import AuditFilter
    from ackline.outputs.output_table import OutputTable

SHOWN = 50
"""Rows that are printed as a table without --limit."""
_COLUMNS = (
    *("epoch", "turn", "topic", "partition", "offset", "end_offset", "attempt", "outcome", "error_class"),
    *("error_place", "error_message", "handled_at"),
)
_FIRST = ("offset", "attempt", "outcome", "end_offset", "lane", "partition", "error_class", "error_place",
          "error_message", "turn", "handled_at")  # fmt: skip
"""The columns by importance, for a terminal that is too narrow for all."""

Outcomes = Annotated[str | None, typer.Option(help="Only this outcome, e.g. failed.")]
Run = Annotated[str | None, typer.Option("--run", help="Only rows that this run wrote.")]
Turn = Annotated[int | None, typer.Option(help="Only this turn.", min=0, max=LAST)]
Epoch = Annotated[int | None, typer.Option(help="Only this epoch.", min=0, max=2**31 - 1)]
Attempt = Annotated[int | None, typer.Option(help="Only this attempt; 0 for decisions.", min=0, max=2**31 - 1)]
Since = Annotated[
    str | None, typer.Option("--since", help="Only rows handled since: 2026-01-31T12:00:00Z, or `2h ago`.")
]
AsOf = Annotated[
    str | None,
    typer.Option("--as-of", help="As it was at a time, or in a version of the lane's table `outcomes`."),
]
Key = Annotated[
    str | None, typer.Option("--key", help="Only records with this key, as UTF-8: needs `audit: {key_hash: true}`.")
]
KeyHex = Annotated[str | None, typer.Option("--key-hex", help="Only records with this key, in hexadecimal digits.")]
Limit = Annotated[int | None, typer.Option(help="At most this many rows.", min=0, max=2**53)]
Everything = Annotated[bool, typer.Option("--all", help="Also rows that are not effective (of open or void turns).")]


def audit(
    name: options.Name,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    offsets: options.Offsets = None,
    outcome: Outcomes = None,
    error_class: options.ErrorClass = None,
    attempt: Attempt = None,
    run_id: Run = None,
    turn: Turn = None,
    lane: options.AnyLane = None,
    epoch: Epoch = None,
    since: Since = None,
    as_of: AsOf = None,
    key: Key = None,
    key_hex: KeyHex = None,
    limit: Limit = None,
    everything: Everything = False,
    now: options.Now = None,
    as_json: options.Json = False,
    as_csv: Csv = False,
    parquet: Parquet = None,
) -> None:
    """Show what happened to each record: the effective rows of the audit table.

    With `--offsets`, `--key` or `--key-hex` the rows are in the order of offsets, each record's in the order of time;
    without them the newest turn comes first.

    Examples: `ackline audit orders --offsets 1041`, `ackline audit orders --key 4711`,
    `ackline audit orders --outcome dead --since "1d ago" --csv`
    """
    from ackline.audit.queries import COLUMNS, AuditFilter, audit_pages
    from ackline.pipeline.folder import audit_root
    from ackline.tables.schemas import OUTCOMES

    check_formats(as_json, as_csv, parquet)
    pipeline = pipeline_named(name)
    if outcome is not None and outcome not in list(Outcome):
        raise ConfigError(f"--outcome {outcome}: write one of {', '.join(Outcome)}", key="--outcome")
    as_table = not (as_json or as_csv or parquet is not None)
    chosen, moment = options.range_of(offsets), _as_of(as_of, now)
    criteria = AuditFilter(
        offsets=chosen,
        outcome=outcome,
        run_id=run_id,
        turn=turn,
        limit=SHOWN + 1 if limit is None and as_table else limit,
        everything=everything,
        lane=_lane_of(name, lane, moment),
        epoch=epoch,
        error_class=error_class,
        attempt=attempt,
        since=options.moment_of(since, "--since", now),
        choice=options.choice_of(topic, partition),
        as_of=moment,
        key_hash=_key_hash(pipeline, key, key_hex),
        newest_first=chosen is None and key is None and key_hex is None,
    )
    pages = audit_pages(audit_root(), name, criteria)
    if as_table:
        printed = _print_table([row for page in pages for row in page.to_pylist()], limit)
    else:
        fields = [OUTCOMES.field(name).remove_metadata() for name in COLUMNS]
        printed = write_rows(pages, pa.schema([*fields, pa.field("effective", pa.bool_())]), as_json, parquet)
    if not printed:
        _explain_no_rows(name, criteria, as_table)


def _key_hash(pipeline: Pipeline, key: str | None, key_hex: str | None) -> int | None:
    """Returns the hash of the key that `--key` or `--key-hex` names; None without them.

    Raises ConfigError for both of them, for digits that are not hexadecimal, and if the connection has no secret.
    """
    from ackline.pipeline.properties import key_hash, secret_of

    if key is None and key_hex is None:
        return None
    if key is not None and key_hex is not None:
        raise ConfigError("--key and --key-hex: write one of them", key="--key-hex")
    try:
        raw = key.encode() if key is not None else bytes.fromhex(key_hex or "")
    except ValueError:
        raise ConfigError("--key-hex: write two hexadecimal digits for each byte of the key", key="--key-hex") from None
    advice = f"set `audit: {{key_hash: true}}` in the file of {pipeline.name}: the rows of later turns have a hash then"
    try:
        secret = secret_of(connection_of(pipeline) or {}, pipeline.kafka.connection)
    except ConfigError as error:
        if pipeline.audit.key_hash:
            raise
        option = "--key" if key is not None else "--key-hex"
        raise ConfigError(f"{option}: no row has a hash of its record's key; {advice}. {error}", key=option) from None
    if not pipeline.audit.key_hash:
        notice(f"only rows from before `audit.key_hash` was removed have a hash of their record's key; {advice}")
    return key_hash(secret)(raw)


def _as_of(text: str | None, now: str | None) -> Any:
    """Returns `--as-of`: a version as a number, or a time."""
    if text is not None and text.isascii() and text.isdecimal():
        return min(int(text), LAST)
    return options.moment_of(text, "--as-of", now)


def _lane_of(name: str, lane: str | None, as_of: object) -> str | None:
    """Returns the lane whose rows are wanted; None for all. A version is that of one lane's table: by default live.

    Raises ConfigError for a lane that has no tables.
    """
    from ackline.ledger.turns import LIVE

    wanted = LIVE if lane is None and isinstance(as_of, int) else lane
    if lane is not None:
        options.check_lane(name, lane)
    return wanted


def _print_table(rows: list[dict[str, Any]], limit: int | None) -> int:
    from ackline.audit.queries import displayed_values
    from ackline.ledger.turns import LIVE

    columns = [*(["lane"] if {row["lane"] for row in rows} - {LIVE} else []), *_COLUMNS]
    out = tables.console()
    cut = len(rows) if limit is not None else SHOWN
    if rows:
        tables.print_table(out, None, columns, (displayed_values(row, columns) for row in rows[:cut]), _FIRST)
    if len(rows) > cut:
        out.print("… and more. --limit N, --json, --csv or --parquet FILE shows them all.")
    return len(rows)


_NAMED = 5
"""How many partitions or error classes an explanation names."""


def _explain_no_rows(name: str, criteria: "AuditFilter", as_table: bool) -> None:
    """Prints that no row was found, and why as far as the tables show it: on standard error beside rows for a
    program."""
    try:
        reasons = list(_why_no_rows(name, criteria))
    except AcklineError:  # the rows could be read, and an explanation is no reason to fail
        reasons = []
    text = f"no rows{': ' if reasons else ''}{'; '.join(reasons)}"
    text += "" if text.endswith("?") else "."
    if as_table:
        tables.print_lines(tables.console(), [text[0].upper() + text[1:]])
    elif reasons:
        print(f"ackline: {text}", file=sys.stderr)


def _why_no_rows(name: str, criteria: "AuditFilter") -> Iterator[str]:
    from ackline.audit.sql import sql_result
    from ackline.lane.turn_metrics import outcome_rows_are_off
    from ackline.ledger.turns import LIVE
    from ackline.pipeline.folder import audit_root
    from ackline.tables.store import LedgerStore

    store = LedgerStore(audit_root(), name, criteria.lane or LIVE)
    newest = store.newest()
    if newest is None:
        yield f"the lane {store.lane} of {name} has not run yet"
        return
    if outcome_rows_are_off(store):
        yield "the newest turn stored no rows (`record_outcomes: false`); its counts are in `ackline status`"
    chosen = {tp: row.state.complete_to for tp, row in newest.partitions.items() if criteria.choice.includes(tp)}
    if not chosen:
        topics = {tp.topic for tp in newest.partitions}
        near = "".join(did_you_mean(topic, topics) for topic in criteria.choice.topics if topic not in topics)
        yield f"the lane {store.lane} has no such partition{near}"
    elif criteria.offsets is not None and all(criteria.offsets.start >= end for end in chosen.values()):
        first = sorted(chosen.items())[:_NAMED]
        read = ", ".join(f"{tp} up to {end}" for tp, end in first) + (" …" if len(chosen) > len(first) else "")
        yield f"the lane {store.lane} has read {read}, and no turn has read offset {criteria.offsets.start} yet"
    if criteria.error_class:
        query = "SELECT DISTINCT error_class FROM attempts WHERE error_class IS NOT NULL ORDER BY ALL"
        with sql_result(store.root, query, [name]) as reader:
            known = [row["error_class"] for batch in reader for row in batch.to_pylist()]
        if criteria.error_class not in known:
            more = " …" if len(known) > _NAMED else ""
            yield (
                f"no row has the error class {criteria.error_class}{did_you_mean(criteria.error_class, known) or '.'} "
                f"There are {', '.join(known[:_NAMED]) or 'none'}{more}"
            )


SHOWN_BY_SQL = 200
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
    query: Annotated[
        str | None,
        typer.Argument(help="One SELECT, in the SQL of the engine. Without it, the views are listed.", metavar="[SQL]"),
    ] = None,
    pipeline: Pipelines = None,
    engine: Engines = Engine.DUCKDB,
    as_json: options.Json = False,
    as_csv: Csv = False,
    parquet: Parquet = None,
) -> None:
    """Run one SELECT over the tables and output tables of all pipelines, read-only.

    Views: `outcomes` (effective rows of the live lanes' newest epochs), `attempts` (all rows), `records` (one row a
    record), `pending`, `plans`, `settlements`, `turns`, `runs`, and `output_PIPELINE_TABLE` for each output table that
    a pipeline file names. `ackline sql` lists them with their columns. docs/cookbook.md has twelve questions.

    Example: `ackline sql "SELECT error_class, count(*) AS dead FROM outcomes WHERE outcome = 'dead' GROUP BY ALL"`
    """
    check_formats(as_json, as_csv, parquet)
    with _result(engine, query, pipeline or []) as reader:
        pages = (pa.table(batch) for batch in reader)
        if as_json or as_csv or parquet is not None:
            write_rows(pages, reader.schema, as_json, parquet)
            return
        rows = (row for page in pages for row in page.to_pylist())
        shown = [list(json_row(row).values()) for row in islice(rows, SHOWN_BY_SQL)]
        more = next(rows, None) is not None
    out = tables.console()
    if query is None:
        tables.print_lines(out, (f"{view}: {columns}" for view, columns in shown))
        example = "SELECT outcome, count(*) AS records FROM records GROUP BY outcome"
        out.print(f"Query them as in `ackline sql '{example}'`; docs/cookbook.md has twelve queries.", soft_wrap=True)
        return
    tables.print_table(out, None, reader.schema.names, shown)
    if not shown:
        out.print("No rows.")
    if more:
        out.print("… and more. --json, --csv or --parquet FILE shows them all.")


@contextmanager
def _result(engine: Engine, query: str | None, pipelines: list[str]) -> Iterator[pa.RecordBatchReader]:
    """Gives the rows of the query in batches; without one, a row a view. Spark runs on the master of a run, with the
    block `spark:` of the pipeline if the command names one."""
    from ackline.audit.sql import list_views, named_outputs, sql_result, table_folders, view_definitions
    from ackline.pipeline.folder import audit_root
    from ackline.tables.schemas import TABLES

    # Pipeline files are read only for a query that names an output table.
    outputs = _outputs(pipelines) if query is None or "output_" in query.lower() else {}
    if query is None:
        yield list_views(outputs).to_reader()
        return
    if engine is Engine.DUCKDB:
        with sql_result(audit_root(), query, pipelines, outputs) as reader:
            yield reader
        return
    from ackline.spark.sql import create_views, open_sql_session, select

    folders = table_folders(audit_root(), query, pipelines)
    block = pipeline_named(pipelines[0]).spark if len(pipelines) == 1 else None
    options.notice_start_of_spark()
    spark = open_sql_session(block)
    named = {view: table.uri for view, table in named_outputs(query, outputs).items()}
    create_views(spark, folders, TABLES, view_definitions(), named)
    yield select(spark, query).to_reader()


def _outputs(pipelines: list[str]) -> "dict[str, list[OutputTable]]":
    """Returns the output tables that the pipeline files name, by their views, without opening one. A character that a
    name in SQL can't have without quotes is an underscore in the name of the view."""
    from ackline.ledger.turns import LIVE
    from ackline.outputs.output_table import OutputTable, output_folder, shadows_of
    from ackline.pipeline.folder import audit_root, lane_folder, load_folder, pipelines_folder

    found: dict[str, dict[str, OutputTable]] = {}
    for name, pipeline in load_folder(pipelines_folder()).pipelines.items():
        for output in pipeline.outputs or () if not pipelines or name in pipelines else ():
            if output.table is not None:
                real = output_folder(lane_folder(audit_root(), name, LIVE), output.table)
                for uri in (real, *shadows_of(real)):
                    view = re.sub(r"\W", "_", f"output_{name}_{uri.rstrip('/').rpartition('/')[2]}").lower()
                    found.setdefault(view, {})[uri] = OutputTable(uri)
    return {view: list(tables.values()) for view, tables in found.items()}


COMMANDS = {"audit": audit, "sql": sql}
