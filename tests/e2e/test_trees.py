"""Pipelines with steps, run turn by turn: retries of whole trees, dead letters, joins that hold, the breaker."""

import json
from typing import Any

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row

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


def encoded(items: list[dict[str, Any]]) -> bytes:
    """The value of a record with these items."""
    return json.dumps(items).encode()
