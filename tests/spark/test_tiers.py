"""The column tier on real Spark, and retries of two tiers: the same records, the same outcomes as in
tests/worker/test_tasks.py."""

import pytest

from ackline.errors import ConfigError
from ackline.spark.job import check_replay
from ackline.spark.lineage import manifests_of
from ackline.worker.streams import load_handler_or_streams
from tests.spark.lab import Lab

WORDS = [b"acked", b"failed", b"skipped", b"dead", None, b"nonsense"]
EXPECTED: list[tuple[int, str, str | None]] = [
    (0, "acked", None), (1, "failed", None), (2, "skipped", "Skip"), (3, "failed", "Dead"), (4, "skipped", "Tombstone"),
]  # fmt: skip


def test_an_expression_returns_the_outcome_of_each_row(lab: Lab) -> None:
    tp = lab.put(*WORDS[:5])
    job = lab.job("column_words", {tp: (0, 5)})
    result = lab.run(job)
    assert (lab.outcomes(job), result.calls) == (EXPECTED, 4)


def test_an_invalid_word_fails_its_row_of_an_expression(lab: Lab) -> None:
    """Fault 13."""
    tp = lab.put(*WORDS)
    column = lab.ran("column_words", {tp: (0, 6)})
    assert lab.outcomes(column) == [*EXPECTED, (5, "failed", "InvalidOutcome")]


def test_a_bad_cast_fails_its_own_row_only(lab: Lab) -> None:
    tp = lab.put(b"1", b"one", b"\xff", b"2")
    job = lab.ran("column_numbers", {tp: (0, 4)})
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "failed", "failed", "acked"]


@pytest.mark.parametrize("handler", ["column_explodes", "column_not_a_column"])
def test_a_column_handler_can_only_add_a_column(lab: Lab, handler: str) -> None:
    tp = lab.put(b"a")
    with pytest.raises(ConfigError, match=handler):
        lab.run(lab.job(handler, {tp: (0, 1)}))


@pytest.mark.parametrize("handler", ["column_calls_python", "column_calls_pandas"])
def test_i7_at_most_once_a_column_handler_calls_no_function_of_a_user(lab: Lab, handler: str) -> None:
    """Spark would call it some batches before the task creates its marker, and again if it repeats the task."""
    tp = lab.put(b"acked", b"failed")
    with pytest.raises(ConfigError, match=f"{handler} calls a Python function of a user"):
        check_replay(lab.spark, lab.job(handler, {tp: (0, 2)}, {tp: {0: 2}}, once=True))
    check_replay(lab.spark, lab.job("column_words", {tp: (0, 2)}, once=True))
    if handler == "column_calls_python":
        job = lab.ran(handler, {tp: (0, 2)})
        assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "failed"]


def test_spark_calls_a_function_of_a_column_handler_below_the_stage_that_creates_the_marker(lab: Lab) -> None:
    tp = lab.put(b"acked")
    job = lab.job("column_calls_python", {tp: (0, 1)})
    handler = load_handler_or_streams(job.settings.handler, None)
    plan = str(manifests_of(lab.spark, job, handler)._jdf.queryExecution().executedPlan())
    assert 0 <= plan.index("MapInArrow") < plan.index("EvalPython"), plan


def test_an_expression_gets_tombstones_on_demand(lab: Lab) -> None:
    tp = lab.put(None, key=b"k")
    job = lab.job("column_words", {tp: (0, 1)}, deliver_tombstones=True)
    assert lab.run(job).calls == 1
    assert lab.outcomes(job)[0][1] == "failed"


@pytest.mark.parametrize("handler", ["by_word", "column_words"])
def test_retries_meet_the_same_handler_with_their_own_attempt(lab: Lab, handler: str) -> None:
    """S19, S22: fresh ranges and retries of several partitions and topics in one job."""
    check_retries(lab, handler)


def check_retries(lab: Lab, handler: str) -> None:
    """Fails unless fresh records and retries have the outcomes that their values name, and their own attempts."""
    a, b, c = tps = lab.partitions(2, 1)
    first, second = a.topic, c.topic
    bad, good = (b"fail", b"ok") if handler == "by_word" else (b"failed", b"acked")
    for tp in tps:
        lab.put_records(tp, [(None, value) for value in [good, bad, good, bad, good]])
    job = lab.job(handler, {a: (2, 5), c: (0, 5)}, {a: {1: 4}, b: {0: 2, 3: 3, 4: 2}})
    result = lab.run(job)
    rows = [(row["topic"], row["partition"], row["offset"], row["attempt"], row["outcome"]) for row in lab.rows(job)]
    expected = [
        (first, 0, 1, 4, "failed"), (first, 0, 2, 1, "acked"), (first, 0, 3, 1, "failed"), (first, 0, 4, 1, "acked"),
        (first, 1, 0, 2, "acked"), (first, 1, 3, 3, "failed"), (first, 1, 4, 2, "acked"),
        *[(second, 0, offset, 1, "failed" if offset % 2 else "acked") for offset in range(5)],
    ]  # fmt: skip
    assert (sorted(rows), result.calls) == (sorted(expected), 12)
    assert 4 <= result.fetched_for_retries <= 10
