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
from deltalake.exceptions import DeltaError

from ackline.audit.file_bounds import PRUNING, dataset_of
from ackline.audit.layout import all_lanes, lanes_of
from ackline.audit.schemas import TABLES
from ackline.audit.table import AuditTable
from ackline.errors import ConfigError, FatalError

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

    Opens the tables of the views that the query names. Raises ConfigError for a query that is no single SELECT or that
    DuckDB refuses, and FatalError if the tables can't be read.
    """
    with (
        TemporaryDirectory(prefix="ackline-sql-") as spill,
        contextlib.closing(duckdb.connect(":memory:", config={"memory_limit": MEMORY})) as connection,
        _as_ackline_errors(),
    ):
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")  # it would be printed into the rows of a long query
        connection.execute(f"SET temp_directory = '{spill}'")
        _check_is_select(connection, query)
        needed = {table for view, tables in VIEWS.items() if _names(query, view) for table in tables}
        for name, schema in TABLES.items():
            found = _dataset(root, name, pipelines) if name in needed else ds.dataset(schema.empty_table())
            connection.register(f"_{name}", found)
        connection.execute(resources.files("ackline.audit").joinpath("views.sql").read_text())
        # From here on the query cannot reach anything but the views.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")
        yield connection.sql(query).to_arrow_reader(_BATCH_ROWS)


def _names(query: str, view: str) -> bool:
    """Returns whether a query may read a view. A word of a text or comment counts too, and costs only time."""
    return re.search(rf"\b{view}\b", query, re.IGNORECASE) is not None


def _check_is_select(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ConfigError("write one SELECT: the tables are read-only here", key="SQL")


def _dataset(root: str, name: str, pipelines: Collection[str]) -> ds.Dataset:
    """Returns the files of a table of all chosen pipelines and lanes."""
    lanes = [lane for pipeline in pipelines for lane in lanes_of(root, pipeline)] if pipelines else all_lanes(root)
    schema, datasets = TABLES[name].remove_metadata(), []
    for lane in lanes:
        table = AuditTable(lane.folder, name)
        version = table.open()
        if version is not None:
            try:
                datasets.append(
                    dataset_of(table, version, [name for name in PRUNING if name in TABLES[table.name].names])
                )
            except (DeltaError, OSError, pa.ArrowException) as error:
                raise table.error(error) from error
    children = [dataset.replace_schema(schema) for dataset in datasets]
    return ds.UnionDataset(schema, children) if children else ds.dataset(schema.empty_table())


@contextlib.contextmanager
def _as_ackline_errors() -> Iterator[None]:
    try:
        yield
    except _USER_ERRORS as error:
        raise ConfigError(f"the query can't be run: {' '.join(str(error).split())[:500]}", key="SQL") from error
    except (duckdb.Error, pa.ArrowException) as error:
        raise FatalError(f"the query failed: {' '.join(str(error).split())[:500]}") from error
