"""Runs SQL by delta-spark: `python -m tests.tables.spark_statements STATEMENT…` prints the rows of the last one."""

import json
import sys

from pyspark.sql import SparkSession

from ackline.spark.jars import spark_jars
from tests.tables.spark_reader import SETTINGS


def main(statements: list[str]) -> None:
    """Print the rows that the last statement returns, as JSON."""
    builder = SparkSession.builder.config("spark.jars", ",".join(map(str, spark_jars())))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    *before, last = statements
    for statement in before:
        spark.sql(statement)
    print(json.dumps([list(row) for row in spark.sql(last).collect()]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
