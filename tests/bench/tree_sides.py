"""The sides of `tests.bench.trees`: the same steps in Ackline, with tracking, and in plain PySpark, without.

An order has three lines. `split` sends each line to the step `price` by its product, which sends it on to `book` by its
customer. Both sides parse JSON once for each tuple and step, have two exchanges, and write a row for each line to a
Delta table.
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from deltalake import convert_to_deltalake
from pyspark.sql import SparkSession

from ackline import Record
from ackline.handler import Emit, Tuple
from ackline.spark.lineage import fresh_records, source_options
from tests.bench import sides
from tests.bench.topic import ISOLATION, Subject

Batches = Iterable[pa.RecordBatch]


def split(record: Record) -> Iterator[Emit]:
    """Emits each line of an order."""
    for line in json.loads(record.value):
        yield Emit(json.dumps(line), key=line["product"])


def price(given: Tuple) -> Iterator[Emit]:
    """Adds its total to a line."""
    line = json.loads(given.value)
    line["total"] = line["price"] * line["quantity"]
    yield Emit(json.dumps(line), key=line["customer"])


def book(given: Tuple) -> Iterator[Emit]:
    """Emits the row of a line."""
    line = json.loads(given.value)
    yield Emit({name: line[name] for name in COLUMNS})


def parse(record: Record) -> None:
    """Parses a record: the handler of a pipeline without steps."""
    json.loads(record.value)


COLUMNS = {"order_id": "long", "number": "long", "customer": "string", "total": "double"}
"""The table that both sides write."""
STEPS = [
    {"name": "price", "handler": f"{__name__}:price", "input": "source", "group_by": "key"},
    {"name": "book", "handler": f"{__name__}:book", "input": "price", "group_by": "key"},
]
OUTPUTS = [{"from": "book", "table": "lines", "columns": COLUMNS}]


def ackline_run(spark: SparkSession, subject: Subject, handler: str = "split", **more: Any) -> int:
    """Does a whole `ackline run` with a handler of this module. Returns how many records were acked."""
    return sides.ackline_run(spark, subject, handler=f"{__name__}:{handler}", **more)


def plain_pyspark(spark: SparkSession, subject: Subject) -> int:
    """Runs the same steps with mapInArrow and repartition, and writes the same rows to a Delta table. Returns of how
    many records these are."""
    parts = spark.sparkContext.defaultParallelism
    options = source_options({"bootstrap.servers": subject.bootstrap}, ISOLATION)
    lines = fresh_records(spark, subject.ranges, options).select("value").mapInArrow(_split, "key string, value string")
    priced = lines.repartition(parts, "key").mapInArrow(_price, "key string, value string")
    booked = priced.repartition(parts, "key").mapInArrow(
        _book, ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    )
    path = str(subject.folder / f"plain-{uuid.uuid4().hex[:8]}")
    booked.write.parquet(path)
    convert_to_deltalake(path)
    return spark.read.parquet(path).where("number = 0").count()


def _split(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, values = [], []
        for value in batch.column("value").to_pylist():
            for line in json.loads(value):
                keys.append(line["product"])
                values.append(json.dumps(line))
        yield pa.RecordBatch.from_pydict({"key": keys, "value": values})


def _price(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, values = [], []
        for value in batch.column("value").to_pylist():
            line = json.loads(value)
            line["total"] = line["price"] * line["quantity"]
            keys.append(line["customer"])
            values.append(json.dumps(line))
        yield pa.RecordBatch.from_pydict({"key": keys, "value": values})


def _book(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for value in batch.column("value").to_pylist():
            line = json.loads(value)
            rows.append({name: line[name] for name in COLUMNS})
        yield pa.RecordBatch.from_pylist(rows)
