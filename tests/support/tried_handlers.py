"""Handlers that are tried: each fails, emits or answers in one way."""

import json
from collections.abc import Iterator

import pyarrow as pa

from ackline import Dead, Emit, InFlight, Record, Skip, Tuple, arrow_handler, column_handler


def price(record: Record) -> None:
    """Fails without a price, and quotes what it was given."""
    order = json.loads(record.value)
    if "price" not in order:
        raise ValueError(f"no price in {record.value.decode()}")
    print("priced", order["price"])


def split(record: Record) -> Iterator[Emit]:
    for item in json.loads(record.value)["items"]:
        yield Emit(item, stream="items", key="all")


def total(tuples: tuple[Tuple, ...]) -> Iterator[Emit]:
    yield Emit({"total": sum(each.value for each in tuples)})


def at_least_ten(given: Tuple) -> None:
    if given.value["total"] < 10:
        raise LookupError("too few")


def hand_on(record: Record) -> InFlight:
    assert record.token
    return InFlight(timeout="30s")


def bury(record: Record) -> None:
    raise Dead("unknown currency")


def pass_over(record: Record) -> None:
    raise Skip("not mine")


def decoded(record: Record) -> None:
    assert record.value == {"n": 1}, "another value"
    assert (record.key, record.headers) == ("k", (("trace", b"t-1"),))
    assert (record.topic, record.offset, record.attempt) == ("orders", 41, 3)


def is_big(record: Record) -> bool:
    return len(record.value) > 20


@arrow_handler
def batch(records: pa.RecordBatch) -> list[str]:
    return ["acked" if value == b"good" else "failed" for value in records["value"].to_pylist()]


@column_handler
def column(records: object) -> object:
    raise AssertionError("only Spark calls it")


def quote_attempt(record: Record) -> None:
    raise RuntimeError(f"attempt {record.attempt}")
