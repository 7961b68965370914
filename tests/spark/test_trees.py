"""Tuple trees in real Spark jobs: a record is acked once all that came of it is."""

import json
from typing import Any

from ackline.spark.job import ReplayJob
from ackline.topology import StepBlock, Topology, topology
from tests.spark.lab import Lab

HANDLERS = "tests.spark.tree_handlers"


def steps(*blocks: dict[str, Any]) -> Topology:
    """A topology of steps whose handlers are functions of `tests.spark.tree_handlers`."""
    return topology(
        [StepBlock.model_validate({**block, "handler": f"{HANDLERS}:{block['handler']}"}) for block in blocks]
    )


def ran(lab: Lab, records: list[list[dict[str, Any]]], of: Topology, **settings: Any) -> ReplayJob:
    """Runs a job over records with these items."""
    tp = lab.put(*(json.dumps(items).encode() for items in records))
    return lab.ran(f"{HANDLERS}:split", {tp: (0, len(records))}, topology=of, **settings)


def test_s60_a_record_is_acked_when_every_child_and_theirs_are(lab: Lab) -> None:
    of = steps(
        {"name": "first", "handler": "work", "input": "source", "group_by": "key"},
        {"name": "second", "handler": "end", "input": "first", "group_by": "key"},
    )
    items = [{"key": "a"}, {"key": "b"}, {"key": "c"}]
    job = ran(lab, [[], items, [*items, {"key": "d", "do": "fail"}], items], of)
    assert lab.outcomes(job) == [
        (0, "acked", None),
        (1, "acked", None),
        (2, "failed", "ValueError"),
        (3, "acked", None),
    ]
    assert [row["error_message"] for row in lab.rows(job)][2] == "step first: broken; 3 siblings acked"
