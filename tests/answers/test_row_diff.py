"""`ackline diff --rows`: what two lanes have made of the same records, as rows of an output table (S87)."""

from collections import Counter
from decimal import Decimal
from math import nan
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackline.answers.row_diff import RowDiff, _compare, comparable, diff_rows
from ackline.errors import ConfigError, FatalError
from ackline.ledger.offsets import OffsetRange, TopicPartition, arrays_of
from ackline.ledger.turns import TurnKind
from ackline.outputs import lane_rows
from ackline.outputs.output_table import OutputTable
from tests.backfill.shadow_lane import order, shadow, shop
from tests.outputs.test_turn import away
from tests.worker.disk_lane import DiskBackfill, DiskLane

TP = TopicPartition("orders", 0)
V2 = "backfill-v2"


def diff(lane: DiskLane, before: str = "live", after: str = V2, table: str = "prices") -> RowDiff:
    return diff_rows(lane.adapters(), table, before, after)


def counts(found: RowDiff) -> tuple[int, int, list[int], dict[str, int]]:
    return found.same, found.changed, found.only, dict(found.columns)


def test_s87_the_diff_names_the_changed_columns_and_the_records() -> None:
    with shop() as lane:
        shadow(lane).run()
        found = diff(lane)
        assert counts(found) == (1, 2, [2, 0], {"price": 2}), "3 is dead and 4 skipped in the shadow, without rows"
        assert [(each.tp, each.offset, each.columns) for each in found.examples] == [
            (TP, 0, ("price",)), (TP, 2, ("price",)),
        ]  # fmt: skip
        back = diff(lane, V2, "live")
        assert (back.same, back.changed, back.only) == (1, 2, [0, 2])
        assert "1.01" not in repr(found), "an error that quotes it shows no payload"


def test_what_where_leaves_out_is_not_compared_because_its_rows_stay() -> None:
    with shop(decode={"value": "json"}, handler="tests.worker.disk_handlers:emit") as lane:
        shadow(lane, handler=None, where="value.id < 2").run()
        assert counts(diff(lane))[:3] == (2, 0, [0, 0])


def test_only_records_that_both_lanes_have_settled_are_compared() -> None:
    with shop() as lane:
        shadow(lane, "v2", "orders:0:1-3").run()
        lane.produce(order(5, "1"))
        lane.run()
        assert counts(diff(lane)) == (1, 1, [0, 0], {"price": 1})


def test_two_shadows_and_a_backfill_that_counts_are_lanes_as_well() -> None:
    with shop() as lane:
        shadow(lane).run()
        shadow(lane, "v1", handler=None).run()
        DiskBackfill(lane, "real", "orders:0:0-2").run()
        assert counts(diff(lane, "backfill-v1", V2)) == (1, 2, [2, 0], {"price": 2})
        assert counts(diff(lane, "backfill-real", V2)) == (1, 1, [0, 0], {"price": 1})
        assert counts(diff(lane, "live", "backfill-real")) == (2, 0, [0, 0], {})


def test_the_newest_epoch_of_a_lane_counts() -> None:
    """A reset handles the records again, and the table has the rows of both epochs."""
    with shop() as lane:
        shadow(lane).run()
        lane.perform(TurnKind.RESET)
        lane.run()
        assert counts(diff(lane)) == (1, 2, [2, 0], {"price": 2})


def test_rows_of_another_lane_are_those_of_a_record_whose_rows_it_has_replaced() -> None:
    with shop() as lane:
        shadow(lane).run()
        DiskBackfill(lane, "real", "orders:0:0-2", handler="tests.backfill.prices:first").run()
        table = OutputTable(f"{lane.root}/lane/outputs/prices").open()
        assert table is not None
        table.delete("_lane = 'live' AND _offset < 2")
        assert counts(diff(lane)) == (1, 2, [2, 0], {"price": 2})


