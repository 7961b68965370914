"""Runs queries by the engine spark: `python -m tests.contract.spark_queries ROOT` answers those on standard input.

Standard input is a JSON list of queries, and standard output one of [names, rows], or of [null, the refusal].
"""

import datetime
import decimal
import json
import sys
from typing import Any

from ackline.audit.schemas import TABLES
from ackline.audit.sql import VIEWS, table_folders, view_definitions
from ackline.errors import AcklineError
from ackline.spark.sql import create_views, open_sql_session, select


def main(root: str) -> None:
    """Answers each query with the columns and rows that it returns."""
    spark = open_sql_session()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    create_views(spark, table_folders(root, " ".join(VIEWS)), TABLES, view_definitions())
    answers: list[list[Any]] = []
    for query in json.load(sys.stdin):
        try:
            table = select(spark, query)
            answers.append([table.column_names, [list(row.values()) for row in table.to_pylist()]])
        except AcklineError as error:
            answers.append([None, f"{type(error).__name__}: {error}"])
    print(json.dumps(answers, default=_tagged))
    spark.stop()


def _tagged(value: Any) -> Any:
    """Returns a value that JSON does not have as its type and text."""
    if isinstance(value, decimal.Decimal):
        return int(value) if value == int(value) else float(value)
    assert isinstance(value, datetime.date)
    return {type(value).__name__: value.isoformat()}


if __name__ == "__main__":
    main(sys.argv[1])
