"""A replay is one action: each record read once, each handler call made once, nothing stored by what failed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline.errors import FatalError, RangeGone, TransientError
from ackline.local.broker import Broker
from ackline.offsets import OffsetRange, TopicPartition
from ackline.outcome import Outcome
from ackline.spark import read
from ackline.spark.job import run_replay
from ackline.spark.read import tasks_for
from tests.conftest import MakeTopic
from tests.contract.kafka_log import delete_before, fill
from tests.spark.bench import Bench, stats

JOURNAL = "ackline.testing.journal:handle"


def test_the_handler_is_called_once_a_record(bench: Bench, topic: MakeTopic) -> None:
    """Fault 9: a plan that is evaluated twice would call it twice. S33: every partition, each record once."""
    name = topic(3)
    for partition in range(3):
        fill(bench.broker, name, 30_000, partition)
    places = [TopicPartition(name, partition) for partition in range(3)]
    job = bench.job(JOURNAL, dict.fromkeys(places[:2], (0, 30000)), {places[2]: dict.fromkeys(range(500), 2)})
    result = bench.run(job)
    wanted = {(partition, offset, 1) for partition in range(2) for offset in range(30_000)}
    calls = bench.calls(name)
    assert set(calls) == wanted | {(2, offset, 2) for offset in range(500)}
    assert set(calls.values()) == {1}
    assert result.calls == 60_500
    assert sum(file.rows for file in result.files) == 60_500


def test_a_hundred_thousand_retries_are_read(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    fill(bench.broker, name, 200_000)
    place = TopicPartition(name, 0)
    job = bench.job("ack", None, {place: dict.fromkeys(range(0, 200_000, 2), 3)})
    result = bench.run(job)
    assert result.counts == {place: {Outcome.ACKED: 100_000}}
    assert result.fetched_for_retries < 400_000


def test_a_file_holds_one_outcome_of_one_partition_and_says_so(bench: Bench, topic: MakeTopic) -> None:
    name = topic(2)
    for partition in range(2):
        fill(bench.broker, name, 1000, partition, lambda i: b"fail" if i % 10 == 3 else b"ok")
    job = bench.job("by_word", {TopicPartition(name, partition): (0, 1000) for partition in range(2)})
    result = bench.run(job)
    assert sorted((file.partition, file.outcome, file.rows) for file in result.files) == [
        (0, "acked", 900),
        (0, "failed", 100),
        (1, "acked", 900),
        (1, "failed", 100),
    ]
    for file in result.files:
        said, path = stats(file), Path(bench.table.uri, file.path)
        rows = pq.ParquetFile(path).read().to_pylist()
        assert path.stat().st_size == file.size
        assert said["numRecords"] == file.rows == len(rows)
        for column in said["minValues"].keys() - {"handled_at", "record_timestamp"}:
            values = [row[column] for row in rows]
            assert (said["minValues"][column], said["maxValues"][column]) == (min(values), max(values))
        for column, nulls in said["nullCount"].items():
            assert nulls == sum(row[column] is None for row in rows)
        low = min(row["handled_at"] for row in rows).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert said["minValues"]["handled_at"] == low


def test_committed_files_are_read_alike_by_delta_and_by_arrow(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    fill(bench.broker, name, 100, 0, lambda i: b"fail" if i % 10 == 3 else b"ok")
    job = bench.job("by_word", {TopicPartition(name, 0): (0, 100)})
    result = bench.run(job)
    table = DeltaTable(bench.table.uri)
    whole = table.to_pyarrow_table(filters=[("turn", "=", job.turn)])
    assert sorted(whole["offset"].to_pylist()) == list(range(100))
    failed = table.to_pyarrow_table(filters=[("outcome", "=", "failed")])
    assert sorted(failed["offset"].to_pylist()) == list(range(3, 100, 10))
    opened = [
        row for file in result.files for row in pq.ParquetFile(Path(bench.table.uri, file.path)).read().to_pylist()
    ]
    names = ["offset", "outcome", "error_class", "error_message", "handled_at", "record_timestamp", "run_id"]
    key = [[row[name] for name in names] for row in sorted(opened, key=lambda row: row["offset"])]
    assert [[row[name] for name in names] for row in bench.rows(job)] == key
    parts = dict(part.split("=") for part in result.files[0].path.split("/")[:2])
    assert parts == {"pipeline": "orders", "plan_date": "2024-05-06"}


def test_spark_reads_the_files_too(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    fill(bench.broker, name, 100, 0, lambda i: b"fail" if i % 10 == 3 else b"ok")
    result = bench.run(bench.job("by_word", {TopicPartition(name, 0): (0, 100)}))
    paths = [f"{bench.table.uri}/{file.path}" for file in result.files]
    rows = bench.spark.read.parquet(*paths).groupBy("outcome").count().collect()
    assert {row["outcome"]: row["count"] for row in rows} == {"acked": 90, "failed": 10}


def test_a_range_that_retention_took_is_said(bench: Bench, topic: MakeTopic) -> None:
    """S41, fault 17: never a silent start further up."""
    name = topic()
    fill(bench.broker, name, 50)
    delete_before(bench.broker, name, 10)
    with pytest.raises(RangeGone):
        run_replay(bench.spark, bench.job("ack", {TopicPartition(name, 0): (5, 50)}))


def test_offsets_that_never_come_are_an_error(bench: Bench, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range beyond the log's end: neither success nor a hang of minutes."""
    name = topic()
    fill(bench.broker, name, 10)
    monkeypatch.setattr(read, "POLL_TIMEOUT_MS", 2000)
    with pytest.raises((RangeGone, TransientError)):
        run_replay(bench.spark, bench.job("ack", {TopicPartition(name, 0): (0, 20)}))


