"""Trees that are deep, that meet again, and whose rows come twice, in pipelines on a real broker, Spark and Delta."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from ackline.worker.trees.acker import by_block
from ackline.worker.trees.rows import MANIFEST, ROWS_DDL
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row

HANDLERS = "tests.spark.tree_handlers"
ITEMS: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}, {"key": "c"}]
DEEP: list[dict[str, Any]] = [
    {"name": "one", "handler": f"{HANDLERS}:spread", "input": "source", "group_by": "key"},
    {"name": "two", "handler": f"{HANDLERS}:spread", "input": "one", "group_by": "key"},
    {"name": "three", "handler": f"{HANDLERS}:hold", "input": "two", "group_by": "key", "join": True},
]
"""A record of three items becomes 3, 9 and 27 tuples. Each step gets its tuples over a shuffle of its own."""
AGGREGATE: list[dict[str, Any]] = [
    {"name": "left", "handler": f"{HANDLERS}:work", "input": "source", "group_by": "key"},
    {"name": "right", "handler": f"{HANDLERS}:work", "input": "source"},
    {"name": "four", "handler": f"{HANDLERS}:hold_less_than_four", "input": ["left", "right"], "group_by": "key",
     "join": True},
]  # fmt: skip


def tree_lab(lab: MakeLab, steps: list[dict[str, Any]], **settings: Any) -> Lab:
    """A lab whose records are split into items, which these steps handle."""
    lane = lab(handler=f"{HANDLERS}:split", steps=steps, **settings)
    lane.journalled = False  # the journal has a line for each call of a step
    return lane


def encoded(*items: dict[str, Any]) -> bytes:
    """The value of a record with these items."""
    return json.dumps(items).encode()


def tree_of(lane: Lab, offset: int) -> Any:
    """What `explain` shows of the newest attempt at a record: acked, failed and missing tuples by step."""
    tree = lane.ackline_json("explain", lane.name, lane.topic, "0", str(offset))["events"][-1]["tree"]
    return tree and {step: tuple(numbers.values()) for step, numbers in tree.items()}


def test_s60_s62_a_tree_of_fan_out_3_and_depth_3_is_one_ack_and_one_edge_without_an_ack_fails_its_record_by_name(
    lab: MakeLab,
) -> None:
    """All records have the same keys, so each call of the join has tuples of all of them."""
    lane = tree_lab(lab, DEEP, retry={"max_retries": 5, "initial_delay": "1h"})
    lane.produce(encoded(*ITEMS), encoded({"key": "a", "do": "hold"}, *ITEMS[1:]), encoded(*ITEMS), encoded())
    lane.run()
    assert lane.rows() == [Row(0, 1, "acked"), Row(1, 1, "failed"), Row(2, 1, "acked"), Row(3, 1, "acked")]
    assert (lane.committed(), lane.pending()) == (1, [1])
    [failed] = [row for row in lane.table("outcomes") if row["outcome"] == "failed"]
    assert (failed["error_class"], failed["error_message"]) == ("Unacked", "step three: did not ack 1 tuple")
    assert tree_of(lane, 1) == {"one": (3, 0, 0), "two": (9, 0, 0), "three": (26, 0, 1)}
    steps = lane.ackline_json("status", lane.name)["steps"]
    assert [(step["step"], step["executed"], step["emitted"]) for step in steps] == [
        ("source", 4, 9), ("one", 9, 27), ("two", 27, 81), ("three", 81, 0),
    ]  # fmt: skip


def test_s63_fault_38_rows_of_acks_and_emits_that_come_twice_change_nothing(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acker gets each row of events twice, as if a task that sends them had run twice."""

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            events = pc.and_(pc.is_null(batch.column("step")), pc.not_equal(batch.column("tp"), MANIFEST))
            yield batch.filter(events)

    def of_rows_twice(rows: DataFrame, parts: int) -> DataFrame:
        return by_block(rows.mapInArrow(twice, ROWS_DDL), parts)

    monkeypatch.setattr("ackline.spark.lineage.by_block", of_rows_twice)
    lane = tree_lab(lab, DEEP, dead_letter="none", retry={"max_retries": 0})
    lane.produce(encoded(*ITEMS), encoded({"key": "a", "do": "hold"}), encoded())
    lane.run()
    assert lane.rows() == [Row(0, 1, "acked"), Row(1, 0, "dead"), Row(1, 1, "failed"), Row(2, 1, "acked")]
    assert tree_of(lane, 1) is None, "the decision comes last"
    [failed] = [row for row in lane.table("outcomes") if row["outcome"] == "failed"]
    assert failed["error_message"] == "step three: did not ack 1 tuple"
    assert lane.committed() == 3
    lane.judge(settled=True)


def test_s66_an_aggregate_of_4_over_2_branches_acks_0_records_after_the_first_feed_and_2_after_the_second(
    lab: MakeLab,
) -> None:
    lane = tree_lab(lab, AGGREGATE, retry={"max_retries": 5, "initial_delay": "0s", "period": "0s"})
    lane.produce(encoded({"key": "a"}))
    lane.run()
    assert lane.rows() == [Row(0, 1, "failed")]
    assert tree_of(lane, 0) == {"left": (1, 0, 0), "right": (1, 0, 0), "four": (0, 0, 2)}
    assert lane.committed() == 0
    lane.advance_clock(1)
    lane.produce(encoded({"key": "a"}))
    lane.run()
    assert lane.rows() == [Row(0, 1, "failed"), Row(0, 2, "acked"), Row(1, 1, "acked")]
    assert lane.committed() == 2
    lane.judge(settled=True)
