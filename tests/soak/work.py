"""The handlers of the fleet: each does what the value of its record orders, in its tier.

`{"fail": n}` fails attempts up to n (−1: all), `{"skip": true}` and `{"dead": true}` settle at once; other records are
acked. `once` also writes each call into a journal, because at most once the checker counts the calls (I7).
"""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline import Emit, Record, arrow_handler, column_handler
from tests.support import journal


def handle(record: Record) -> None:
    if record.value is not None:
        journal.follow_orders(json.loads(record.value), record.attempt)


def once(record: Record) -> None:
    """Writes the call into the journal of its topic, and follows the record's orders."""
    journal.write(record.topic, record.partition, record.offset, record.attempt)
    handle(record)


@arrow_handler
def batch(records: pa.RecordBatch) -> list[str]:
    values, attempts = records.column("value").to_pylist(), records.column("attempt").to_pylist()
    return [_outcome(json.loads(value), attempt) for value, attempt in zip(values, attempts, strict=True)]


def _outcome(orders: dict[str, Any], attempt: int) -> str:
    if orders.get("skip"):
        return "skipped"
    if orders.get("dead"):
        return "dead"
    fails = orders.get("fail", 0)
    return "failed" if fails < 0 or attempt <= fails else "acked"


@column_handler
def column(records: DataFrame) -> Column:
    """Returns the outcome that each record orders, found in the JVM."""
    text = records["value"].cast("string")
    fails = F.coalesce(F.get_json_object(text, "$.fail").cast("int"), F.lit(0))
    return (
        F.when(F.get_json_object(text, "$.skip") == "true", "skipped")
        .when(F.get_json_object(text, "$.dead") == "true", "dead")
        .when((fails < 0) | (records["attempt"] <= fails), "failed")
        .otherwise("acked")
    )


def rows(record: Record) -> Iterator[Emit]:
    """Emits the fields of the order to a table. Fields that come later become columns."""
    orders = json.loads(record.value or b"{}")
    yield Emit({name: value for name, value in orders.items() if name not in ("fail", "skip", "dead")})
    journal.follow_orders(orders, record.attempt)
