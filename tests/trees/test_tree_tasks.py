"""Tuple trees over the tasks of a job: a record is acked once all that came of it is. The figures of steps count what
its outcome is, wherever the tree ends."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ackline.ledger.explain import StepStory, decode_story
from ackline.ledger.order import Order
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.settings import OutputTargets
from tests.spark.tree_jobs import ITEMS, SPLIT, TWO, ran, steps, values
from tests.worker.task_lab import TaskLab


def test_s60_s62_a_record_is_acked_when_every_child_and_theirs_are(tasks: TaskLab) -> None:
    failing = [*ITEMS, {"key": "d", "do": "fail"}]
    job = ran(tasks, [[], ITEMS, failing, ITEMS, [{"key": "a", "do": "skip"}], [{"key": "b", "do": "dead"}]], TWO)
    assert [(row["offset"], row["outcome"], row["error_class"], row["error_message"]) for row in tasks.rows(job)] == [
        (0, "acked", None, None),
        (1, "acked", None, None),
        (2, "failed", "ValueError", "step first: broken; 3 siblings acked"),
        (3, "acked", None, None),
        (4, "skipped", "Skip", "step first: unwanted"),
        (5, "failed", "Dead", "step first: hopeless; 0 siblings acked"),
    ]


def test_the_row_of_an_acked_record_has_the_numbers_of_its_steps_wherever_its_tree_has_ended(tasks: TaskLab) -> None:
    """Records 0, 1 and 4 end in the task that reads them, 2 and 3 in the acker."""
    topology = steps(
        {"name": "near", "handler": "end", "input": "source"},
        {"name": "far", "handler": "end", "input": "source.far", "group_by": "key"},
    )
    far = {"key": "a", "stream": "far"}
    records = [ITEMS, [], [*ITEMS, far], [far, far], [*ITEMS, {"key": "d", "do": "fail"}], ITEMS]
    job = ran(tasks, records, topology)
    assert [(row["outcome"], decode_story(row["tree"])) for row in tasks.rows(job)] == [
        ("acked", {"near": StepStory(3, 0, 0)}),
        ("acked", None),
        ("acked", {"near": StepStory(3, 0, 0), "far": StepStory(1, 0, 0)}),
        ("acked", {"far": StepStory(2, 0, 0)}),
        ("failed", {"near": StepStory(3, 1, 0)}),
        ("acked", {"near": StepStory(3, 0, 0)}),
    ]


def test_s61_a_retry_builds_the_tree_anew(tasks: TaskLab) -> None:
    tp = tasks.put(*values([[*ITEMS, {"key": "b", "do": "fail", "until": 1}]] * 3))
    first = tasks.ran(SPLIT, {tp: (0, 3)}, topology=TWO)
    assert {outcome for _, outcome, _ in tasks.outcomes(first)} == {"failed"}
    second = tasks.ran(SPLIT, None, {tp: {0: 2, 1: 2, 2: 2}}, topology=TWO)
    assert [(row["outcome"], row["attempt"]) for row in tasks.rows(second)] == [("acked", 2)] * 3


def test_an_arrow_handler_of_records_says_what_became_of_each_and_its_tuples_go_on(tasks: TaskLab) -> None:
    topology = steps(
        {"name": "near", "handler": "end_batch", "input": "source.near"},
        {"name": "far", "handler": "end_batch", "input": "source", "group_by": "key"},
    )
    near, broken = {"key": "a", "stream": "near"}, {"key": "a", "do": "fail at once"}
    records = [
        ITEMS,
        [],
        [near],
        [broken, *ITEMS],
        [*ITEMS, {"key": "d", "do": "fail"}],
        [near, {**near, "do": "skip"}],
    ]
    tp = tasks.put(*values(records))
    job = tasks.ran(f"{SPLIT}_batch", {tp: (0, len(records))}, topology=topology)
    assert [
        (row["outcome"], row["error_class"], row["error_message"], decode_story(row["tree"])) for row in tasks.rows(job)
    ] == [
        ("acked", None, None, {"far": StepStory(3, 0, 0)}),
        ("acked", None, None, None),
        ("acked", None, None, {"near": StepStory(1, 0, 0)}),
        ("failed", None, None, None),
        ("failed", "Fail", "step far: Fail; 3 siblings acked", {"far": StepStory(3, 1, 0)}),
        ("skipped", "Skip", "step near: Skip", {"near": StepStory(1, 0, 0)}),
    ]  # fmt: skip


def test_retries_are_read_in_batches_for_an_arrow_handler_too(tasks: TaskLab) -> None:
    topology = steps({"name": "end", "handler": "end_batch", "input": "source", "group_by": "key"})
    tp = tasks.put(*values([ITEMS, [], [{"key": "b", "do": "fail"}]]))
    job = tasks.ran(f"{SPLIT}_batch", None, {tp: {0: 2, 1: 2, 2: 3}}, topology=topology)
    rows = [(row["offset"], row["attempt"], row["outcome"]) for row in tasks.rows(job)]
    assert rows == [(0, 2, "acked"), (1, 2, "acked"), (2, 3, "failed")]


def test_without_tracking_no_record_waits_for_the_tuples_of_arrow_steps(tasks: TaskLab) -> None:
    topology = steps({"name": "end", "handler": "end_batch", "input": "source", "group_by": "key"})
    tp = tasks.put(*values([ITEMS, [{"key": "b", "do": "fail"}], [{"key": "b", "do": "fail at once"}]]))
    job = tasks.ran(f"{SPLIT}_batch", {tp: (0, 3)}, topology=topology, tracking=False)
    assert [outcome for _, outcome, _ in tasks.outcomes(job)] == ["acked", "acked", "failed"]


def test_rows_of_arrow_steps_are_staged_with_their_records(tasks: TaskLab, tmp_path: Path) -> None:
    """Those that the first batch of an inferred table decides about row by row, and those after it, as columns."""
    blocks = [
        StepBlock(name=name, handler="tests.spark.tree_handlers:work_batch", input=["source"]) for name in ("a", "b")
    ]
    of_both = [OutputBlock.model_validate({"from": ["a", "b"], "table": "items"})]
    targets = OutputTargets(TurnId("shop", LIVE, 0, 1), f"{tmp_path}/staged", {})
    tp = tasks.put(*values([[{"key": "a", "do": "hold"}], [{"key": "b", "do": "fail"}], []]))
    job = tasks.job(f"{SPLIT}_batch", {tp: (0, 3)}, topology=topology(blocks, of_both), outputs=targets)
    result = tasks.run(job)
    rows = [row for file in result.staged for row in pq.read_table(tmp_path / "staged" / file.path).to_pylist()]
    assert rows == [{"_anchors": [{**tp._asdict(), "offset": 0, "attempt": 1}], "do": "hold"}] * 2


def test_streams_decode_and_choose_the_handler_of_a_tree(tasks: TaskLab) -> None:
    translation = Translation((Stream("items", SPLIT, value="json"),))
    tp = tasks.put(b'[{"key": "a"}]', b"no json", b'[{"key": "a", "do": "fail"}]')
    job = tasks.ran(SPLIT, {tp: (0, 3)}, topology=TWO, translation=translation)
    assert tasks.outcomes(job) == [(0, "acked", None), (1, "failed", "Undecodable"), (2, "failed", "ValueError")]


def test_at_most_once_hands_each_tuple_out_once(tasks: TaskLab) -> None:
    tp = tasks.put(*values([ITEMS, [{"key": "a", "do": "fail"}]]))
    job = tasks.ran(SPLIT, {tp: (0, 2)}, topology=TWO, once=True)
    assert tasks.outcomes(job) == [(0, "acked", None), (1, "failed", "ValueError")]


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
    tasks: TaskLab, tmp_path: Path, of: Topology, acked: set[int], failed: set[int], work: tuple[int, int, int] | None
) -> None:
    tp = tasks.put(*(json.dumps(items).encode() for items in RECORDS))
    columns = {output.number: dict(output.columns or {}) for output in of.all_outputs}
    targets = OutputTargets(TurnId("orders", LIVE, 0, 1), f"{tmp_path}/turn", columns)
    job = tasks.job(f"{HANDLERS}:split", {tp: (0, len(RECORDS))}, topology=of, outputs=targets)
    result = tasks.run(job)
    rows = tasks.rows(job)
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


@pytest.mark.parametrize("isolated", [False, True])
def test_i19_with_steps_the_order_is_that_of_the_handler_of_records(tasks: TaskLab, isolated: bool) -> None:
    """A record that it fails holds back the later ones, in this batch and in the next ones of the task."""
    tp = tasks.put(*values([ITEMS]), b"{", *values([ITEMS]))
    job = tasks.ran(SPLIT, {tp: (0, 3)}, topology=TWO, order=Order.PARTITION, isolated=isolated)
    assert [(row["outcome"], row["attempt"]) for row in tasks.rows(job)] == [
        ("acked", 1), ("failed", 1), ("held_back", 0),
    ]  # fmt: skip
    assert tasks.rows(job)[2]["error_message"] == "behind offset 1 of the partition"
