"""Columns of an output table that are inferred, on a real broker and Spark."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.test_outputs import HANDLERS, item, order, rows_of


def test_a_field_of_one_task_alone_is_a_column_of_the_table_that_the_turn_creates(lab: MakeLab) -> None:
    outputs = [{"from": f"source.{name}", "table": name} for name in ("items", "counts")]
    lane = lab(handler=f"{HANDLERS}:split", outputs=outputs, partitions=2)
    lane.journalled = False
    lane.produce(order(0, item("a"), item("b", note=None)))
    lane.produce(order(1, item("c", gift={"to": "Ada"}, price=1.5)), partition=1)
    lane.run()
    rows = [{name: row[name] for name in row if not name.startswith("_")} for row in rows_of(lane, "items")]
    assert sorted(rows, key=lambda row: row["product"]) == [
        {"order": "o0", "product": "a", "pieces": 1, "gift": None, "price": None},
        {"order": "o0", "product": "b", "pieces": 1, "gift": None, "price": None},
        {"order": "o1", "product": "c", "pieces": 1, "gift": '{"to":"Ada"}', "price": 1.5},
    ]
    lane.produce(order(2, item("d", late="no column")))
    lane.configure(breaker=None)
    lane.run()
    assert [row["error_class"] for row in lane.table("outcomes") if row["error_class"]] == ["BadOutput"]
