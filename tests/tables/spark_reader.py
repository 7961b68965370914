"""Reads a table by delta-spark: `python -m tests.tables.spark_reader URI COLUMN…` prints its rows as JSON."""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.spark.jars import spark_jars

SETTINGS = {
    "spark.master": "local[1]", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC", "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1", "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip


def main(uri: str, columns: list[str]) -> None:
    """Print the rows, ordered by these columns."""
    builder = SparkSession.builder.config("spark.jars", ",".join(map(str, spark_jars())))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.read.format("delta").load(uri).orderBy(*columns[:1]).select(F.to_json(F.struct(*columns)))
    print(json.dumps([json.loads(row[0]) for row in rows.collect()]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
