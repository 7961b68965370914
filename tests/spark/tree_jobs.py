"""Jobs over tuple trees, for labs on Spark and for labs of tasks."""

import json
from typing import Any

from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.settings import ReplayJob
from tests.spark.lab import Lab

HANDLERS = "tests.spark.tree_handlers"
SPLIT = f"{HANDLERS}:split"
ITEMS = [{"key": "a"}, {"key": "b"}, {"key": "c"}]


def steps(*blocks: dict[str, Any]) -> Topology:
    """A topology of steps whose handlers are functions of `tests.spark.tree_handlers`."""
    named = ({**block, "handler": f"{HANDLERS}:{block['handler']}"} for block in blocks)
    return topology([StepBlock.model_validate(block) for block in named])


TWO = steps(
    {"name": "first", "handler": "work", "input": "source", "group_by": "key"},
    {"name": "second", "handler": "end", "input": "first", "group_by": "key"},
)


def values(records: list[list[dict[str, Any]]]) -> list[bytes]:
    return [json.dumps(items).encode() for items in records]


def ran(lab: Lab, records: list[list[dict[str, Any]]], of: Topology, **settings: Any) -> ReplayJob:
    tp = lab.put(*values(records))
    return lab.ran(SPLIT, {tp: (0, len(records))}, topology=of, **settings)
