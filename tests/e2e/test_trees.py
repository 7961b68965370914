"""Pipelines with steps, run turn by turn on a real broker and Delta: retries of whole trees, what status and
explain show of them, and trees that are deep, that meet again, and whose rows come twice."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from ackline.spark.lineage import ROWS
from ackline.trees.acker import by_block
from ackline.trees.rows import MANIFEST
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import ROOT, Lab, Row

HANDLERS = "tests.spark.tree_handlers"
STEPS = [
    {"name": "first", "handler": f"{HANDLERS}:work", "input": "source", "group_by": "key"},
    {"name": "meet", "handler": f"{HANDLERS}:join", "input": "first", "group_by": "key", "join": True},
    {"name": "sums", "handler": f"{HANDLERS}:end", "input": "meet.sums"},
]
ITEMS: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}]
THREE: list[dict[str, Any]] = [*ITEMS, {"key": "c"}]


def tree_lab(lab: MakeLab, **settings: Any) -> Lab:
    """A lab whose records are split into items, which two steps handle."""
    lane = lab(handler=f"{HANDLERS}:split", **{"steps": STEPS, **settings})
    lane.journalled = False  # the journal has a line for each call of a step
    return lane


def encoded(items: list[dict[str, Any]]) -> bytes:
    return json.dumps(items).encode()


def test_s61_a_record_whose_tree_fails_is_tried_again_whole_until_it_is_acked_or_dead(lab: MakeLab) -> None:
    lane = tree_lab(lab, retry={"max_retries": 1, "initial_delay": "0s"})
    mends = [*ITEMS, {"key": "c", "do": "fail", "until": 1}]
    never = [{"key": "d", "do": "fail"}]
    lane.produce(*(encoded(items) for items in (ITEMS, mends, never, [])))
    doctor = lane.ackline("doctor", lane.name)
    assert doctor.returncode == 0, doctor.stdout
    assert f"first, by key -> {HANDLERS}:join (join)" in " ".join(doctor.stdout.split())
    lane.run()
    assert lane.committed() == 1
    lane.advance_clock(1)
    lane.run()
    assert lane.committed() == 4
    assert lane.rows() == [
        Row(0, 1, "acked"),
        Row(1, 1, "failed"),
        Row(1, 2, "acked"),
        Row(2, 0, "dead"),
        Row(2, 1, "failed"),
        Row(2, 2, "failed"),
        Row(3, 1, "acked"),
    ]


def test_status_and_explain_show_what_the_steps_did(lab: MakeLab) -> None:
    """Record 0 is acked, record 1 fails in the first step and record 2 emits nothing. Settle runs twice."""
    lane = tree_lab(lab, dead_letter="none", retry={"max_retries": 5, "initial_delay": "1h"})
    before = lane.ackline_json("status", lane.name)
    assert [step["executed"] for step in before["steps"]] == [0, 0, 0, 0]
    assert before["complete_latency_ms"] == {"mean": None, "max": None}
    lane.produce(*(encoded(items) for items in (ITEMS, [*ITEMS, {"key": "c", "do": "fail"}], [])))
    lane.run()
    lane.settle()
    status = lane.ackline_json("status", lane.name)
    names = ("step", "executed", "emitted", "acked", "failed")
    assert [tuple(step[name] for name in names) for step in status["steps"]] == [
        ("source", 3, 5, 2, 1),
        ("first", 5, 4, 4, 1),
        ("meet", 4, 2, 4, 0),
        ("sums", 2, 0, 2, 0),
    ]
    assert all(0 < step["execute_ms"]["mean"] <= step["execute_ms"]["max"] for step in status["steps"])
    assert 0 < status["complete_latency_ms"]["mean"] <= status["complete_latency_ms"]["max"]
    table = lane.ackline("status", lane.name).stdout
    assert "Steps, newest turn with records; complete latency" in table

    acked, failed, empty = (lane.ackline_json("explain", lane.name, lane.topic, "0", str(n)) for n in range(3))
    assert [event["tree"] for event in acked["events"]] == [
        {name: {"acked": 2, "failed": 0, "missing": 0} for name in ("first", "meet", "sums")}
    ]
    assert [event["tree"] for event in empty["events"]] == [None]
    assert [event["tree"] for event in failed["events"]] == [
        {
            "first": {"acked": 2, "failed": 1, "missing": 0},
            "meet": {"acked": 2, "failed": 0, "missing": 0},
            "sums": {"acked": 2, "failed": 0, "missing": 0},
        }
    ]
    text = lane.ackline("explain", lane.name, lane.topic, "0", "1").stdout
    assert (
        "Attempt 1 failed in step first: ValueError; of its 3 tuples at first 2 were acked, 1 failed; all of its 2 "
        "tuples at meet were acked; all of its 2 tuples at sums were acked." in text
    )
    assert (
        "Attempt 1 was acked; all of its 2 tuples at first were acked; all of its 2 tuples at meet were acked; all of "
        "its 2 tuples at sums were acked." in lane.ackline("explain", lane.name, lane.topic, "0", "0").stdout
    )
    assert "Attempt 1 was acked: all of" in lane.ackline("explain", lane.name, lane.topic, "0", "2").stdout


@pytest.mark.deep
def test_debug_logs_the_edges_of_sampled_records_to_the_standard_error_of_the_tasks(lab: MakeLab) -> None:
    lane = tree_lab(lab, debug={"sample": 1})
    lane.produce(encoded([{"key": "secret-key", "note": "secret-value"}]))
    done = lane.ackline_process("run", lane.name, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    lines = [line.partition(" attempt 1: ")[2].partition(",")[0] for line in done.stderr.splitlines() if "edge" in line]
    assert sorted(filter(None, lines)) == [
        "first -> meet acked",
        "first -> meet emitted",
        "meet.sums -> sums acked",
        "meet.sums -> sums emitted",
        "source -> first acked",
        "source -> first emitted",
    ]
    assert "secret" not in done.stderr


# ---- shapes --------------------------------------------------------------------------------------------------------


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


def tree_of(lane: Lab, offset: int) -> Any:
    """What `explain` shows of the newest attempt at a record: acked, failed and missing tuples by step."""
    tree = lane.ackline_json("explain", lane.name, lane.topic, "0", str(offset))["events"][-1]["tree"]
    return tree and {step: tuple(numbers.values()) for step, numbers in tree.items()}


def test_s60_s62_a_tree_of_fan_out_3_and_depth_3_is_one_ack_and_one_edge_without_an_ack_fails_its_record_by_name(
    lab: MakeLab,
) -> None:
    """All records have the same keys, so each call of the join has tuples of all of them."""
    lane = tree_lab(lab, steps=DEEP, retry={"max_retries": 5, "initial_delay": "1h"})
    lane.produce(encoded(THREE), encoded([{"key": "a", "do": "hold"}, *THREE[1:]]), encoded(THREE), encoded([]))
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
    spark_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acker gets each row of events twice, as if a task that sends them had run twice."""

    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            events = pc.and_(pc.is_null(batch.column("step")), pc.not_equal(batch.column("tp"), MANIFEST))
            yield batch.filter(events)

    def of_rows_twice(rows: DataFrame, parts: int) -> DataFrame:
        return by_block(rows.mapInArrow(twice, ROWS), parts)

    monkeypatch.setattr("ackline.spark.lineage.by_block", of_rows_twice)
    lane = tree_lab(spark_lab, steps=DEEP, dead_letter="none", retry={"max_retries": 0})
    lane.produce(encoded(THREE), encoded([{"key": "a", "do": "hold"}]), encoded([]))
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
    lane = tree_lab(lab, steps=AGGREGATE, retry={"max_retries": 5, "initial_delay": "0s", "period": "0s"})
    lane.produce(encoded([{"key": "a"}]))
    lane.run()
    assert lane.rows() == [Row(0, 1, "failed")]
    assert tree_of(lane, 0) == {"left": (1, 0, 0), "right": (1, 0, 0), "four": (0, 0, 2)}
    assert lane.committed() == 0
    lane.advance_clock(1)
    lane.produce(encoded([{"key": "a"}]))
    lane.run()
    assert lane.rows() == [Row(0, 1, "failed"), Row(0, 2, "acked"), Row(1, 1, "acked")]
    assert lane.committed() == 2
    lane.judge(settled=True)
