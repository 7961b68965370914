"""The sides with Spark. Each function handles all records of the topic once and returns how many there were."""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import yaml
from pyspark.sql import SparkSession

from ackline import Record
from ackline.lane.adapters import open_adapters
from ackline.pipeline.pipeline import load
from ackline.spark.lineage import fresh_records, source_options
from ackline.steps import run as run_step
from tests.bench.topic import ISOLATION, Subject


def handle(record: Record) -> None:
    """Parses the value of a record."""
    json.loads(record.value)


def ackline_run(spark: SparkSession, subject: Subject, *, check_crcs: bool = True, **more: Any) -> int:
    """Does a whole `ackline run` in this process: plan, replay, settle and the group's commit.

    Returns how many records were acked. `more` are settings.
    """
    name = f"bench-{uuid.uuid4().hex[:8]}"
    settings = {
        "name": name,
        "kafka": {
            "bootstrap_servers": subject.bootstrap,
            "group_id": name,
            "topics": [subject.topic],
            "isolation": ISOLATION,
            "properties": {} if check_crcs else {"check.crcs": False},
        },
        "handler": f"{__name__}:handle",
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


def noop_sink(spark: SparkSession, subject: Subject) -> int:
    """Calls the handler for what Spark's Kafka source reads, and writes nothing."""

    handled = spark.sparkContext.accumulator(0)

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("value").to_pylist():
                json.loads(value)
            handled.add(batch.num_rows)
            yield pa.RecordBatch.from_pydict({"handled": [batch.num_rows]})

    options = source_options({"bootstrap.servers": subject.bootstrap}, ISOLATION)
    records = fresh_records(spark, subject.ranges, options).select("value")
    records.mapInArrow(task, "handled long").write.format("noop").mode("overwrite").save()
    return int(handled.value)
