"""A replay is one action: it reads each record once, calls the handler once, and stores nothing if it fails."""

import json
import subprocess
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline.errors import FatalError, RangeGone, TransientError
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark import lineage
from ackline.spark.jars import broker_classpath, java
from ackline.spark.job import run_replay
from ackline.spark.lineage import tasks_for
from tests.kafka.kafka_log import delete_before, fill, put
from tests.spark.lab import Lab, each_runner
from tests.worker.isolation.lab import EXPECTED, GROUPED, SPLIT, WORDS, items

JOURNAL = "tests.support.journal:handle"


def one_in_ten_fails(offset: int) -> bytes:
    return b"fail" if offset % 10 == 3 else b"ok"


def test_the_handler_is_called_once_a_record(lab: Lab) -> None:
    """Fault 9: a second evaluation of the plan would call it twice. S33: every partition, each record once."""
    name = lab.topic(3)
    tps = [TopicPartition(name, partition) for partition in range(3)]
    for tp in tps:
        fill(lab.broker, name, 30_000, tp.partition)
    job = lab.job(JOURNAL, dict.fromkeys(tps[:2], (0, 30000)), {tps[2]: dict.fromkeys(range(500), 2)})
    result = lab.run(job)
    fresh = {(partition, offset, 1) for partition in range(2) for offset in range(30_000)}
    calls = lab.calls(name)
    assert (set(calls), set(calls.values())) == (fresh | {(2, offset, 2) for offset in range(500)}, {1})
    assert (result.calls, sum(file.rows for file in result.files)) == (60_500, 60_500)


def test_a_hundred_thousand_retries_are_read(lab: Lab) -> None:
    tp = lab.fill(200_000)
    result = lab.run(lab.job("ack", None, {tp: dict.fromkeys(range(0, 200_000, 2), 3)}))
    assert result.counts == {tp: {Outcome.ACKED: 100_000}}
    assert result.fetched_for_retries < 400_000


def test_small_groups_share_a_file_of_one_outcome_and_its_statistics_are_right(lab: Lab) -> None:
    """Seven small partitions are read by two tasks, and a large one has a task and a file of acked records."""
    tps = [TopicPartition(lab.topic(), 0), *(TopicPartition(name, p) for name in [lab.topic(7)] for p in range(7))]
    for tp in tps:
        fill(lab.broker, tp.topic, 1000 if tp is not tps[0] else 20_000, tp.partition, one_in_ten_fails)
    result = lab.run(lab.job("by_word", {tp: (0, 1000 if tp is not tps[0] else 20_000) for tp in tps}))
    assert sorted((file.outcome, file.rows) for file in result.files) == [
        ("acked", 2_700), ("acked", 3_600), ("acked", 18_000), ("failed", 300), ("failed", 400), ("failed", 2_000),
    ]  # fmt: skip
    small = {Outcome.ACKED: 900, Outcome.FAILED: 100}
    assert result.counts == {tps[0]: {Outcome.ACKED: 18_000, Outcome.FAILED: 2_000}, **dict.fromkeys(tps[1:], small)}
    for file in result.files:
        stats, path = json.loads(file.stats), Path(lab.table.uri, file.path)
        rows = pq.ParquetFile(path).read().to_pylist()
        places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
        assert places == sorted(places)
        assert path.stat().st_size == file.size
        assert stats["numRecords"] == file.rows == len(rows)
        for column in stats["minValues"].keys() - {"handled_at", "record_timestamp"}:
            values = [row[column] for row in rows]
            assert (stats["minValues"][column], stats["maxValues"][column]) == (min(values), max(values))
        for column, nulls in stats["nullCount"].items():
            assert nulls == sum(row[column] is None for row in rows)
        low = min(row["handled_at"] for row in rows).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert stats["minValues"]["handled_at"] == low


def test_committed_files_are_read_alike_by_delta_by_arrow_and_by_spark(lab: Lab) -> None:
    tp = lab.fill(100, one_in_ten_fails)
    job = lab.job("by_word", {tp: (0, 100)})
    result = lab.run(job)
    table = DeltaTable(lab.table.uri)
    for column, value, offsets in (("turn", job.target.turn.n, range(100)), ("outcome", "failed", range(3, 100, 10))):
        rows = table.to_pyarrow_table(filters=[(column, "=", value)])
        assert sorted(rows["offset"].to_pylist()) == list(offsets)
    paths = [Path(lab.table.uri, file.path) for file in result.files]
    from_files = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    columns = ["offset", "outcome", "error_class", "error_message", "handled_at", "record_timestamp", "run_id"]
    assert [[row[column] for column in columns] for row in lab.rows(job)] == (
        [[row[column] for column in columns] for row in sorted(from_files, key=lambda row: row["offset"])]
    )
    folders = dict(part.split("=") for part in result.files[0].path.split("/")[:1])
    assert folders == {"plan_date": "2024-05-06"}
    counts = lab.spark.read.parquet(*map(str, paths)).groupBy("outcome").count().collect()
    assert {row["outcome"]: row["count"] for row in counts} == {"acked": 90, "failed": 10}


@each_runner
def test_a_range_that_retention_has_deleted_is_an_error(lab: Lab) -> None:
    """S41, fault 17: the job never silently starts at a later offset."""
    tp = lab.fill(50)
    delete_before(lab.broker, tp.topic, 10)
    with pytest.raises(RangeGone):
        lab.replayed(lab.job("ack", {tp: (5, 50)}))


