"""Handlers of the tests here, in all three tiers."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Does what the value says."""
    word = record.value.decode()
    if word == "fail":
        raise ValueError(f"can't digest {record.value!r} of {record.key!r}")
    if word == "skip":
        raise Skip("asked for")
    if word == "dead":
        raise Dead("asked for")
    if word == "exit":
        sys.exit(1)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "generator":
        return (number for number in range(3))
    return word


def checks(record: Record) -> None:
    """Fails where a record is not what `tests.spark.test_records` has produced."""
    wanted = json.loads(dict(record.headers)["wanted"] or b"{}")
    value = None if record.value is None else [len(record.value), record.value[:8].hex()]
    key = None if record.key is None else record.key.hex()
    names = [name for name, _ in record.headers]
    assert (key, value, names) == (wanted["key"], wanted["value"], wanted["names"])
    assert record.timestamp is not None
    assert record.timestamp.timestamp() * 1000 == wanted["timestamp"]
    assert all(text is None for name, text in record.headers if name == "none")


@arrow_handler
def arrow_checks(batch: pa.RecordBatch) -> list[str]:
    """The same for a batch."""
    for row in batch.to_pylist():
        headers = tuple((pair["key"], pair["value"]) for pair in row.pop("headers"))
        checks(Record(**row, headers=headers))
    return ["acked"] * batch.num_rows


@column_handler
def column_checks(records: DataFrame) -> Column:
    """What of it an expression can say."""
    wanted = F.filter("headers", lambda pair: pair["key"] == "wanted")[0]["value"].cast("string")
    same_key = F.lower(F.hex("key")).eqNullSafe(F.get_json_object(wanted, "$.key"))
    same_size = F.octet_length("value").eqNullSafe(F.get_json_object(wanted, "$.value[0]").cast("int"))
    same_time = F.unix_millis("timestamp") == F.get_json_object(wanted, "$.timestamp").cast("long")
    return F.when(same_key & same_size & same_time & (F.col("attempt") == 1), "acked").otherwise("failed")


def stream(record: Record) -> Iterator[int]:
    """Not a handler at all."""
    yield record.offset


@arrow_handler
def arrow_words(batch: pa.RecordBatch) -> list[str]:
    """Says what the value says."""
    return [value.decode() if value else "acked" for value in batch.column("value").to_pylist()]


@arrow_handler
def arrow_short(batch: pa.RecordBatch) -> list[str]:
    """One too few."""
    return ["acked"] * (batch.num_rows - 1)


@column_handler
def column_words(records: DataFrame) -> Column:
    """Says what the value says."""
    return F.col("value").cast("string")


@column_handler
def column_numbers(records: DataFrame) -> Column:
    """A bad cast is the failure of its row."""
    return F.when(records["value"].cast("string").cast("int") >= 0, "acked")


@column_handler
def column_explodes(records: DataFrame) -> Column:
    """Two rows of each."""
    return F.explode(F.array(F.lit("acked"), F.lit("acked")))


@column_handler
def column_not_a_column(records: DataFrame) -> DataFrame:
    """Something else."""
    return records


def dies_once(record: Record) -> None:
    """Writes each call down, and kills its process at offset 700, the first time."""
    folder = Path(os.environ["DIES_ONCE"])
    with (folder / "calls").open("a") as calls:
        calls.write(f"{record.offset}\n")
    died = folder / "died"
    if record.offset == 700 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def by_deed(record: Record) -> None:
    """Kills or hangs its process."""
    word = record.value.decode()
    if word == "segfault":
        ctypes.string_at(0)
    if word == "hang":
        ctypes.PyDLL(None).sleep(600)
    if word == "fail":
        raise ValueError(f"can't digest {record.value!r} of {record.key!r}")


@arrow_handler
def arrow_by_deed(batch: pa.RecordBatch) -> list[str]:
    """The same for a batch."""
    for row in batch.to_pylist():
        by_deed(Record(**row))
    return ["acked"] * batch.num_rows


@column_handler
def column_raises(records: DataFrame) -> Column:
    """An expression that fails its task, quoting the record."""
    return F.raise_error(F.concat(F.lit("can't digest "), F.col("value").cast("string"), F.col("key").cast("string")))
