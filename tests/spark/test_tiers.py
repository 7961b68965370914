"""The column tier on real Spark, and the contract of both runners of jobs: the same records, the same outcomes as in
tests/worker/test_tasks.py. The tests with the mark `each_runner` or `each_tier`, in this folder, are that contract."""

from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark.job import check_replay
from ackline.spark.lineage import manifests_of
from ackline.worker.streams import load_handler_or_streams
from tests.kafka.kafka_log import delete_before, put
from tests.spark.lab import IN_PROCESS, Lab, each_tier
from tests.spark.tiers import EXPECTED, KEY_WORDS, KEYS, OUTCOME_WORDS, SECRET, hash_of


def test_an_expression_returns_the_outcome_of_each_row(lab: Lab) -> None:
    tp = lab.put(*OUTCOME_WORDS[:5])
    job = lab.job("column_words", {tp: (0, 5)})
    result = lab.run(job)
    assert (lab.outcomes(job), result.calls) == (EXPECTED, 4)


def test_an_invalid_word_fails_its_row_of_an_expression(lab: Lab) -> None:
    """Fault 13."""
    tp = lab.put(*OUTCOME_WORDS)
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


@each_tier
def test_retries_meet_the_same_handler_with_their_own_attempt(lab: Lab, handler: str) -> None:
    """S19, S22: fresh ranges and retries of several partitions and topics in one job."""
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
    assert 4 <= result.fetched_for_retries <= 15


@each_tier
def test_waits_are_counted_of_each_partition_and_rows_may_be_counted_only(lab: Lab, handler: str) -> None:
    first, second, third = tps = lab.partitions(3)
    for tp in tps:
        lab.put_records(tp, [(None, b"acked"), (None, None), (None, b"acked")])
    given = (handler, {first: (0, 3), second: (0, 3)}, {third: {0: 2, 2: 2}})
    recorded = lab.run(lab.job(*given))
    assert recorded.fetches.keys() == set(tps)
    for waits in recorded.fetches.values():
        assert waits.count >= 1
        assert 0 < waits.longest <= waits.seconds < 60
    before = set(Path(lab.table.uri).rglob("*.parquet"))
    counted = lab.run(lab.job(*given, record_outcomes=False))
    assert (counted.files, set(Path(lab.table.uri).rglob("*.parquet"))) == ((), before)
    assert (counted.counts, counted.calls) == (recorded.counts, recorded.calls)
    fresh = {Outcome.ACKED: 2, Outcome.SKIPPED: 1}
    assert counted.counts == {first: fresh, second: fresh, third: {Outcome.ACKED: 2}}


@pytest.mark.parametrize("lab", [IN_PROCESS], indirect=True)
def test_a_column_handler_needs_spark(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="needs Spark"):
        lab.run(lab.job("column_words", {lab.put(b"acked"): (0, 1)}))


@pytest.fixture
def log(lab: Lab) -> tuple[TopicPartition, TopicPartition]:
    name = lab.topic(2)
    for partition in range(2):
        put(lab.broker, name, list(zip(KEYS, KEY_WORDS, strict=True)), partition)
    return TopicPartition(name, 0), TopicPartition(name, 1)


def test_the_column_tier_stores_the_hash_of_each_key_of_fresh_records_and_of_retries(
    lab: Lab, log: tuple[TopicPartition, TopicPartition]
) -> None:
    fresh, retries = log
    job = lab.ran("column_words", {fresh: (0, 6)}, {retries: dict.fromkeys(range(6), 2)}, key_hash_secret=SECRET)
    found = [(row["partition"], row["offset"], row["key_hash64"]) for row in lab.rows(job)]
    assert found == [(partition, offset, hash_of(key)) for partition in (0, 1) for offset, key in enumerate(KEYS)]


def test_a_retry_that_the_log_no_longer_holds_has_no_hash(lab: Lab, log: tuple[TopicPartition, TopicPartition]) -> None:
    retries, _ = log
    delete_before(lab.broker, retries.topic, 4)
    job = lab.ran("column_words", None, {retries: {0: 2, 5: 2}}, key_hash_secret=SECRET)
    found = [(row["outcome"], row["key_hash64"]) for row in lab.rows(job)]
    assert found == [("expired", None), ("acked", hash_of(b"\xff\x00"))]
