"""The sides of `tests.bench.trees`: the same steps in Ackline, with tracking, and in plain PySpark, without.

An order has three lines. `split` sends each line to the step `price` by its product, which sends it on to `book` by its
customer. Both sides parse JSON once for each tuple and step, have two exchanges, and write a row for each line to a
Delta table. The same steps an Arrow batch at a time parse JSON once for each order, and hand columns on.
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from deltalake import convert_to_deltalake
from pyspark.sql import DataFrame, SparkSession

from ackline import Record, arrow_handler
from ackline.handler import Emit, Tuple
from tests.bench import sides
from tests.bench.topic import Subject

Batches = Iterable[pa.RecordBatch]


def split(record: Record) -> Iterator[Emit]:
    for line in json.loads(record.value):
        yield Emit(json.dumps(line), key=line["product"])


def price(given: Tuple) -> Iterator[Emit]:
    line = json.loads(given.value)
    line["total"] = line["price"] * line["quantity"]
    yield Emit(json.dumps(line), key=line["customer"])


def book(given: Tuple) -> Iterator[Emit]:
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


# ---- an Arrow batch at a time ---------------------------------------------------------------------------------------

LINE = {
    "order_id": pa.int64(), "number": pa.int64(), "product": pa.string(), "customer": pa.string(),
    "price": pa.float64(), "quantity": pa.int64(),
}  # fmt: skip
_LINES = pa.schema([("lines", pa.list_(pa.struct(LINE)))])


def lines_of(values: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
    """The lines of orders, and for each line the number of its order."""
    parts = pa.scalar(b'{"lines":', pa.binary()), values, pa.scalar(b"}\n", pa.binary()), pa.scalar(b"", pa.binary())
    text = pa.BufferReader(b"".join(pc.binary_join_element_wise(*parts).to_pylist()))
    read = pa_json.ReadOptions(use_threads=False, block_size=1 << 30)
    orders = pa_json.read_json(text, read, pa_json.ParseOptions(explicit_schema=_LINES)).column("lines")
    orders = orders.combine_chunks()
    lines = pa.RecordBatch.from_struct_array(orders.flatten())
    return lines, pc.list_parent_indices(orders)


def with_total(lines: pa.RecordBatch) -> pa.RecordBatch:
    total = pc.multiply(lines.column("price"), lines.column("quantity").cast(pa.float64()))
    return lines.append_column("total", total)


@arrow_handler
def split_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    lines, orders = lines_of(batch.column("value"))
    return lines.append_column("key", lines.column("product")).append_column("_input", orders)


@arrow_handler
def price_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    priced = with_total(batch.select([*LINE]))
    return priced.append_column("key", priced.column("customer"))


@arrow_handler
def book_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([*COLUMNS])


ARROW_STEPS = [
    {"name": "price", "handler": f"{__name__}:price_batch", "input": "source", "group_by": "key"},
    {"name": "book", "handler": f"{__name__}:book_batch", "input": "price", "group_by": "key"},
]


def plain_arrow(spark: SparkSession, subject: Subject) -> int:
    """Runs the same vectorised steps with mapInArrow and repartition. Returns of how many records the rows are."""
    parts = spark.sparkContext.defaultParallelism
    of_line = ", ".join(f"{name} {_SPARK[kind]}" for name, kind in LINE.items())
    lines = sides.records_of(spark, subject).select("value").mapInArrow(_split_batches, of_line)
    priced = lines.repartition(parts, "product").mapInArrow(_price_batches, f"{of_line}, total double")
    booked = priced.repartition(parts, "customer").mapInArrow(_book_batches, _ROW)
    return _written(spark, subject, booked)


def _split_batches(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield lines_of(batch.column("value"))[0]


def _price_batches(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield with_total(batch)


def _book_batches(batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select([*COLUMNS])


# ---- a record or a tuple at a time ----------------------------------------------------------------------------------


def ackline_run(spark: SparkSession, subject: Subject, handler: str = "split", **more: Any) -> int:
    """Does a whole `ackline run` with a handler of this module. Returns how many records were acked."""
    return sides.ackline_run(spark, subject, handler=f"{__name__}:{handler}", **more)


def plain_pyspark(spark: SparkSession, subject: Subject) -> int:
    """Runs the same steps with mapInArrow and repartition, and writes the same rows to a Delta table. Returns of how
    many records these are."""
    parts = spark.sparkContext.defaultParallelism
    lines = sides.records_of(spark, subject).select("value").mapInArrow(_split, "key string, value string")
    priced = lines.repartition(parts, "key").mapInArrow(_price, "key string, value string")
    booked = priced.repartition(parts, "key").mapInArrow(_book, _ROW)
    return _written(spark, subject, booked)


_SPARK = {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}
_ROW = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def _written(spark: SparkSession, subject: Subject, booked: DataFrame) -> int:
    """Writes rows to a new Delta table. Returns of how many records they are."""
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
