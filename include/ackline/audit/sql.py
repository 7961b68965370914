"""SQL over the tables of all pipelines and lanes, and over their output tables, by DuckDB in this process.

DuckDB reads the files through Arrow datasets. So it has the login that `object_store` has resolved, and hands columns
and filters down to the files. The query reads views alone: access to files and other hosts is off, and so is the change
of settings. Intermediate results above MEMORY go to a temporary folder.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from ackline.delta.handle import TableHandle
from ackline.delta.reads import dataset_of, pruned_dataset
from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.scrub import scrub_address
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import LaneFolder, all_lanes, lanes_of
from ackline.tables.schemas import TABLES

VIEWS = {
    "outcomes": ("outcomes", "settlements"),
    "attempts": ("outcomes", "settlements"),
    "records": ("outcomes", "settlements"),
    "plans": ("plans",),
    "settlements": ("settlements",),
    "pending": ("settlements",),
    "turns": ("plans", "settlements"),
    "runs": ("plans", "settlements"),
}
"""The views, each with the tables that it reads."""
_SPARK_FUNCTIONS = """
CREATE MACRO explode(list) AS unnest(list);
CREATE MACRO unix_micros(time) AS epoch_us(time);
"""
"""Functions of Spark that the views use, for DuckDB."""
MEMORY = "1GB"
_BATCH_ROWS = 10_000
_READERS = 1
"""The version of Delta's protocol for readers whose files hold all rows and columns as they are."""
Outputs: TypeAlias = Mapping[str, Sequence[TableHandle]]
"""The output tables by the name of their view: one table, or all those that have the name."""
_USER_ERRORS = (
    duckdb.ProgrammingError,  # parser, binder, catalog
    duckdb.DataError,  # conversion, division
    duckdb.NotSupportedError,
    duckdb.PermissionException,
    duckdb.InvalidInputException,
)


@contextlib.contextmanager
def sql_result(
    root: str, query: str, pipelines: Collection[str] = (), outputs: Outputs = MappingProxyType({})
) -> Iterator[pa.RecordBatchReader]:
    """Runs one SELECT over the views, and gives its rows in batches. `pipelines` names those to read; none means all.
    Raises ConfigError for a query that is no single SELECT or that DuckDB refuses, and FatalError if the tables can't
    be read. Of `outputs` it opens those that the query names."""
    with (
        TemporaryDirectory(prefix="ackline-sql-") as spill,
        contextlib.closing(duckdb.connect(":memory:", config={"memory_limit": MEMORY})) as connection,
        _as_ackline_errors(),
    ):
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")  # it would be printed into the rows of a long query
        connection.execute(f"SET temp_directory = '{spill}'")
        _check_is_select(connection, query)
        needed = _needed_tables(query)
        for name, schema in TABLES.items():
            found = _dataset(root, name, pipelines) if name in needed else ds.dataset(schema.empty_table())
            connection.register(f"_{name}", found)
        for name, table in named_outputs(query, outputs).items():
            connection.register(name, _output_dataset(table))
        connection.execute(_SPARK_FUNCTIONS)
        connection.execute(view_definitions())
        # From here on the query cannot reach anything but the views.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        yield connection.sql(query).to_arrow_reader(_BATCH_ROWS)


def table_folders(root: str, query: str, pipelines: Collection[str] = ()) -> dict[str, list[str]]:
    """Returns the folders of each table of all chosen pipelines and lanes. A table that the query does not need has
    none. Raises ConfigError for tables in an object store: Spark has no client of one here."""
    if "://" in root:
        raise ConfigError(
            f"--engine spark reads tables in a folder that all executors share, and not {scrub_address(root)}: use "
            f"the engine duckdb",
            key="--engine",
        )
    lanes = _lanes(root, pipelines)
    needed = _needed_tables(query)
    return {
        name: [table.uri for lane in lanes if (table := AuditTable(lane.folder, name)).open() is not None]
        if name in needed
        else []
        for name in TABLES
    }


