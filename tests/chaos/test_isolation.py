"""A handler kills or hangs its process, or answers invalidly: its records fail, no others (faults 11 to 13)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.errors import TransientError
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Value, all_of

DEADLY = "tests.chaos.handlers:deadly"
TREES = "tests.spark.deadly_tree_handlers"
STEPS = [
    {"name": "first", "handler": f"{TREES}:first", "input": "source", "group_by": "key"},
    {"name": "meet", "handler": f"{TREES}:meet", "input": "first", "group_by": "key", "join": True},
]
COUNTS = [{"from": "meet", "table": "counts"}]


def error_classes(lane: Lab) -> dict[tuple[int, int], str]:
    """Returns the error class of each (offset, attempt) that has one."""
    rows = lane.table("outcomes")
    return {(row["offset"], row["attempt"]): row["error_class"] for row in rows if row["error_class"]}


def test_a_segfault_and_a_hang_fail_their_records_and_are_tried_again(lab: MakeLab) -> None:
    """Faults 11 and 12, S14: the next run handles exactly those that failed (I5)."""
    lane = lab(handler=DEADLY, handler_isolation="process", record_timeout="2s", retry={"initial_delay": "1m"})
    values: list[Value] = [{}, {"kill": 1}, None, {"hang": 1}, {"fail": 1}, {}]
    lane.produce(*values)
    lane.run()
    assert lane.rows() == [
        Row(offset, 1, {0: "acked", 2: "skipped", 5: "acked"}.get(offset, "failed")) for offset in range(6)
    ]
    assert error_classes(lane) == {(1, 1): "WorkerLost", (2, 1): "Tombstone", (3, 1): "Timeout", (4, 1): "ValueError"}
    assert lane.new_calls() == [(offset, 1) for offset in (0, 1, 3, 4, 5)]
    assert (lane.committed(), lane.pending()) == (1, [1, 3, 4])
    lane.run()
    assert lane.new_calls() == []
    lane.advance_clock(61)
    lane.run()
    assert (lane.new_calls(), lane.committed()) == ([(1, 2), (3, 2), (4, 2)], 6)
    lane.judge(settled=True)


@pytest.mark.deep
def test_a_pipeline_without_isolation_gets_through_by_itself(
    spark_lab: MakeLab, caplog: pytest.LogCaptureFixture
) -> None:
    """Three starts end without outcomes, the fourth finds the record. Its retry is isolated at the first start."""
    lane = spark_lab(handler=DEADLY, retry={"initial_delay": "0s", "max_retries": 1})
    lane.produce_records(6, {2: {"kill": -1}})
    for _ in range(3):
        with pytest.raises(TransientError):
            lane.run()
        assert (lane.table("outcomes"), lane.committed()) == ([], None)
    assert "process of its own" not in caplog.text
    lane.run()
    assert "started 3 times without outcomes; a process of its own runs the handler" in caplog.text
    assert lane.rows() == sorted([*all_of("acked", [0, 1, 3, 4, 5]), Row(2, 1, "failed")])
    assert (error_classes(lane), lane.committed()) == ({(2, 1): "WorkerLost"}, 2)
    lane.new_calls()
    lane.produce_records(2)
    lane.run()
    assert lane.new_calls() == [(2, 2), (6, 1), (7, 1)]
    assert [row for row in lane.rows() if row.offset == 2] == [
        Row(2, 0, "dead"),
        Row(2, 1, "failed"),
        Row(2, 2, "failed"),
    ]
    assert ({row["turn"] for row in lane.table("plans")}, lane.committed()) == ({1, 2}, 8)
    lane.judge(settled=True)


def test_i7_under_at_most_once_nothing_is_called_twice_for_it(lab: MakeLab) -> None:
    lane = lab(handler=DEADLY, guarantee="at_most_once", handler_isolation="process", dead_letter="none")
    lane.produce_records(5, {1: {"kill": -1}, 3: {"kill": -1}})
    lane.run()
    assert lane.new_calls() == [(offset, 1) for offset in range(5)]
    assert (lane.outcomes(), lane.committed()) == ({"acked": 3, "dropped": 2}, 5)
    lane.judge()


def items(*keys: str, **deeds: str) -> dict[str, Any]:
    """A record with an item for each key; `deeds` are what the steps do with the last one."""
    return {"items": [{"key": key, "do": deeds if key == keys[-1] else {}} for key in keys]}


def tree(lab: MakeLab, **settings: Any) -> Lab:
    """A lab whose records are split into items, which go through two steps into a table."""
    lane = lab(handler=f"{TREES}:split", steps=STEPS, outputs=COUNTS, **settings)
    lane.journalled = False  # the journal has a line for each call of a step
    return lane


def output_rows(lane: Lab) -> Counter[tuple[int, Any]]:
    """How often the lab's output table has each offset with its first column."""
    table = DeltaTable(str(Path(lane.audit) / lane.name / "outputs" / "counts")).to_pyarrow_table()
    [name, *_] = (name for name in table.column_names if not name.startswith("_"))
    columns = [table.column(name).to_pylist() for name in ("_offset", name)]
    return Counter(zip(*columns, strict=True))


