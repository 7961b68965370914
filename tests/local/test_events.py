"""The demo's events are the same for the same seed, and the example handler does with each what its kind promises."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from ackline.handler import Emit, Record, Tuple, load_handler
from ackline.local.demo_report import prove_outputs
from ackline.local.events import (
    OUTPUTS,
    REJECTED,
    TOTALS,
    OrderCounts,
    OrderEvent,
    OrderKind,
    expected_rows,
    orders,
    shop_orders,
)
from handlers.shop import price, split, total

HANDLE = load_handler("handlers.orders:handle")
PIPELINE = Path(__file__).parents[2] / "include" / "pipelines" / "orders.yaml"


def handle(value: bytes | None, attempt: int = 1) -> None:
    HANDLE(Record("orders", 0, 0, datetime(2026, 3, 2, tzinfo=UTC), b"key", value, (), attempt))


def failures(event: OrderEvent) -> list[str | None]:
    """The exception of each of at most four attempts, up to the first success, which is None."""
    results: list[str | None] = []
    for attempt in range(1, 5):
        try:
            handle(event.value, attempt)
        except Exception as error:
            results.append(type(error).__name__)
        else:
            return [*results, None]
    return results


def test_the_same_seed_gives_the_same_events() -> None:
    assert list(orders(500, 7)) == list(orders(500, 7))
    assert list(orders(500, 7)) != list(orders(500, 8))


def test_each_kind_has_its_share() -> None:
    assert Counter(event.kind for event in orders(20_000, 1)) == {
        OrderKind.PLAIN: 19_400,
        OrderKind.FLAKY: 200,
        OrderKind.TOMBSTONE: 200,
        OrderKind.REFUSED: 100,
        OrderKind.MALFORMED: 100,
    }


def test_the_handler_treats_each_event_as_its_kind_promises() -> None:
    results: dict[OrderKind, set[tuple[str | None, ...]]] = {}
    for event in orders(4_000, 3):
        if event.value is not None:
            results.setdefault(event.kind, set()).add(tuple(failures(event)))
    assert results == {
        OrderKind.PLAIN: {(None,)},
        OrderKind.FLAKY: {("TimeoutError", "TimeoutError", None)},
        OrderKind.REFUSED: {("ValueError",) * 4},
        OrderKind.MALFORMED: {("JSONDecodeError",) * 4},
    }


def test_an_order_that_does_not_add_up_fails() -> None:
    order = json.loads(next(iter(orders(1))).value or b"")
    with pytest.raises(ValueError, match="items and amount differ"):
        handle(json.dumps({**order, "amount": order["amount"] + 1}).encode())


def test_events_look_like_orders_of_about_190_bytes_and_tombstones_erase_earlier_ones() -> None:
    events = list(orders(2_000, 5))
    values = [event.value for event in events if event.value is not None and event.kind is not OrderKind.MALFORMED]
    assert 170 <= mean(len(value) for value in values) <= 210
    keys: set[bytes] = set()
    for event in events:
        assert (event.key in keys) == (event.kind is OrderKind.TOMBSTONE)
        keys.add(event.key)
        if event.kind is OrderKind.PLAIN:
            assert json.loads(event.value or b"")["order_id"].encode() == event.key


def test_counts_predict_the_outcomes_of_the_records() -> None:
    counts = OrderCounts(
        {OrderKind.PLAIN: 10, OrderKind.FLAKY: 2, OrderKind.REFUSED: 1, OrderKind.MALFORMED: 3, OrderKind.TOMBSTONE: 4}
    )
    assert (counts.records, counts.acked, counts.dead, counts.skipped) == (20, 12, 4, 4)


def test_the_demos_pipeline_retries_long_enough_for_flaky_events_and_briefly_enough_for_a_demo() -> None:
    pipeline = yaml.safe_load(PIPELINE.read_text())
    assert (pipeline["name"], pipeline["kafka"]["topics"]) == ("orders", ["orders"])
    assert load_handler(pipeline["handler"]) is HANDLE
    assert pipeline["dead_letter"] == {"topic": "orders.dead"}
    assert pipeline["retry"]["max_retries"] == 3


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
                assert not expected_rows([event])[TOTALS]
                continue
            emitted = list(run_steps(event, 2))
        expected = expected_rows([event])
        assert list(expected[TOTALS]) == [tuple(emitted[-1].value.values())]
        assert list(expected[REJECTED].elements()) == [tuple(row.value.values()) for row in emitted[:-1]]
    assert expected_rows(ORDERS)[REJECTED]


def write_tables(folder: Path, totals: list[tuple[object, ...]]) -> None:
    for table, rows in {TOTALS: totals, REJECTED: list(expected_rows(ORDERS)[REJECTED])}.items():
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        write_deltalake(f"{folder}/shop/outputs/{table}", pa.table(columns, names=list(OUTPUTS[table])))


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
    write_tables(tmp_path, change(list(expected_rows(ORDERS)[TOTALS])))
    _, found = prove_outputs(str(tmp_path), "shop", ORDERS)
    assert [sentence.partition(", such as")[0] for sentence in found] == differences


def test_without_tables_all_rows_are_missing(tmp_path: Path) -> None:
    rows, differences = prove_outputs(str(tmp_path), "shop", ORDERS)
    assert (rows, len(differences)) == ({TOTALS: 0, REJECTED: 0}, 2)
