"""The proof of the demo's output tables: what they hold, compared with what was produced."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from ackline.local.order_events import OrderEvent
from ackline.local.shop_events import OutputRows, expected_rows

TOTALS, REJECTED = "order_totals", "rejected_items"
_COLUMNS = {TOTALS: ("order_id", "items", "amount"), REJECTED: ("order_id", "product")}
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class OutputProof:
    """How many rows each table has, and a sentence for each difference from what was produced."""

    rows: dict[str, int]
    differences: list[str]


def prove_outputs(audit: str, pipeline: str, produced: Sequence[OrderEvent]) -> OutputProof:
    """Compares the output tables of a settled pipeline with the rows that `produced` must give.

    It reads the tables as any user can, and computes the expected rows without the pipeline's handlers.
    """
    found = OutputRows(*(_read(f"{audit}/{pipeline}/outputs/{table}", _COLUMNS[table]) for table in _COLUMNS))
    expected = expected_rows(produced)
    differences = [
        *_differences(TOTALS, expected.totals, found.totals),
        *_differences(REJECTED, expected.rejected, found.rejected),
    ]
    return OutputProof({TOTALS: found.totals.total(), REJECTED: found.rejected.total()}, differences)


def _read(folder: str, columns: Sequence[str]) -> Counter[tuple[Any, ...]]:
    """Returns how often each row is in a table; no rows if the table does not exist."""
    if not DeltaTable.is_deltatable(folder):
        return Counter()
    table = DeltaTable(folder).to_pyarrow_table(columns=list(columns))
    return Counter(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _differences(table: str, expected: Counter[tuple[Any, ...]], found: Counter[tuple[Any, ...]]) -> list[str]:
    """Returns a sentence for rows that are missing, and one for rows that are wrong or there again."""
    return [
        f"{table}: {rows.total():,} rows {what}, such as {', '.join(map(str, list(rows)[:_SHOWN]))}"
        for what, rows in (("are missing", expected - found), ("should not be there", found - expected))
        if rows
    ]
