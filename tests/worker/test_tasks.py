"""The tasks of a job with record and Arrow handlers: which outcome, attempt, time and hash each record has. The column
tier needs Spark: tests/spark/test_tiers.py."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import NO_TIMESTAMP, UNIX_EPOCH, Outcome
from ackline.pipeline.streams import Stream, Translation
from ackline.worker.records import OUT_OF_RANGE
from ackline.worker.run import Note
from ackline.worker.settings import ReplayJob, TaskSettings
from ackline.worker.tasks import store_column
from tests.spark.tiers import EXPECTED, KEY_WORDS, KEYS, SECRET, hash_of
from tests.support.in_process import run_in_process
from tests.worker.task_lab import TaskLab

PATH = "tests.spark.stream_handlers:{}".format


def test_failures_are_dropped_under_a_guarantee_that_never_retries(tasks: TaskLab) -> None:
    """S51."""
    tp = tasks.put(b"ok", b"fail", b"skip")
    job = tasks.ran("by_word", {tp: (0, 3)}, on_failure=Outcome.DROPPED)
    assert [outcome for _, outcome, _ in tasks.outcomes(job)] == ["acked", "dropped", "skipped"]


def test_a_fixed_clock_is_the_time_of_every_outcome(tasks: TaskLab) -> None:
    tp = tasks.put(b"ok", b"fail", None)
    now = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    job = tasks.ran("by_word", {tp: (0, 3)}, now=now)
    assert {row["handled_at"] for row in tasks.rows(job)} == {now}


def test_a_batch_returns_the_outcome_of_each_row(tasks: TaskLab) -> None:
    tp = tasks.put(b"acked", b"failed", b"skipped", b"dead", None)
    job = tasks.job("arrow_words", {tp: (0, 5)})
    result = tasks.run(job)
    assert (tasks.outcomes(job), result.calls) == (EXPECTED, 4)


def test_an_invalid_word_fails_its_whole_arrow_batch(tasks: TaskLab) -> None:
    """Fault 13."""
    tp = tasks.put(b"acked", b"failed", b"skipped", b"dead", None, b"nonsense")
    arrow = tasks.ran("arrow_words", {tp: (0, 6)})
    invalid: list[tuple[int, str, str | None]] = [(offset, "failed", "InvalidOutcome") for offset in range(6)]
    invalid[4] = EXPECTED[4]
    assert tasks.outcomes(arrow) == invalid
    short = tasks.ran("arrow_short", {tp: (0, 3)})
    assert tasks.outcomes(short) == invalid[:3]


@pytest.mark.parametrize("handler", ["loads", "arrow_words"])
def test_tombstones_are_delivered_on_demand(tasks: TaskLab, handler: str) -> None:
    tp = tasks.put(None, key=b"k")
    job = tasks.job(handler, {tp: (0, 1)}, deliver_tombstones=True)
    assert tasks.run(job).calls == 1
    assert tasks.outcomes(job)[0][1] == ("acked" if handler == "arrow_words" else "failed")


def test_two_topics_and_three_streams_in_one_job(tasks: TaskLab) -> None:
    """A filter splits JSON orders between two handlers; notes are a column of text. A bad record fails alone."""
    of_orders, of_notes = tasks.partitions(1, 1)
    orders, notes = of_orders.topic, of_notes.topic
    good = [(f"key-{n}".encode(), json.dumps({"n": n, "customer": "Alice"}).encode()) for n in range(10)]
    tasks.put_records(
        TopicPartition(orders, 0), [*good, (b"key-10", b'{"n": 10'), (b"\xff", b'{"n": 11}'), (b"gone", None)]
    )
    tasks.put_records(
        TopicPartition(notes, 0), [(None, b"note"), (None, b"skip"), (None, b"\xfe"), (None, "süß".encode())]
    )
    large = Stream("large", PATH("large_order"), PATH("large"), (orders,), None, "utf8", "json")
    others = Stream("orders", PATH("order"), None, (orders,), None, "utf8", "json")
    translation = Translation((large, others, Stream("", PATH("notes"), value="utf8")))
    job = tasks.job("", {TopicPartition(orders, 0): (0, 13), TopicPartition(notes, 0): (0, 4)}, translation=translation)
    result = tasks.run(job)
    rows = {
        name: [(row["offset"], row["outcome"], row["error_class"]) for row in tasks.rows(job) if row["topic"] == name]
        for name in (orders, notes)
    }
    assert rows[orders] == [
        *((n, "acked", None) for n in range(8)),
        *((n, "failed", "ValueError") for n in (8, 9)),
        *((n, "failed", "Undecodable") for n in (10, 11)),
        (12, "skipped", "Tombstone"),
    ]
    assert rows[notes] == [(0, "acked", None), (1, "skipped", "Skip"), (2, "failed", "Undecodable"), (3, "acked", None)]
    assert result.calls == 10 + 3
    assert "Alice" not in str(tasks.rows(job))
    retry = tasks.ran("", None, {TopicPartition(orders, 0): {8: 2, 9: 2, 10: 2}}, translation=translation)
    assert tasks.outcomes(retry) == [(8, "acked", None), (9, "acked", None), (10, "failed", "Undecodable")]


@pytest.fixture
def log(tasks: TaskLab) -> tuple[TopicPartition, TopicPartition]:
    first, second = tasks.partitions(2)
    for tp in (first, second):
        tasks.put_records(tp, zip(KEYS, KEY_WORDS, strict=True))
    return first, second


@pytest.mark.parametrize(("handler", "settings"), [
    ("by_word", {}),
    ("arrow_words", {}),
    ("by_word", {"isolated": True}),
    ("arrow_words", {"isolated": True, "record_timeout": 30.0}),
    ("by_word", {"once": True}),
])  # fmt: skip
def test_the_hash_of_each_key_of_fresh_records_and_of_retries_is_stored(
    tasks: TaskLab, log: tuple[TopicPartition, TopicPartition], handler: str, settings: dict[str, object]
) -> None:
    fresh, retries = log
    job = tasks.ran(handler, {fresh: (0, 6)}, {retries: dict.fromkeys(range(6), 2)}, key_hash_secret=SECRET, **settings)
    found = [(row["partition"], row["offset"], row["key_hash64"]) for row in tasks.rows(job)]
    assert found == [(partition, offset, hash_of(key)) for partition in (0, 1) for offset, key in enumerate(KEYS)]


def test_a_retry_that_the_log_no_longer_holds_has_no_hash(
    tasks: TaskLab, log: tuple[TopicPartition, TopicPartition]
) -> None:
    retries, _ = log
    tasks.world.topics[retries.topic].logs[retries.partition].start = 4
    job = tasks.ran("by_word", None, {retries: {0: 2, 5: 2}}, key_hash_secret=SECRET)
    found = [(row["outcome"], row["key_hash64"]) for row in tasks.rows(job)]
    assert found == [("expired", None), ("acked", hash_of(b"\xff\x00"))]


def test_the_raw_bytes_of_a_decoded_key_are_hashed(tasks: TaskLab, log: tuple[TopicPartition, TopicPartition]) -> None:
    fresh, _ = log
    stream = Stream("", "tests.spark.stream_handlers:notes", key="utf8", value="utf8")
    job = tasks.ran("by_word", {fresh: (0, 6)}, key_hash_secret=SECRET, translation=Translation((stream,)))
    assert [row["key_hash64"] for row in tasks.rows(job)] == [hash_of(key) for key in KEYS]


def test_without_the_setting_the_files_have_no_such_column_and_the_table_reads_null(
    tasks: TaskLab, log: tuple[TopicPartition, TopicPartition]
) -> None:
    fresh, _ = log
    job = tasks.job("by_word", {fresh: (0, 6)})
    result = tasks.run(job)
    for file in result.files:
        assert "key_hash64" not in pq.read_schema(f"{tasks.table.uri}/{file.path}").names
    assert {row["key_hash64"] for row in tasks.rows(job)} == {None}


def test_rows_of_the_column_tier_are_stored_in_the_order_of_offsets_whatever_they_are_about(tasks: TaskLab) -> None:
    """Compaction may have taken a retry between two that exist, and Spark gives the task all of them in one batch."""
    tp = tasks.put(*[b"acked"] * 9)
    gone, known = [Note.COMPACTED, Note.EXPIRED], [Note.TOMBSTONE, Note.UNREADABLE]
    codes = [1, gone[0], 0, *known, gone[1], 2, 3, 4]
    times = [123_000, NO_TIMESTAMP, OUT_OF_RANGE, *[NO_TIMESTAMP] * 6]

    def manifests(_: ReplayJob, task: TaskSettings) -> list[pa.RecordBatch]:
        columns = {"partition": [0] * 9, "offset": range(9), "timestamp": times, "attempt": [2] * 9, "outcome": codes}
        fetched = {"partition": [-1], "offset": [7], "timestamp": [0], "attempt": [0], "outcome": [Note.FETCHED]}
        kinds = [pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int32()]
        schema = pa.schema(list(zip(columns, kinds, strict=True)))
        batches = [pa.RecordBatch.from_pydict(rows, schema) for rows in (columns, fetched)]
        return list(store_column(task)(iter(batches)))

    job = tasks.job("column_words", None, {tp: dict.fromkeys(range(9), 2)})
    result = run_in_process(job, manifests)
    tasks.commit(job, result)
    assert [(row["offset"], row["outcome"], row["error_class"], row["attempt"]) for row in tasks.rows(job)] == [
        (0, "acked", None, 2), (1, "compacted", None, 0), (2, "failed", "InvalidOutcome", 2),
        (3, "skipped", "Tombstone", 2), (4, "failed", "Undecodable", 2), (5, "expired", None, 0),
        (6, "failed", None, 2), (7, "skipped", "Skip", 2), (8, "failed", "Dead", 2),
    ]  # fmt: skip
    assert [row["record_timestamp"] for row in tasks.rows(job)] == [UNIX_EPOCH + timedelta(microseconds=123_000)] + [
        None
    ] * 8
    assert (result.calls, result.fetched_for_retries) == (5, 7)
