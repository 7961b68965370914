"""SQL over the tables of all pipelines and lanes, by DuckDB in this process.

DuckDB reads the files through Arrow datasets. So it has the login that `object_store` has resolved, and hands columns
and filters down to the files. The query reads views alone: access to files and other hosts is off, and so is the change
of settings. Intermediate results above MEMORY go to a temporary folder.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from importlib import resources
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from ackline.delta.reads import pruned_dataset
from ackline.errors import ConfigError, FatalError
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
_USER_ERRORS = (
    duckdb.ProgrammingError,  # parser, binder, catalog
    duckdb.DataError,  # conversion, division
    duckdb.NotSupportedError,
    duckdb.PermissionException,
    duckdb.InvalidInputException,
)


@contextlib.contextmanager
def sql_result(root: str, query: str, pipelines: Collection[str] = ()) -> Iterator[pa.RecordBatchReader]:
    """Runs one SELECT over the views, and gives its rows in batches. `pipelines` names those to read; none means all.
    Raises ConfigError for a query that is no single SELECT or that DuckDB refuses, and FatalError if the tables can't
    be read."""
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


def _needed_tables(query: str) -> set[str]:
    """Returns the tables that a query may read. A view named in a text or comment counts too, and costs only time."""
    named = {view for view in VIEWS if re.search(rf"\b{view}\b", query, re.IGNORECASE)}
    return {table for view in named for table in VIEWS[view]}


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
