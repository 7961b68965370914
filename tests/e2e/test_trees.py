"""Pipelines with steps, run turn by turn: retries of whole trees, dead letters, joins that hold, the breaker."""

import json
from typing import Any

import pytest

from ackline.errors import TooManyFailures
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import ROOT, Lab, Row

HANDLERS = "tests.spark.tree_handlers"
STEPS = [
    {"name": "first", "handler": f"{HANDLERS}:work", "input": "source", "group_by": "key"},
    {"name": "meet", "handler": f"{HANDLERS}:join", "input": "first", "group_by": "key", "join": True},
    {"name": "sums", "handler": f"{HANDLERS}:end", "input": "meet.sums"},
]
ITEMS: list[dict[str, Any]] = [{"key": "a"}, {"key": "b"}]


def tree_lab(lab: MakeLab, **settings: Any) -> Lab:
    """A lab whose records are split into items, which two steps handle."""
    lane = lab(handler=f"{HANDLERS}:split", steps=STEPS, **settings)
    lane.journalled = False  # the journal has a line for each call of a step
    return lane


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


def test_a_join_that_holds_a_tuple_fails_its_record_as_unacked_and_the_breaker_does_not_count_it(lab: MakeLab) -> None:
    lane = tree_lab(
        lab,
        retry={"max_retries": 5, "initial_delay": "0s", "by_error": {"Unacked": "never"}},
        breaker={"failure_ratio": 0.1, "min_records": 1},
    )
    lane.produce(encoded([{"key": "a", "do": "hold"}]), encoded(ITEMS))
    lane.run()
    assert [row for row in lane.rows() if row.offset == 0] == [Row(0, 0, "dead"), Row(0, 1, "failed")]
    [failed] = [row for row in lane.table("outcomes") if row["outcome"] == "failed"]
    assert (failed["error_class"], failed["error_message"]) == ("Unacked", "step meet: did not ack 1 tuple")


@pytest.mark.parametrize("record_outcomes", [pytest.param(True, marks=pytest.mark.deep), False])
def test_s46_the_breaker_counts_no_tuple_that_a_join_holds_without_a_guarantee(
    lab: MakeLab, record_outcomes: bool
) -> None:
    lane = tree_lab(
        lab,
        guarantee="no_guarantee",
        record_outcomes=record_outcomes,
        dead_letter="none",
        breaker={"failure_ratio": 0.25, "min_records": 1},
    )
    held, broken = encoded([{"key": "a", "do": "hold"}]), encoded([{"key": "b", "do": "fail"}])
    lane.produce(held, held, held, broken)
    lane.run()
    assert lane.committed() == 4
    assert lane.settled().counts == {"dropped": 4}
    lane.produce(held, held, broken, broken)
    with pytest.raises(TooManyFailures, match="2 of 4 new records failed"):
        lane.run()


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


def test_a_pipeline_without_steps_has_no_figures_of_steps(lab: MakeLab) -> None:
    lane = lab()
    lane.produce({})
    lane.run()
    assert not {"steps", "complete_latency_ms"} & lane.ackline_json("status", lane.name).keys()
    assert "Steps" not in lane.ackline("status", lane.name).stdout


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


def encoded(items: list[dict[str, Any]]) -> bytes:
    """The value of a record with these items."""
    return json.dumps(items).encode()
