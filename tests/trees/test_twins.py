"""Each random tree runs with record steps and with Arrow steps, and leaves the same outcomes, figures and rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.trees.output_rows import OutputRows
from ackline.worker.settings import OutputTargets
from tests.trees import twins
from tests.trees.model import step_blocks
from tests.trees.stages import TP, Lab


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """An output takes the default stream of each step, and others take some of their other streams."""
    blocks = draw(step_blocks())
    names = ["source", *(block["name"] for block in blocks)]
    of_others = draw(st.lists(st.sampled_from([f"{name}.other" for name in names]), max_size=3, unique=True))
    outputs: list[dict[str, Any]] = [{"from": names, "table": "all", "columns": twins.COLUMNS}]
    if of_others:
        outputs.append({"from": of_others, "table": "others", "columns": {"number": "string", "path": "string"}})
    steps = [StepBlock.model_validate(block) for block in blocks]
    return topology(steps, [OutputBlock.model_validate(output) for output in outputs])


def left_by(of: Topology, arrow: Sequence[bool], seed: int, records: int) -> Any:
    """What a run leaves. `arrow` says whether the source, and each step, takes batches."""
    steps = sorted(of.steps, key=lambda step: step.number)
    handlers = [
        (twins.batch_handler if batches else twins.step_handler)(step.name, step.join)
        for step, batches in zip(steps, arrow[1:], strict=True)
    ]
    source = twins.source_batch if arrow[0] else twins.source
    columns = {output.number: output.columns or {} for output in of.all_outputs}
    with TemporaryDirectory() as folder:
        targets = OutputTargets(TurnId("shop", LIVE, 0, 1), folder, columns)
        lab = Lab(of, source, handlers, Random(seed), outputs=lambda: OutputRows(targets, [TP]))
        outcomes = lab.run({offset: f"{seed}-{offset}" for offset in range(records)})
        rows = sorted(
            str((file.output, row))
            for file in lab.staged
            for row in pq.read_table(Path(folder) / file.path).to_pylist()
        )
    figures = {
        name: (counts.executed, counts.emitted, counts.acked, counts.failed) for name, counts in lab.counts.items()
    }
    # A batch answers in words, which no line of code raises.
    placeless = [found and replace(found, error_place=None) for found in map(outcomes.get, range(records))]
    return placeless, figures, rows


@settings(max_examples=200, deadline=None)
@given(topologies(), st.integers(0, 1 << 30), st.integers(1, 6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_tree_of_arrow_steps_leaves_what_the_same_tree_of_record_steps_leaves(
    of: Topology, seed: int, records: int, arrow: list[bool]
) -> None:
    count = 1 + len(of.steps)
    expected = left_by(of, [False] * count, seed, records)
    assert left_by(of, arrow[:count], seed, records) == expected
