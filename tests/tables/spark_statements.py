"""Runs SQL by delta-spark: `python -m tests.tables.spark_statements STATEMENT…` prints the rows of the last one."""

import json
import subprocess
import sys
from typing import Any

from pyspark.sql import SparkSession

from ackline.spark.jars import spark_jars
from tests.e2e.commands import ROOT

SETTINGS = {
    "spark.master": "local[1]", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC", "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1", "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip


def spark(*statements: str) -> Any:
    """Runs SQL by delta-spark in a process of its own. Returns the rows of the last statement, each as a list."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, *statements],
        cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


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
