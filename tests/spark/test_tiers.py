"""The three tiers on real Spark: the same records, the same outcomes."""

from datetime import UTC, datetime

import pytest

from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark.job import check_replay
from ackline.spark.lineage import manifests_of
from ackline.worker.streams import load_handler_or_streams
from tests.kafka.kafka_log import put
from tests.spark.lab import Lab

WORDS = [b"acked", b"failed", b"skipped", b"dead", None, b"nonsense"]
EXPECTED: list[tuple[int, str, str | None]] = [
    (0, "acked", None), (1, "failed", None), (2, "skipped", "Skip"), (3, "failed", "Dead"), (4, "skipped", "Tombstone"),
]  # fmt: skip


def test_a_record_handler_settles_each_record_by_itself(lab: Lab) -> None:
    words = [b"ok", b"fail", b"skip", b"dead", b"exit", b"interrupt", b"generator", None, b"ok"]
    tp = lab.put(*words, key=b"customer-1")
    job = lab.job("by_word", {tp: (0, 9)})
    result = lab.run(job)
    assert lab.outcomes(job) == [
        (0, "acked", None), (1, "failed", "ValueError"), (2, "skipped", "Skip"), (3, "failed", "Dead"),
        (4, "failed", "SystemExit"), (5, "failed", "KeyboardInterrupt"), (6, "failed", "InvalidOutcome"),
        (7, "skipped", "Tombstone"), (8, "acked", None),
    ]  # fmt: skip
    assert result.calls == 8
    assert result.counts == {tp: {Outcome.ACKED: 2, Outcome.FAILED: 5, Outcome.SKIPPED: 2}}
    assert not any("customer" in (row["error_message"] or "") for row in lab.rows(job))


@pytest.mark.parametrize("handler", ["arrow_words", "column_words"])
def test_a_batch_or_an_expression_returns_the_outcome_of_each_row(lab: Lab, handler: str) -> None:
    tp = lab.put(*WORDS[:5])
    job = lab.job(handler, {tp: (0, 5)})
    result = lab.run(job)
    assert (lab.outcomes(job), result.calls) == (EXPECTED, 4)


def test_an_invalid_word_fails_its_row_of_an_expression_and_its_whole_arrow_batch(lab: Lab) -> None:
    """Fault 13."""
    tp = lab.put(*WORDS)
    column = lab.ran("column_words", {tp: (0, 6)})
    assert lab.outcomes(column) == [*EXPECTED, (5, "failed", "InvalidOutcome")]
    arrow = lab.ran("arrow_words", {tp: (0, 6)})
    invalid: list[tuple[int, str, str | None]] = [(offset, "failed", "InvalidOutcome") for offset in range(6)]
    invalid[4] = EXPECTED[4]
    assert lab.outcomes(arrow) == invalid
    short = lab.ran("arrow_short", {tp: (0, 3)})
    assert lab.outcomes(short) == invalid[:3]


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


@pytest.mark.parametrize("handler", ["loads", "arrow_words", "column_words"])
def test_tombstones_are_delivered_on_demand(lab: Lab, handler: str) -> None:
    tp = lab.put(None, key=b"k")
    job = lab.job(handler, {tp: (0, 1)}, deliver_tombstones=True)
    assert lab.run(job).calls == 1
    assert lab.outcomes(job)[0][1] == ("acked" if handler == "arrow_words" else "failed")


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_retries_meet_the_same_handler_with_their_own_attempt(lab: Lab, handler: str) -> None:
    """S19, S22: fresh ranges and retries of several partitions and topics in one job."""
    first, second = lab.topic(2), lab.topic()
    bad, good = (b"fail", b"ok") if handler == "by_word" else (b"failed", b"acked")
    for name, partition in ((first, 0), (first, 1), (second, 0)):
        put(lab.broker, name, [(None, value) for value in [good, bad, good, bad, good]], partition)
    a, b, c = TopicPartition(first, 0), TopicPartition(first, 1), TopicPartition(second, 0)
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


def test_failures_are_dropped_under_a_guarantee_that_never_retries(lab: Lab) -> None:
    """S51."""
    tp = lab.put(b"ok", b"fail", b"skip")
    job = lab.ran("by_word", {tp: (0, 3)}, on_failure=Outcome.DROPPED)
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "dropped", "skipped"]


def test_a_fixed_clock_is_the_time_of_every_outcome(lab: Lab) -> None:
    tp = lab.put(b"ok", b"fail", None)
    now = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    job = lab.ran("by_word", {tp: (0, 3)}, now=now)
    assert {row["handled_at"] for row in lab.rows(job)} == {now}
