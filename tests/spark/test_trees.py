"""Tuple trees in real Spark jobs: a record is acked once all that came of it is."""

import re
from pathlib import Path

import numpy as np
import pytest

from ackline.errors import ConfigError, TransientError
from ackline.ledger.offsets import TopicPartition
from ackline.spark.job import check_replay, run_replay
from ackline.spark.lineage import ROWS, manifests_of
from ackline.trees.acker import by_block
from ackline.trees.events import BLOCK, EventFormat, Events, PackedEvents
from ackline.trees.rows import ROWS_SCHEMA
from tests.spark import tree_handlers
from tests.spark.lab import Lab, each_runner
from tests.spark.tree_jobs import ITEMS, SPLIT, TWO, ran, steps, values

ROOT = Path(__file__).parents[2]
SHOP = steps(
    {"name": "price", "handler": "work", "input": "source", "group_by": "key"},
    {"name": "total", "handler": "join", "input": "price", "group_by": "key", "join": True},
)
"""The steps that the documentation has for an example."""
DIAMOND = steps(
    {"name": "left", "handler": "work", "input": "source", "group_by": "key"},
    {"name": "right", "handler": "work", "input": "source"},
    {"name": "meet", "handler": "join", "input": ["left", "right"], "group_by": "key", "join": True},
    {"name": "sums", "handler": "end", "input": "meet.sums", "group_by": "key"},
)


@each_runner
def test_one_job_runs_each_handler_once_for_each_tuple(lab: Lab) -> None:
    """Two branches that meet in a join: a plan that evaluated a branch twice would call its handlers twice."""
    tp = lab.put(*values([ITEMS] * 500))
    result = lab.replayed(lab.job(SPLIT, {tp: (0, 500)}, topology=DIAMOND))
    assert result.steps is not None
    assert {name: (done.executed, done.emitted, done.acked) for name, done in result.steps.steps.items()} == {
        "source": (500, 1500, 500),
        "left": (1500, 1500, 1500),
        "right": (1500, 1500, 1500),
        "meet": (3000, 3, 3000),
        "sums": (3, 0, 3),
    }
    assert sum(sum(counts.values()) for counts in result.counts.values()) == 500
    assert result.steps.latency.count == 500
    # A join has one call for each of the three keys.
    assert {name: done.execute.count for name, done in result.steps.steps.items()} == {
        "source": 500,
        "left": 1500,
        "right": 1500,
        "meet": 3,
        "sums": 3,
    }
    calls = lab.calls(tp.topic)
    assert set(calls.values()) == {3 + 3 + 6 + 3}  # left, right, both in the join, and the sum of each key


def test_the_plan_has_no_join_and_an_exchange_for_each_group_by_and_the_acker(lab: Lab) -> None:
    tp = lab.put(b"[]")
    job = lab.job(SPLIT, {tp: (0, 1)}, topology=DIAMOND)
    frame = manifests_of(lab.spark, job, tree_handlers.split)
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange") == 4, plan
    assert "Join" not in plan
    assert "InMemory" not in plan


def test_the_physical_plan_of_two_steps_is_the_one_that_the_documentation_shows(lab: Lab) -> None:
    """It leaves out ids and the order of nulls, has `…` for lists of columns, and names in comments what tasks do."""
    tp = lab.fill(10_001, lambda _: b"[]")  # so many that each exchange has two parts
    job = lab.job(SPLIT, {tp: (0, 10_001)}, topology=SHOP)
    frame = manifests_of(lab.spark, job, tree_handlers.split)
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    for pattern, text in [
        (r", \[plan_id=\d+\]", ""), (r"task\(.*", "task(…), […]"), (r"Project \[.*", "Project […]"),
        (r"BatchScan KafkaTable\[.*", "BatchScan KafkaTable[…]"), (r"#\d+L?", ""), (" ASC NULLS FIRST", ""),
        (r"(passthrough\().*, (\d+\))", r"\1…, \2"),
    ]:  # fmt: skip
        plan = re.sub(pattern, text, plan)
    shown = re.sub(r" +# .*", "", (ROOT / "docs/semantics.md").read_text())
    assert f"```\n{plan.rstrip()}\n```" in shown, plan


@each_runner
def test_s67_a_diamond_acks_its_records_and_a_join_fails_single_ones(lab: Lab) -> None:
    records = [
        ITEMS,
        [{"key": "a", "do": "hold"}],
        [{"key": "a", "do": "fail in join"}],
        ITEMS,
        [{"key": "b", "do": "fail"}],
    ]
    job = ran(lab, records, DIAMOND)
    # The sum of key a is anchored to all records that have this key. It was emitted, and acked.
    assert lab.outcomes(job) == [
        (0, "acked", None),
        (1, "failed", "Unacked"),
        (2, "failed", "Fail"),
        (3, "acked", None),
        (4, "failed", "ValueError"),
    ]
    # Only the last one was raised by a line of code.
    places = {row["offset"]: re.sub(":.* in ", ":LINE in ", row["error_place"] or "") for row in lab.rows(job)}
    assert places == {0: "", 1: "", 2: "", 3: "", 4: "tests/spark/tree_handlers.py:LINE in do"}


