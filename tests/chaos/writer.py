"""One of eight writers to a table: `python -m tests.chaos.writer delta-rs|delta-spark ROOT NAME NUMBERS`.

All writers try to take each number of the transaction id "contest". Each also counts up a transaction id of its own. At
the end a writer prints the numbers of the contest that the table has given to it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from filelock import FileLock

from ackline.tables.schemas import OUTCOMES
from ackline.tables.table import AuditTable

Append = Callable[[str, int], bool]
DAY = datetime(2026, 1, 31, tzinfo=UTC)


def row(name: str, application: str, number: int) -> dict[str, object]:
    """Returns a row with the name of its writer and its number."""
    of_turn = {"pipeline": "contest", "plan_date": DAY.date(), "lane": application, "epoch": 0, "turn": number}
    of_record = {"topic": "t", "partition": 0, "offset": number, "attempt": 1, "outcome": "acked", "handled_at": DAY}
    return {**of_turn, "run_id": name, **of_record}


def rust(table: AuditTable, name: str) -> Append:
    """Returns a function that appends as Ackline does."""
    return lambda application, number: table.append(
        pa.Table.from_pylist([row(name, application, number)], schema=OUTCOMES), application, number
    )


@contextmanager
def jvm(table: AuditTable, name: str) -> Iterator[Append]:
    """Returns a function that appends with delta-spark, under the same lock."""
    from pyspark.sql import SparkSession

    from ackline.spark.jars import spark_jars

    settings = {
        "spark.master": "local[1]",
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.jars": ",".join(map(str, spark_jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "1",
        # To compile a query takes far longer than to write a row.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    lock = FileLock(Path(table.uri).parent / ".locks" / f"{table.name}.lock")
    schema = (
        "pipeline string, plan_date date, lane string, epoch int, turn long, run_id string, topic string, "
        "partition int, offset long, attempt int, outcome string, handled_at timestamp"
    )

    def append(application: str, number: int) -> bool:
        with lock:
            last = table.version_of(application)
            if last is not None and last >= number:
                return False
            rows = spark.createDataFrame([tuple(row(name, application, number).values())], schema)
            writer = rows.write.format("delta").mode("append")
            writer.option("txnAppId", application).option("txnVersion", number).save(table.uri)
            return True

    yield append
    spark.stop()


def contest(table: AuditTable, name: str, append: Append, numbers: int) -> None:
    """Tries to take each number of the contest, and prints the numbers that it got."""
    won = []
    for number in range(1, numbers + 1):
        assert append(f"own/{name}", number)
        if append("contest", number):
            won.append(number)
    print(json.dumps(won))


def main(kind: str, root: str, name: str, numbers: str) -> None:
    """Writes as one of the two kinds."""
    table = AuditTable(root, "outcomes")
    table.create()
    if kind == "delta-rs":
        contest(table, name, rust(table, name), int(numbers))
    else:
        with jvm(table, name) as append:
            print("ready", flush=True)
            sys.stdin.readline()
            contest(table, name, append, int(numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
