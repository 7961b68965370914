"""Handlers for the tests on Spark, in all three tiers."""

import ctypes
import json
import sys
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline import Dead, Record, Skip, arrow_handler, column_handler


def ack(record: Record) -> None:
    """Nothing to do."""


def loads(record: Record) -> None:
    """Fails on what is not JSON."""
    json.loads(record.value)


def by_word(record: Record) -> Any:
    """Does what the value names."""
    word = record.value.decode()
    if word == "fail":
        raise ValueError(f"can't digest {record.value!r} of {record.key!r}")
    if word == "skip":
        raise Skip("the value names it")
    if word == "dead":
        raise Dead("the value names it")
    if word == "exit":
        sys.exit(1)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "generator":
        return (number for number in range(3))
    return word


@arrow_handler
def arrow_words(batch: pa.RecordBatch) -> list[str]:
    """Returns the values as outcomes."""
    return [value.decode() if value else "acked" for value in batch.column("value").to_pylist()]


@arrow_handler
def arrow_short(batch: pa.RecordBatch) -> list[str]:
    """Returns one outcome too few."""
    return ["acked"] * (batch.num_rows - 1)


@column_handler
def column_words(records: DataFrame) -> Column:
    """Returns the values as outcomes."""
    return F.col("value").cast("string")


@column_handler
def column_numbers(records: DataFrame) -> Column:
    """Fails for values that are no number."""
    return F.when(records["value"].cast("string").cast("int") >= 0, "acked")


@column_handler
def column_explodes(records: DataFrame) -> Column:
    """Makes two rows of each."""
    return F.explode(F.array(F.lit("acked"), F.lit("acked")))


@column_handler
def column_calls_python(records: DataFrame) -> Column:
    """Calls a Python function for each record, deep in its expression."""
    word = F.udf(lambda value: bytes(value).decode(), "string")
    return F.when(F.length(word("value")) > 0, F.lower(word("value")))


@column_handler
def column_calls_pandas(records: DataFrame) -> Column:
    """Calls a Python function for each batch."""
    return F.pandas_udf(lambda values: values.str.decode("utf-8"), "string")("value")  # type: ignore[attr-defined, no-any-return]


@column_handler
def column_not_a_column(records: DataFrame) -> DataFrame:
    """Returns a DataFrame."""
    return records


def by_deed(record: Record) -> None:
    """Kills or hangs its process if the value names that."""
    word = record.value.decode()
    if word == "segfault":
        ctypes.string_at(0)
    if word == "hang":
        ctypes.PyDLL(None).sleep(600)
    if word == "fail":
        raise ValueError(f"can't digest {record.value!r} of {record.key!r}")


@arrow_handler
def arrow_by_deed(batch: pa.RecordBatch) -> list[str]:
    """Calls `by_deed` on each record."""
    for row in batch.to_pylist():
        by_deed(Record(**row))
    return ["acked"] * batch.num_rows


@column_handler
def column_raises(records: DataFrame) -> Column:
    """An expression that fails its task, quoting the record."""
    return F.raise_error(F.concat(F.lit("can't digest "), F.col("value").cast("string"), F.col("key").cast("string")))


def is_failed(parts: tuple[Any, ...]) -> bool:
    """Whether the handlers below fail a record with this time, key, value and headers: about one in three."""
    time, *payload = parts
    return crc32(repr([time and time.timestamp(), *payload]).encode()) % 3 == 0


def by_digest(record: Record) -> None:
    """Fails a record by its whole content, and quotes it."""
    parts = (record.timestamp, record.key, record.value, record.headers)
    if is_failed(parts):
        raise ValueError(f"can't digest {parts!r}")


@arrow_handler
def arrow_by_digest(batch: pa.RecordBatch) -> pa.Table:
    """Fails the rows that `by_digest` fails, and quotes them."""
    rows = [(row["timestamp"], row["key"], row["value"], _pairs(row["headers"])) for row in batch.to_pylist()]
    words = ["failed" if is_failed(parts) else "acked" for parts in rows]
    messages = [f"can't digest {parts[1:3]!r}" for parts in rows]
    return pa.table({"outcome": words, "error_message": messages})


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"], pair["value"]) for pair in headers or ())


@column_handler
def column_by_digest(records: DataFrame) -> Column:
    """Fails a record by its key and value."""
    empty = F.lit(b"")
    digest = F.crc32(F.concat(F.coalesce("key", empty), F.coalesce("value", empty)))
    return F.when(digest % 3 == 0, "failed").otherwise("acked")


@column_handler
def column_acks(records: DataFrame) -> Column:
    """Nothing to do."""
    return F.lit("acked")