def test_offsets_beyond_the_log_end_are_an_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job neither succeeds nor hangs for minutes, be the offsets fresh or retries."""
    tp = lab.fill(10)
    options = lineage.source_options
    monkeypatch.setattr(lineage, "source_options", lambda *of: options(*of) | {"kafkaConsumer.pollTimeoutMs": "2000"})
    with pytest.raises((RangeGone, TransientError)):
        run_replay(lab.spark, lab.job("ack", {tp: (0, 20)}))
    with pytest.raises(FatalError, match=tp.topic):
        run_replay(lab.spark, lab.job("ack", None, {tp: {10_000: 2}}))


@pytest.mark.deep
def test_a_byte_quota_that_lets_each_reader_wait_fails_no_job(lab: Lab) -> None:
    """Four tasks share 100 kB/s, and a batch has 0.9 MB: the broker holds a reader back for half a minute at a time."""
    client = f"slow-{uuid.uuid4().hex[:8]}"
    quota = "--alter --add-config consumer_byte_rate=100000 --entity-type clients --entity-name"
    tool = [java(), "-cp", broker_classpath(), "kafka.admin.ConfigCommand", "--bootstrap-server", lab.broker.bootstrap]
    command = [*tool, *quota.split(), client]
    subprocess.run(command, check=True, capture_output=True)
    tps = lab.partitions(4)
    for tp in tps:
        lab.put_records(tp, [(None, b"x" * 900_000)] * 2)
    job = lab.job("ack", dict.fromkeys(tps, (0, 2)), kafka={"client.id": client})
    assert lab.run(job).calls == 8
    retries = lab.job("ack", None, {tp: {1: 2} for tp in tps}, kafka={"client.id": client})
    assert lab.run(retries).calls == 4


def test_tasks_are_small_enough_to_watch_and_large_enough_to_pay() -> None:
    def tasks(*sizes: int) -> int:
        return tasks_for({TopicPartition("t", n): OffsetRange(0, size) for n, size in enumerate(sizes)}, 4)

    assert (tasks(10), tasks(10, 10, 10), tasks(*[10] * 6), tasks(100_000)) == (1, 3, 4, 4)
    assert tasks(5_000_000) == 20
    assert (tasks(*[100] * 1000), tasks(*[5_000] * 1000)) == (4, 20), "small ranges share tasks"
    assert tasks(200_000, 200_000, *[100] * 998) == 4 + 4, "large ranges have tasks of their own"


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_partitions_that_share_a_task_get_their_own_outcomes_in_their_order(lab: Lab, handler: str) -> None:
    """Two topics, sixteen partitions, and two tasks: each record is handled once, and each partition is read whole."""
    tps = [TopicPartition(name, partition) for name in (lab.topic(8), lab.topic(8)) for partition in range(8)]
    outcomes = {tp: ["acked", "failed", "acked", "skipped"] * 3 + ["acked"] * tp.partition for tp in tps}
    words = {"failed": b"fail", "skipped": b"skip"} if handler == "by_word" else {}
    for tp in tps:
        values = [words.get(outcome, outcome.encode()) for outcome in outcomes[tp]]
        put(lab.broker, tp.topic, [(None, value) for value in values], tp.partition)
    fresh = {tp: (tp.partition % 3, len(outcomes[tp])) for tp in tps}
    totals: set[int | None] = set()
    job = lab.job(handler, fresh)
    result = lab.run(job, lambda handled: totals.add(handled.total))
    assert totals <= {sum(end - start for start, end in fresh.values())}  # a quick job ends before it is looked at
    assert len(result.files) <= 2 * len({"acked", "failed", "skipped"})
    rows = [(row["topic"], row["partition"], row["offset"], row["outcome"]) for row in lab.rows(job)]
    expected = [(*tp, offset, outcomes[tp][offset]) for tp in sorted(tps) for offset in range(*fresh[tp])]
    assert (rows, result.calls) == (expected, len(expected))
    assert set(result.fetches) <= set(tps)


# ---- isolation: a handler in processes of its own, beside Spark's Python workers (faults 11 and 12)


def test_what_kills_or_hangs_its_process_fails_alone(lab: Lab) -> None:
    """Fresh records of one partition and retries of another, in one job."""
    name = lab.topic(2)
    for partition in range(2):
        put(lab.broker, name, [(b"k", word) for word in WORDS], partition)
    fresh, retries = TopicPartition(name, 0), TopicPartition(name, 1)
    attempts = {retries: dict.fromkeys(range(1, 6), 2)}
    job = lab.job("by_deed", {fresh: (0, 6)}, attempts, isolated=True, record_timeout=3.0)
    result = lab.run(job)
    assert (lab.outcomes(job), result.calls) == (EXPECTED + EXPECTED[1:], 9)


def test_a_tuple_that_kills_its_process_fails_its_record_alone(lab: Lab) -> None:
    """In the task of a step behind an exchange, at most once."""
    records = [items({}, {}), items({}, {"second": "segfault"}, {}), items({}, {})]
    tp = lab.put(*(json.dumps({"items": record}).encode() for record in records))
    job = lab.ran(SPLIT, {tp: (0, 3)}, topology=GROUPED, isolated=True, once=True)
    assert lab.outcomes(job) == [(0, "acked", None), (1, "failed", "WorkerLost"), (2, "acked", None)]
    assert set(lab.calls(tp.topic).values()) == {1}