def test_blocks_of_offsets_give_what_one_block_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop() as lane:
        lane.produce(*(order(number, f"{number}.005") for number in range(5, 40)))
        lane.run()
        shadow(lane).run()
        whole = diff(lane)
        monkeypatch.setattr(lane_rows, "MOST_ROWS", 1)
        assert diff(lane) == whole
        assert (whole.changed, len(whole.examples)) == (37, 10)


def test_a_table_that_is_unknown_gone_or_waits_for_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop() as lane:
        with pytest.raises(ConfigError, match=r"--rows price: no output table of lane; did you mean prices\?"):
            diff(lane, table="price")
        with pytest.raises(ConfigError, match="has no lane backfill-v2"):
            diff(lane)
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            with pytest.raises(FatalError, match="the table is away"):
                shadow(lane).run()
            with pytest.raises(FatalError, match="`ackline backfill lane --id v2` publishes them"):
                diff(lane)
        shadow(lane).run()
        assert diff(lane, table=f"file://{lane.root}/lane/outputs/prices").same == 1
        OutputTable(f"{lane.root}/lane/outputs/prices__v2").storage.remove_tree()
        with pytest.raises(ConfigError, match=r"there is no table at .*prices__v2, where backfill-v2 has its rows"):
            diff(lane)


def test_a_column_that_one_table_alone_has_is_a_changed_column() -> None:
    with shop() as lane:
        shadow(lane).run()
        rows = pa.table({"_topic": ["x"], "rebate": [1]})
        write_deltalake(f"{lane.root}/lane/outputs/prices__v2", rows, mode="append", schema_mode="merge")
        assert counts(diff(lane)) == (0, 3, [2, 0], {"rebate": 3, "price": 2})


# ---- the comparison -------------------------------------------------------------------------------------------------


def compared(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> RowDiff:
    found = RowDiff()
    tables = [
        pa.table({"_offset": pa.array([1] * len(rows), pa.int64())}
                 | {name: [row[name] for row in rows] for name in rows[0]})
        for rows in (before, after)
    ]  # fmt: skip
    _compare(found, TP, arrays_of([OffsetRange(0, 9)]), tables)
    return found


@pytest.mark.parametrize(("before", "after"), [
    ([{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]),
    ([{"a": nan}], [{"a": nan}]),
    ([{"a": 0.0}], [{"a": -0.0}]),
    ([{"a": None}], [{"a": None}]),
    ([{"a": {"x": [1.5, nan], "y": None}}], [{"a": {"y": None, "x": [1.5, nan]}}]),
    ([{"a": Decimal("1.50")}], [{"a": Decimal("1.5")}]),
    ([{"a": 1}], [{"a": 1.0}]),
])  # fmt: skip
def test_rows_that_mean_the_same_are_the_same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    assert compared(before, after) == RowDiff(same=1)


@pytest.mark.parametrize(("before", "after", "columns"), [
    ([{"a": 1, "b": 1}], [{"a": 1, "b": None}], {"b": 1}),
    ([{"a": 1, "b": 1}, {"a": 2, "b": 2}], [{"a": 1, "b": 1}, {"a": 2, "b": 3}], {"b": 1}),
    ([{"a": 1, "b": 1}], [{"a": 1, "b": 1}] * 2, {"a": 1, "b": 1}),
    ([{"a": {"x": 1}}], [{"a": {"x": 2}}], {"a": 1}),
    ([{"a": nan}], [{"a": 1.0}], {"a": 1}),
    ([{"a": b"1"}], [{"a": "1"}], {"a": 1}),
    ([{"a": 1, "b": 2}, {"a": 2, "b": 1}], [{"a": 1, "b": 1}, {"a": 2, "b": 2}], {"b": 1}),
])  # fmt: skip
def test_other_rows_are_a_changed_record_with_the_columns_whose_values_differ(
    before: list[dict[str, Any]], after: list[dict[str, Any]], columns: dict[str, int]
) -> None:
    found = compared(before, after)
    assert (found.same, found.changed, found.columns) == (0, 1, Counter(columns))


def test_a_value_is_compared_by_what_it_means() -> None:
    assert comparable([1, {"b": nan, "a": (2,)}]) == comparable([1.0, {"a": [2], "b": nan}])
