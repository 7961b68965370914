"""Handlers and filters for the tests of streams: each fails, quoting the record, if that is not what it expects."""

import pyarrow as pa

from ackline import Record, arrow_handler


def order(record: Record) -> None:
    """Takes JSON orders with a text key."""
    assert record.key == f"key-{record.value['n']}", record


def large(record: Record) -> bool:
    """Whether an order is large."""
    return bool(record.value["n"] >= 8)


def large_order(record: Record) -> None:
    """Fails on the first attempt, quoting the customer."""
    assert record.value["n"] >= 8, record
    if record.attempt == 1:
        raise ValueError(f"no large orders for {record.value['customer']}")


def any_note(record: Record) -> bool:
    """Takes all."""
    return True


@arrow_handler
def notes(batch: pa.RecordBatch) -> list[str]:
    """Takes text in a column."""
    assert batch.schema.field("value").type == pa.string()
    return ["skipped" if value == "skip" else "acked" for value in batch.column("value").to_pylist()]
