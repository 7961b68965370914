"""The sides with Spark, and Java's consumer. Each handles all records of the topic once and returns how many."""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import lit

from ackline import Record, arrow_handler, column_handler
from ackline.lane.adapters import open_adapters
from ackline.pipeline.pipeline import load
from ackline.spark import jars
from ackline.spark.lineage import TUNED, for_python, fresh_records, source_options
from ackline.steps import run as run_step
from tests.bench.topic import ISOLATION, Subject


def handle(record: Record) -> None:
    json.loads(record.value)


def nothing(record: Record) -> None:
    """Does nothing with a record."""


@arrow_handler
def handle_batch(batch: pa.RecordBatch) -> list[str]:
    for value in batch.column("value").to_pylist():
        json.loads(value)
    return ["acked"] * batch.num_rows


@arrow_handler
def nothing_batch(batch: pa.RecordBatch) -> list[str]:
    return ["acked"] * batch.num_rows


@column_handler
def nothing_column(records: DataFrame) -> Column:
    return lit("acked")


def ackline_run(spark: SparkSession, subject: Subject, handler: str = f"{__name__}:handle", **more: Any) -> int:
    """Does a whole `ackline run` in this process: plan, replay, settle and the group's commit.

    Returns how many records were acked. `more` are settings; those in `properties` are the Kafka client's.
    """
    name = f"bench-{uuid.uuid4().hex[:8]}"
    settings = {
        "name": name,
        "kafka": {
            "bootstrap_servers": subject.bootstrap,
            "group_id": name,
            "topics": [subject.topic],
            "isolation": ISOLATION,
            "properties": more.pop("properties", {}),
        },
        "handler": handler,
        "dead_letter": "none",
        "start": "earliest",
        "max_records_per_run": subject.records,
        **more,
    }
    file = subject.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(settings))
    with open_adapters(load(file), run_id=name, actor="bench", audit=str(subject.folder / name)) as adapters:
        ran = run_step.run(adapters, lambda: spark)
    return ran.outcomes["acked"]


def records_of(spark: SparkSession, subject: Subject) -> DataFrame:
    options = source_options({"bootstrap.servers": subject.bootstrap}, ISOLATION)
    return fresh_records(spark, subject.ranges, options)


def spark_reads(spark: SparkSession, subject: Subject) -> int:
    """Reads the records in the JVM alone. Returns how many the topic has: the source fails if one is missing."""
    records_of(spark, subject).write.format("noop").mode("overwrite").save()
    return subject.records


def spark_moves(spark: SparkSession, subject: Subject) -> int:
    """Moves the columns that Ackline reads to a Python worker, which counts the rows."""
    return _in_python(spark, for_python(records_of(spark, subject), with_topic=False), lambda batch: None)


def noop_sink(spark: SparkSession, subject: Subject) -> int:
    """Calls `json.loads` for what Spark's Kafka source reads, and writes nothing."""

    def parse(batch: pa.RecordBatch) -> None:
        for value in batch.column("value").to_pylist():
            json.loads(value)

    return _in_python(spark, records_of(spark, subject).select("value"), parse)


def _in_python(spark: SparkSession, records: DataFrame, use: Callable[[pa.RecordBatch], None]) -> int:
    handled = spark.sparkContext.accumulator(0)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            use(batch)
            handled.add(batch.num_rows)
            yield pa.RecordBatch.from_pydict({"handled": [batch.num_rows]})

    records.mapInArrow(task, "handled long").write.format("noop").mode("overwrite").save()
    return int(handled.value)


@contextmanager
def java_consumer(subject: Subject) -> Iterator[Callable[[], int]]:
    """Keeps a JVM with a consumer of one thread; each call of what is yielded reads all records once."""
    settings = {"bootstrap.servers": subject.bootstrap, "isolation.level": ISOLATION, "group.id": "one-thread"} | TUNED
    command = [
        jars.java(), "-cp", jars.broker_classpath(), "-Dlog4j2.level=ERROR",
        str(Path(__file__).with_name("OneThread.java")), str(subject.partitions), subject.topic, str(subject.records),
        *(f"{name}={value}" for name, value in settings.items()),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def read() -> int:
            asked.write("\n")
            asked.flush()
            return int(answers.readline())

        try:
            yield read
        finally:
            asked.close()  # the program ends with its input