def view_definitions() -> str:
    """Returns the statements that create the views, for DuckDB and for Spark."""
    return resources.files("ackline.audit").joinpath("views.sql").read_text()


def list_views(outputs: Outputs) -> pa.Table:
    """Returns a row for each view, with its columns. If an output table can't be read, the error is in their place."""
    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        for name, schema in TABLES.items():
            connection.register(f"_{name}", schema.empty_table())
        connection.execute(_SPARK_FUNCTIONS)
        connection.execute(view_definitions())
        columns = {view: ", ".join(connection.table(view).columns) for view in VIEWS}
    for name in sorted(outputs):
        try:
            found = _output_dataset(_only(name, outputs[name])).schema.names
            columns[name] = ", ".join(column for column in found if not column.startswith("_"))
        except AcklineError as error:
            columns[name] = str(error)
    return pa.table({"view": list(columns), "columns": list(columns.values())})


def named_outputs(query: str, outputs: Outputs) -> dict[str, TableHandle]:
    """Returns the output tables that a query may read. Raises ConfigError for a name that several tables have."""
    return {name: _only(name, tables) for name, tables in outputs.items() if _names(query, name)}


def _only(name: str, tables: Sequence[TableHandle]) -> TableHandle:
    if len(tables) > 1:
        places = ", ".join(scrub_address(table.uri) for table in tables)
        raise ConfigError(f"{name} is the view of several tables: {places}; choose by --pipeline", key="SQL")
    return tables[0]


def _output_dataset(table: TableHandle) -> ds.Dataset:
    """Returns the files of an output table. Raises ConfigError if it does not exist or needs a newer reader."""
    version = table.open()
    if version is None:
        raise ConfigError(
            f"there is no table at {scrub_address(table.uri)} yet; the first run that acks a record with rows "
            f"for it creates it",
            key="SQL",
        )
    with table.errors():
        if version.protocol().min_reader_version > _READERS:
            raise ConfigError(
                f"the table at {scrub_address(table.uri)} has a feature of Delta that only newer readers have; "
                f"use --engine spark",
                key="SQL",
            )
        return dataset_of(table, version)


def _needed_tables(query: str) -> set[str]:
    """Returns the tables that a query may read. A view named in a text or comment counts too, and costs only time."""
    return {table for view in VIEWS if _names(query, view) for table in VIEWS[view]}


def _names(query: str, view: str) -> bool:
    return re.search(rf"\b{view}\b", query, re.IGNORECASE) is not None


def _lanes(root: str, pipelines: Collection[str]) -> list[LaneFolder]:
    if not pipelines:
        return list(all_lanes(root))
    return [lane for pipeline in pipelines for lane in lanes_of(root, pipeline)]


def _check_is_select(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ConfigError("write one SELECT: the tables are read-only here", key="SQL")


def _dataset(root: str, name: str, pipelines: Collection[str]) -> ds.Dataset:
    """Returns the files of a table of all chosen pipelines and lanes."""
    schema, datasets = TABLES[name].remove_metadata(), []
    for lane in _lanes(root, pipelines):
        table = AuditTable(lane.folder, name)
        version = table.open()
        if version is not None:
            with table.errors():
                datasets.append(pruned_dataset(table, version, None))
    children = [dataset.replace_schema(schema) for dataset in datasets]
    return ds.UnionDataset(schema, children) if children else ds.dataset(schema.empty_table())


@contextlib.contextmanager
def _as_ackline_errors() -> Iterator[None]:
    try:
        yield
    except _USER_ERRORS as error:
        raise ConfigError(f"the query can't be run: {' '.join(str(error).split())[:500]}", key="SQL") from error
    # Not by `storage_errors`: it would also turn what the caller's block raises, such as a closed pipe.
    except (duckdb.Error, pa.ArrowException) as error:
        raise FatalError(f"the query failed: {' '.join(str(error).split())[:500]}") from error
