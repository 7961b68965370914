"""The demo's shop: the same orders for the same seed, and output tables that are compared with them row by row."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackline.handler import Emit, Record, Tuple
from ackline.local.demo_report import REJECTED, TOTALS, prove_outputs
from ackline.local.events import OrderEvent, OrderKind, expected_rows, shop_orders
from handlers.shop import price, split, total

ORDERS = list(shop_orders(400))


def run_steps(event: OrderEvent, attempt: int) -> Iterator[Emit]:
    """Yields what the steps of the pipeline emit to its outputs for one order."""
    record = Record("shop.orders", 0, 0, datetime(2026, 3, 2, tzinfo=UTC), event.key, event.value, (), attempt)
    priced = []
    for item in split(record):
        for emitted in price(Tuple(item.value, item.key, item.stream, "source", ())):
            if emitted.stream == "rejected":
                yield emitted
            else:
                priced.append(Tuple(emitted.value, emitted.key, emitted.stream, "price", ()))
    yield from total(priced)


def test_the_same_seed_gives_the_same_orders_of_several_items() -> None:
    assert list(shop_orders(400)) == ORDERS
    assert list(shop_orders(400, 1)) != ORDERS
    sizes = {len(json.loads(event.value or b"")["items"]) for event in ORDERS}
    assert {1, 2, 3, 4, 5} <= sizes


def test_each_order_ends_as_its_kind_says_and_an_acked_one_emits_the_rows_that_are_expected() -> None:
    for event in ORDERS:
        if event.kind is OrderKind.PLAIN:
            emitted = list(run_steps(event, 1))
        else:
            error = TimeoutError if event.kind is OrderKind.FLAKY else ValueError
            with pytest.raises(error):
                list(run_steps(event, 1))
            if event.kind is OrderKind.REFUSED:
                with pytest.raises(error):
                    list(run_steps(event, 2))
                assert not expected_rows([event]).totals
                continue
            emitted = list(run_steps(event, 2))
        expected = expected_rows([event])
        assert list(expected.totals) == [tuple(emitted[-1].value.values())]
        assert list(expected.rejected.elements()) == [tuple(row.value.values()) for row in emitted[:-1]]
    assert expected_rows(ORDERS).rejected


def write_tables(folder: Path, totals: list[tuple[object, ...]]) -> None:
    expected = expected_rows(ORDERS)
    for table, names, rows in (
        (TOTALS, ["order_id", "items", "amount"], totals),
        (REJECTED, ["order_id", "product"], list(expected.rejected)),
    ):
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        write_deltalake(f"{folder}/shop/outputs/{table}", pa.table(columns, names=names))


Rows = list[tuple[object, ...]]


@pytest.mark.parametrize(("change", "differences"), [
    (lambda rows: rows, []),
    (lambda rows: rows[1:], [f"{TOTALS}: 1 rows are missing"]),
    (lambda rows: [*rows, rows[0]], [f"{TOTALS}: 1 rows should not be there"]),
    (lambda rows: [(rows[0][0], rows[0][1], 1), *rows[1:]],
     [f"{TOTALS}: 1 rows are missing", f"{TOTALS}: 1 rows should not be there"]),
])  # fmt: skip
def test_a_row_that_is_missing_wrong_or_there_again_is_a_difference(
    tmp_path: Path, change: Callable[[Rows], Rows], differences: list[str]
) -> None:
    write_tables(tmp_path, change(list(expected_rows(ORDERS).totals)))
    proof = prove_outputs(str(tmp_path), "shop", ORDERS)
    assert [sentence.partition(", such as")[0] for sentence in proof.differences] == differences


def test_without_tables_all_rows_are_missing(tmp_path: Path) -> None:
    proof = prove_outputs(str(tmp_path), "shop", ORDERS)
    assert (proof.rows, len(proof.differences)) == ({TOTALS: 0, REJECTED: 0}, 2)
