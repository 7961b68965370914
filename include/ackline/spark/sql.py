"""SQL over the tables of all pipelines and lanes, by Spark and delta-spark, for tables past one machine.

The views are those of `ackline.audit.sql`, in the same text. The query reads them alone: before Spark analyses it,
each node of it is compared with what a query over views needs, so it runs no program, calls no Java method and reads no
other file.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from ackline.errors import ConfigError, FatalError
from ackline.pipeline.blocks import SparkBlock
from ackline.spark.jars import jar_settings
from ackline.spark.master import MASTER, chosen_master, connect_server
from ackline.spark.session import open_session

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.runSQLOnFiles": "false",  # no table named by its path
    # As in DuckDB: an identifier may be in double quotes, and a wrong cast is an error.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
}
_PLANS = frozenset({
    "Aggregate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join", "LateralJoin",
    "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "Project", "Sample", "Sort", "SubqueryAlias",
    "Tail", "Union", "Unpivot", "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation",
    "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedWith",
    "Window", "WithWindowDefinition",
})  # fmt: skip
"""The nodes of a parsed query that read views and nothing else. Any other node, as of TRANSFORM … USING, is refused."""
_TABLE_FUNCTIONS = frozenset({"explode", "explode_outer", "inline", "inline_outer", "posexplode", "range", "stack"})
_JAVA_FUNCTIONS = frozenset({"reflect", "java_method", "try_reflect"})
_CATALYST = "org.apache.spark.sql.catalyst"


def open_sql_session(block: SparkBlock | None = None) -> SparkSession:
    """Returns a session with Delta on the master that `chosen_master` returns. Raises what `open_session` raises, and
    ConfigError for a Spark Connect server: its client can't look into a query before the server runs it."""
    master = chosen_master()
    if connect_server(master.url) is not None:
        raise ConfigError(
            f"{master} is a Spark Connect server, where no query can be checked before it runs: name another master in "
            f"{MASTER}, such as local[*], or leave out `--engine spark`",
            key=MASTER,
        )
    return open_session("ackline-sql", block, {**SETTINGS, **jar_settings(delta=True)})


def create_views(
    spark: SparkSession,
    tables: Mapping[str, Sequence[str]],
    schemas: Mapping[str, pa.Schema],
    views: str,
    outputs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Creates the views in the session. `tables` has the folders of each table in all lanes, `schemas` their columns,
    `views` the statements that create the views, and `outputs` the folder of each output table by the name of its view.
    Raises FatalError if a table can't be read."""
    try:
        for name, folder in outputs.items():
            spark.read.format("delta").load(folder).createOrReplaceTempView(name)
        for name, folders in tables.items():
            _read(spark, folders, schemas[name]).createOrReplaceTempView(f"_{name}")
        for statement in _statements(views):
            spark.sql(statement)
    except (PySparkException, Py4JError) as error:
        raise FatalError(f"Spark can't read the tables: {_text(error)}") from None


def select(spark: SparkSession, query: str) -> pa.Table:
    """Runs one SELECT over the views, and returns its rows, which must fit into the memory of the driver. Raises
    ConfigError for any other query or one that Spark refuses, and FatalError if it fails."""
    query = query.rstrip().removesuffix(";")  # DuckDB takes one, too
    _check_is_select(spark, query)
    # pyspark prints each refused query with its stack trace; the error that this function raises is enough.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        chosen = spark.sql(query)
    except PySparkException as error:
        raise ConfigError(f"the query can't be run: {_text(error)}", key="SQL") from None
    try:
        return chosen.toArrow()
    except (PySparkException, Py4JError) as error:
        raise FatalError(f"the query failed: {_text(error)}") from None


def _read(spark: SparkSession, folders: Sequence[str], schema: pa.Schema) -> DataFrame:
    """Returns the rows of one table of all lanes, with null in columns that a table of an earlier version lacks."""
    rows = spark.createDataFrame(schema.empty_table())
    for folder in folders:
        rows = rows.unionByName(spark.read.format("delta").load(folder), allowMissingColumns=True)
    return rows


def _statements(views: str) -> Iterator[str]:
    for statement in re.sub(r"--.*", "", views).split(";"):
        if statement.strip():
            yield statement.replace("CREATE VIEW", "CREATE OR REPLACE TEMPORARY VIEW")


def _check_is_select(spark: SparkSession, query: str) -> None:
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    try:
        parsed = parser.parseQuery(query)  # the grammar of a query alone: neither a command nor a second statement
    except ParseException as error:
        raise ConfigError(f"write one SELECT: the tables are read-only here ({_text(error)})", key="SQL") from None
    for node in _nodes(spark, parsed):
        if reason := _refusal(spark, node):
            raise ConfigError(f"the query can't be run: it {reason}; it may read the views alone", key="SQL")


def _refusal(spark: SparkSession, node: Any) -> str | None:
    """Returns what is wrong with a node of a parsed query; None if it only reads views."""
    kind = str(node.getClass().getSimpleName())
    if _is(spark, node, f"{_CATALYST}.plans.logical.LogicalPlan") and kind not in _PLANS:
        return f"contains {kind}"
    if kind == "UnresolvedRelation" and node.multipartIdentifier().size() > 1:
        return f"names the table {node.multipartIdentifier().mkString('.')}"
    if kind == "UnresolvedTableValuedFunction":
        name = str(node.name().last()).lower()
        return None if name in _TABLE_FUNCTIONS else f"calls the table function {name}"
    if kind == "UnresolvedFunction" and str(node.nameParts().last()).lower() in _JAVA_FUNCTIONS:
        return f"calls {node.nameParts().last()}"
    return f"contains {kind}" if "Identifier" in kind else None  # IDENTIFIER('…') would name a table by an expression


def _nodes(spark: SparkSession, node: Any) -> Iterator[Any]:
    """Yields all plans and expressions of a parsed query, those of subqueries and of WITH too."""
    yield node
    below = [*_elements(node.children()), *_elements(node.innerChildren())]
    if _is(spark, node, f"{_CATALYST}.plans.QueryPlan"):
        below += _elements(node.expressions())
    elif _is(spark, node, f"{_CATALYST}.expressions.PlanExpression"):
        below.append(node.plan())
    for child in below:
        if _is(spark, child, f"{_CATALYST}.trees.TreeNode"):
            yield from _nodes(spark, child)


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _is(spark: SparkSession, value: Any, java_class: str) -> bool:
    return bool(is_instance_of(spark.sparkContext._gateway, value, java_class))


def _text(error: Exception) -> str:
    """Returns Spark's message without the query's plan."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return " ".join(text.split("== SQL")[0].split(";\n")[0].split())[:500]