@pytest.mark.deep
def test_i16_outputs_hold_the_rows_of_records_of_which_no_call_killed_its_process(lab: MakeLab) -> None:
    """Faults 11 and 12. A row of a join is written if one of its records is acked."""
    lane = tree(lab, record_timeout="4s", retry={"initial_delay": "1m"})
    lane.produce(
        items("a"),
        items("b", "c", first="kill"),
        items("d", meet="hang"),
        items("d"),
        items("e", source="segfault"),
        items("f", "g"),
        items("h", source="show secrets"),
    )
    lane.run()
    assert error_classes(lane) == {(1, 1): "WorkerLost", (2, 1): "Timeout", (3, 1): "Timeout", (4, 1): "WorkerLost"}
    assert output_rows(lane) == {(0, 1): 1, (5, 1): 2, (6, 1): 1}
    assert (set(Counter(lane.new_calls()).values()), lane.pending()) == ({1}, [1, 2, 3, 4])


def test_outputs_without_steps_are_isolated_too(lab: MakeLab) -> None:
    lane = lab(
        handler=f"{TREES}:emits_offset",
        outputs=[{"from": "source", "table": "counts"}],
        handler_isolation="process",
        retry={"initial_delay": "1m"},
    )
    lane.produce({}, {"do": {"source": "segfault"}}, {})
    lane.run()
    assert (error_classes(lane), output_rows(lane)) == ({(1, 1): "WorkerLost"}, {(0, 0): 1, (2, 2): 1})
    assert lane.new_calls() == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.deep
def test_a_tree_without_isolation_gets_through_by_itself(spark_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """Fault 11. Three starts end without outcomes, the fourth finds the record. Its retry, for which the class comes
    from a step, is isolated at the first start."""
    lane = tree(spark_lab, retry={"initial_delay": "0s", "max_retries": 1}, dead_letter="none")
    lane.produce(items("a"), items("b", "c", meet="kill"), items("d"))
    for _ in range(3):
        with pytest.raises(TransientError):
            lane.run()
        assert (lane.table("outcomes"), lane.committed()) == ([], None)
    lane.run()
    assert "started 3 times without outcomes; a process of its own runs the handler" in caplog.text
    assert (error_classes(lane), lane.committed()) == ({(1, 1): "WorkerLost"}, 1)
    caplog.clear()
    lane.run()
    assert "a record again that has killed its process; a process of its own runs the handler" in caplog.text
    assert [row for row in lane.rows() if row.offset == 1] == [
        Row(1, 0, "dead"),
        Row(1, 1, "failed"),
        Row(1, 2, "failed"),
    ]
    assert (output_rows(lane), lane.committed()) == ({(0, 1): 1, (2, 1): 1}, 3)


@pytest.mark.parametrize(
    "isolation", [{"handler_isolation": "process"}, pytest.param({"record_timeout": "4s"}, marks=pytest.mark.deep)]
)
def test_i7_under_at_most_once_no_call_of_a_step_is_made_twice(lab: MakeLab, isolation: dict[str, str]) -> None:
    lane = tree(lab, guarantee="at_most_once", dead_letter="none", **isolation)
    lane.produce(items("a"), items("b", "c", first="kill"), items("d", meet="segfault"), items("e", source="exit3"))
    lane.run()
    assert (lane.outcomes(), set(Counter(lane.new_calls()).values())) == ({"acked": 1, "dropped": 3}, {1})
    assert lane.committed() == 4


INVALID = ["one_too_few", "one_too_many", "nulls", "foreign_offsets"]


def test_fault_13_an_answer_that_is_not_one_outcome_a_row_acks_nothing(lab: MakeLab) -> None:
    """Neither fresh records nor retries are acked; the handler gets all of them again once it is repaired."""
    lane = lab(retry={"initial_delay": "0s", "period": "0s", "max_retries": len(INVALID)})
    lane.produce_records(4)
    lane.journalled = False
    for handler in INVALID:
        lane.configure(handler=f"tests.chaos.handlers:{handler}")
        lane.run()
        assert (lane.committed(), list(lane.outcomes())) == (0, ["failed"])
    wanted = [Row(offset, attempt, "failed") for offset in range(4) for attempt in range(1, len(INVALID) + 1)]
    assert (lane.rows(), {row["error_class"] for row in lane.table("outcomes")}) == (wanted, {"InvalidOutcome"})
    lane.judge()
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert lane.new_calls() == [(offset, len(INVALID) + 1) for offset in range(4)]
    assert (lane.rows(), lane.committed()) == (sorted([*wanted, *all_of("acked", range(4), len(INVALID) + 1)]), 4)
    lane.judge(settled=True)
