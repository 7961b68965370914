"""The figures of steps in real Spark jobs: each counts what its outcome is, wherever the tree ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.settings import OutputTargets
from tests.spark.lab import Lab

HANDLERS = "tests.spark.tree_handlers"
RECORDS: tuple[list[dict[str, Any]], ...] = (
    [{"key": "a"}, {"key": "b"}],
    [{"key": "a", "do": "fail"}, {"key": "b"}],
    [{"key": "a", "do": "skip"}],
    [{"key": "a", "do": "dead"}],
    [{"key": "c", "do": "hold"}],
    [{"key": "a"}, {"key": "a", "n": "no number"}],
    [],
)
"""The items of each record; the last but one has an item that does not fit its table."""


def shop(*steps: dict[str, Any], outputs: tuple[dict[str, Any], ...] = ()) -> Topology:
    rows = {"from": "source", "table": "items", "columns": {"key": "string", "do": "string", "n": "long"}}
    named = ({**step, "handler": f"{HANDLERS}:{step['handler']}"} for step in steps)
    blocks = [OutputBlock.model_validate(output) for output in (rows, *outputs)]
    return topology([StepBlock.model_validate(step) for step in named], blocks)


NEAR = {"name": "work", "handler": "end", "input": "source"}
FAR = {**NEAR, "group_by": "key"}
MEET = {**FAR, "handler": "join", "join": True}
SUMS = {"from": "work.sums", "table": "sums", "columns": {"count": "long"}}


@pytest.mark.parametrize(
    ("of", "acked", "failed", "work"),
    [
        # Without steps nothing follows `do`: the item that does not fit fails its record, and no other one fails.
        (shop(), {0, 1, 2, 3, 4, 6}, {5}, None),
        (shop(NEAR), {0, 4, 6}, {1, 3, 5}, (9, 6, 2)),
        (shop(FAR), {0, 4, 6}, {1, 3, 5}, (9, 6, 2)),
        (shop(MEET, outputs=(SUMS,)), {0, 1, 2, 3, 6}, {4, 5}, (9, 8, 0)),
    ],
    ids=["outputs alone", "a step in the same task", "a step behind an exchange", "a join that holds a tuple"],
)
def test_source_acks_and_times_the_records_that_are_acked_and_no_other(
    lab: Lab, tmp_path: Path, of: Topology, acked: set[int], failed: set[int], work: tuple[int, int, int] | None
) -> None:
    tp = lab.put(*(json.dumps(items).encode() for items in RECORDS))
    columns = {output.number: dict(output.columns or {}) for output in of.all_outputs}
    targets = OutputTargets(TurnId("orders", LIVE, 0, 1), f"{tmp_path}/turn", columns)
    job = lab.job(f"{HANDLERS}:split", {tp: (0, len(RECORDS))}, topology=of, outputs=targets)
    result = lab.run(job)
    rows = lab.rows(job)
    assert {row["offset"] for row in rows if row["outcome"] == "acked"} == acked
    assert {row["offset"] for row in rows if row["outcome"] == "failed"} == failed
    assert next(row["error_class"] for row in rows if row["offset"] == 5) == "BadOutput"
    assert result.steps is not None
    source = result.steps.steps["source"]
    assert (source.executed, source.emitted, source.acked, source.failed) == (7, 9, len(acked), len(failed))
    assert source.execute.count == 7
    assert result.steps.latency.count == len(acked)
    assert result.steps.latency.longest > 0
    numbers = {name: (of.executed, of.acked, of.failed) for name, of in result.steps.steps.items()}
    assert numbers.get("work") == work
