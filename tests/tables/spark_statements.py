"""Runs SQL by delta-spark: `python -m tests.tables.spark_statements` answers each line of its standard input, a
statement, with a line of JSON: the rows, each as a list."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from ackline.spark.jars import spark_jars
from ackline.spark.jvm import driver_options
from tests.e2e.commands import ROOT

SETTINGS = {
    "spark.master": "local[1]", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC", "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}  # fmt: skip


@contextmanager
def spark() -> Iterator[Callable[..., Any]]:
    """Yields a function that runs SQL by delta-spark, in one process, and returns the rows of its last statement."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(*statements: str) -> Any:
            answer = ""
            for statement in statements:
                print(statement, file=asked, flush=True)
                answer = answers.readline()
            return json.loads(answer)

        yield run


def session() -> SparkSession:
    """Returns a session of this process that can use delta-spark."""
    builder = SparkSession.builder.config("spark.jars", ",".join(map(str, spark_jars())))
    for key, value in {**SETTINGS, "spark.driver.extraJavaOptions": driver_options()}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    """Answers one statement after another."""
    spark = session()
    for statement in sys.stdin:
        print(json.dumps([list(row) for row in spark.sql(statement).collect()]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