def test_a_retry_beyond_the_log_is_the_readers_error(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    fill(bench.broker, name, 10)
    with pytest.raises(FatalError, match=name):
        run_replay(bench.spark, bench.job("ack", None, {TopicPartition(name, 0): {10_000: 2}}))


def test_tasks_are_small_enough_to_watch_and_large_enough_to_pay() -> None:
    def tasks(*sizes: int, cores: int = 4) -> int:
        ranges = {TopicPartition("t", number): OffsetRange(0, size) for number, size in enumerate(sizes)}
        return tasks_for(ranges, cores)

    assert tasks(10) == 1
    assert tasks(10, 10, 10, 10, 10, 10) == 6
    assert tasks(100_000) == 4
    assert tasks(5_000_000) == 20


def run_and_die(
    broker: Broker, topic: str, folder: Path, once: bool
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A job over 2,000 records under `local[2,4]` whose worker is killed at offset 700; what it said, and the calls."""
    fill(broker, topic, 2000)
    script = f"""
import json
from pathlib import Path
from ackline.offsets import TopicPartition
from ackline.spark.session import open_session
from tests.spark.bench import Bench

class Known:
    bootstrap = {broker.bootstrap!r}

bench = Bench(open_session(), Known(), Path({str(folder / "audit")!r}), Path("none"))
job = bench.job("dies_once", {{TopicPartition({topic!r}, 0): (0, 2000)}}, once={once})
result = bench.run(job)
print(json.dumps({{"rows": bench.outcomes(job), "calls": result.calls}}))
bench.spark.stop()
"""
    environment = {
        **os.environ,
        "ACKLINE_SPARK_MASTER": "local[2,4]",
        "DIES_ONCE": str(folder),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (folder / "died").exists()
    return done, (folder / "calls").read_text().split()


@pytest.mark.slow
def test_a_task_that_is_done_again_leaves_no_row_twice(broker: Broker, topic: MakeTopic, tmp_path: Path) -> None:
    """Fault 7: a Python worker is killed in the middle of its task (`local[2,4]`)."""
    done, calls = run_and_die(broker, topic(), tmp_path, once=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == [[offset, "acked", None] for offset in range(2000)]
    assert found["calls"] == 2000
    assert len(calls) > 2000


@pytest.mark.slow
def test_s50_a_task_that_may_have_handled_its_records_is_not_done_again(
    broker: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    done, calls = run_and_die(broker, topic(), tmp_path, once=True)
    assert "it refuses" in done.stderr
    assert len(calls) == len(set(calls))
