"""Runs queries by the engine spark: `python -m tests.audit.spark_queries` answers those on standard input.

Standard input is a JSON list of [root, queries]. Standard output has a list for each root: [names, rows] for each
query, or [null, the refusal].
"""

import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ackline.audit.sql import VIEWS, table_folders, view_definitions
from ackline.errors import AcklineError
from ackline.spark.sql import create_views, open_sql_session, select
from ackline.tables.schemas import TABLES

FAST = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for tables of a few rows: compiling a query takes far longer than running it."""


def main() -> None:
    """Answers each query with the columns and rows that it returns."""
    spark = open_sql_session()
    for name, value in FAST.items():
        spark.conf.set(name, value)
    print(json.dumps([_answers(spark, root, queries) for root, queries in json.load(sys.stdin)], default=_tagged))
    spark.stop()


def _answers(spark: SparkSession, root: str, queries: list[str]) -> list[list[Any]]:
    outputs = {f"output_orders_{table.name}": str(table) for table in Path(root, "orders", "outputs").glob("*")}
    create_views(spark, table_folders(root, " ".join(VIEWS)), TABLES, view_definitions(), outputs)
    for table in TABLES:
        spark.catalog.cacheTable(f"_{table}")
    answers: list[list[Any]] = []
    for query in queries:
        try:
            rows = select(spark, query)
            answers.append([rows.column_names, [list(row.values()) for row in rows.to_pylist()]])
        except AcklineError as error:
            answers.append([None, f"{type(error).__name__}: {error}"])
    spark.catalog.clearCache()
    return answers


def _tagged(value: Any) -> Any:
    """Returns a value that JSON does not have as its type and text."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    assert isinstance(value, datetime.date)
    return {type(value).__name__: value.isoformat()}


if __name__ == "__main__":
    main()