@each_runner
def test_steps_an_arrow_batch_at_a_time_leave_what_record_steps_leave(lab: Lab) -> None:
    """Tuples travel between Spark's tasks as Arrow columns, several in a row, and the join sorts them itself."""
    records = [
        ITEMS, [{"key": "a", "do": "hold"}], [{"key": "a", "do": "fail in join"}], ITEMS,
        [{"key": "b", "do": "fail"}], [{"key": "c", "do": "skip"}, *ITEMS], [{"key": "c", "do": "dead"}], [],
    ]  # fmt: skip
    blocks = (
        ("left", "work", {"input": "source", "group_by": "key"}),
        ("right", "work", {"input": "source"}),
        ("meet", "join", {"input": ["left", "right"], "group_by": "key", "join": True}),
        ("sums", "end", {"input": "meet.sums", "group_by": "key"}),
    )
    left = []
    for ending, handler in (("", SPLIT), ("_batch", f"{SPLIT}_batch")):
        of = steps(*({"name": name, "handler": f"{function}{ending}", **block} for name, function, block in blocks))
        tp = lab.put(*values(records * 300))
        job = lab.job(handler, {tp: (0, 300 * len(records))}, topology=of)
        result = lab.run(job)
        assert result.steps is not None
        counts = {name: done.numbers() for name, done in result.steps.steps.items()}
        rows = [(row["offset"], row["outcome"], row["error_class"], row["tree"]) for row in lab.rows(job)]
        left.append((counts, rows))
    classes = {error_class for _, _, error_class, _ in left[0][1]}
    assert classes == {None, "Unacked", "Fail", "ValueError", "Skip", "Dead"}
    of_batches = [
        (offset, outcome, "ValueError" if offset % 8 == 4 else error_class, tree)
        for offset, outcome, error_class, tree in left[1][1]  # a word has no class of an exception
    ]
    assert (left[1][0], of_batches) == left[0]


def test_a_worker_that_is_killed_in_a_step_ends_the_run_before_anything_is_stored(lab: Lab) -> None:
    tp = lab.put(*values([ITEMS, [{"key": "a", "do": "kill"}]]))
    job = lab.job(SPLIT, {tp: (0, 2)}, topology=TWO)
    with pytest.raises(TransientError):
        run_replay(lab.spark, job)
    assert lab.rows(job) == []


def test_handlers_of_other_tiers_are_refused_with_steps(lab: Lab) -> None:
    job = lab.job("column_words", {TopicPartition("t", 0): (0, 1)}, topology=TWO)
    with pytest.raises(ConfigError, match="column tier"):
        check_replay(lab.spark, job)


def test_s63_rows_of_events_that_came_twice_or_late_change_nothing(lab: Lab) -> None:
    """Two tasks did the same for the roots of two blocks, in another order, and the acker gets the rows of both."""
    format_ = EventFormat(1)
    rows = []
    for time in (2, 1):
        packed = PackedEvents()
        for offset in (7, BLOCK + 7):
            packed.add(event(format_, offset, -1, 5, 1, 0, time))
            packed.add(event(format_, offset, 0, 5, -1, 1, time))
        rows += [{"key": block.key, "tp": 0, "offset": block.number, "payload": p} for block, p in packed.take()]
    names = ROWS_SCHEMA.names
    frame = lab.spark.createDataFrame([tuple(row.get(name) for name in names) for row in reversed(rows)], ROWS)
    sorted_rows = by_block(frame, 1).collect()
    assert [row["offset"] for row in sorted_rows] == [0, 0, 1, 1]
    for block in (0, 1):
        roots = format_.sums([bytes(row["payload"]) for row in sorted_rows if row["offset"] == block])
        assert roots.offsets.tolist() == [block * BLOCK + 7]
        sums = (roots.xors.tolist(), roots.sources.tolist(), roots.open_tuples.tolist(), roots.acked.tolist())
        assert sums == ([0], [1], [[0]], [[1]])


def event(format_: EventFormat, offset: int, by: int, xor: int, open_: int, acked: int, time: int) -> Events:
    row = np.zeros(1, format_.dtype)
    row["offset"], row["attempt"], row["time"], row["by"], row["sources"] = offset, 1, time, by, int(by == -1)
    row["xor"], row["open"], row["acked"] = xor, open_, acked
    return Events(np.zeros(1, np.int64), row)
