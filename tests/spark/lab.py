"""Runs replay jobs over topics, on Spark or in this process, commits their files to a Delta table, and reads it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from ackline.kafka.config import client_config
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange, ValuedRanges
from ackline.ledger.order import Waiting
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId
from ackline.local.broker import Broker
from ackline.spark.job import ReplayResult, run_replay
from ackline.spark.progress import Progress
from ackline.tables.audit_table import AuditTable
from ackline.worker.files import OutcomeTarget
from ackline.worker.settings import KafkaSettings, ReplayJob, ReplaySettings
from tests.kafka.kafka_log import fill, put
from tests.support import journal
from tests.support.in_process import run_in_process

if TYPE_CHECKING:  # tests.conftest clears the environment that the scripts of these tests are started with
    from tests.conftest import MakeTopic

DAY = date(2024, 5, 6)
Row = dict[str, Any]
Fresh = Mapping[TopicPartition, tuple[int, int]]
SPARK, IN_PROCESS = "Spark", "in process"
each_runner = pytest.mark.parametrize("lab", [SPARK, IN_PROCESS], indirect=True)
"""Marks a test of the contract of both runners of jobs."""
HANDLERS = {SPARK: ["by_word", "arrow_words", "column_words"], IN_PROCESS: ["by_word", "arrow_words"]}
each_tier = pytest.mark.parametrize(
    ("lab", "handler"), [(runner, each) for runner in HANDLERS for each in HANDLERS[runner]], indirect=["lab"]
)
"""Marks such a test that takes handlers whose words are outcomes, of each tier that the runner has."""
Retries = Mapping[TopicPartition, Mapping[int, int]]


class Lab:
    """One outcomes table; each job is a turn of its own. Without a session, jobs run in this process."""

    def __init__(
        self, spark: SparkSession | None, broker: Broker, root: Path, journal_file: Path, topic: "MakeTopic"
    ) -> None:
        self.spark: Any = spark
        self.broker, self.topic = broker, topic
        self.table = AuditTable(str(root), "outcomes")
        self.table.create()
        self._journal = journal_file
        self._turn = 0

    def partitions(self, *counts: int) -> list[TopicPartition]:
        names = [(self.new_topic(count), count) for count in counts]
        return [TopicPartition(name, number) for name, count in names for number in range(count)]

    def new_topic(self, partitions: int = 1) -> str:
        return self.topic(partitions)

    def put_records(self, tp: TopicPartition, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        put(self.broker, tp.topic, records, tp.partition)

    def put(self, *values: bytes | None, key: bytes | None = None) -> TopicPartition:
        tp = TopicPartition(self.topic(), 0)
        put(self.broker, tp.topic, [(key, value) for value in values])
        return tp

    def fill(self, count: int, *value: Callable[[int], bytes]) -> TopicPartition:
        tp = TopicPartition(self.topic(), 0)
        fill(self.broker, tp.topic, count, 0, *value)
        return tp

    def job(
        self, handler: str, fresh: Fresh | None = None, retries: Retries | None = None, *,
        isolation_level: str = "read_committed", kafka: Mapping[str, str] | None = None,
        max_rate: int | None = None, isolation_reason: str = "", exact_from: Mapping[TopicPartition, int] | None = None,
        waiting: Mapping[TopicPartition, Waiting] | None = None, **settings: Any,
    ) -> ReplayJob:  # fmt: skip
        """A job of the next turn. `handler` is a function of `tests.spark.handlers`, or named with its module;
        `retries` are offsets with the number of the attempt; `settings` are those of `ReplaySettings`."""
        self._turn += 1
        path = handler if ":" in handler else f"tests.spark.handlers:{handler}"
        properties: dict[str, Any] = client_config({"bootstrap.servers": self.broker.bootstrap, **(kafka or {})})
        defaults: dict[str, Any] = {"deliver_tombstones": False, "on_failure": Outcome.FAILED, "now": None}
        return ReplayJob(
            OutcomeTarget(self.table.uri, TurnId("orders", LIVE, 0, self._turn), DAY, f"run-{self._turn}"),
            ReplaySettings(path, **(defaults | settings)),
            KafkaSettings(properties, isolation_level),
            {tp: OffsetRange(*ends) for tp, ends in (fresh or {}).items()},
            {tp: _ranges(attempts) for tp, attempts in (retries or {}).items()}, max_rate, isolation_reason,
            exact_from or {}, waiting=waiting or {},
        )  # fmt: skip

    def run(self, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
        """Runs a job, and commits its files as the replay step does."""
        result = self.replayed(job, on_progress)
        self.commit(job, result)
        return result

    def replayed(self, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
        return run_in_process(job) if self.spark is None else run_replay(self.spark, job, on_progress)

    def commit(self, job: ReplayJob, result: ReplayResult) -> None:
        partition = {"plan_date": DAY.isoformat()}
        files = [AddAction(f.path, f.size, partition, f.modification_time, True, f.stats) for f in result.files]
        assert self.table.append(files, "test", job.target.turn.n)

    def ran(self, handler: str, *ranges: Any, **settings: Any) -> ReplayJob:
        """Makes a job as `job` does, runs it and returns it."""
        job = self.job(handler, *ranges, **settings)
        self.run(job)
        return job

    def rows(self, job: ReplayJob) -> list[Row]:
        """The table's rows of a job, in the order of their offsets."""
        rows = self.table.read({"turn": job.target.turn.n}).to_pylist()
        return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"], row["attempt"]))

    def outcomes(self, job: ReplayJob) -> list[tuple[int, str, str | None]]:
        return [(row["offset"], row["outcome"], row["error_class"]) for row in self.rows(job)]

    def calls(self, topic: str) -> Counter[tuple[int, int, int]]:
        return Counter(
            (call.partition, call.offset, call.attempt) for call in journal.read(self._journal) if call.topic == topic
        )


def run_script(script: str, *arguments: str, **environment: str) -> CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)


def _ranges(attempts: Mapping[int, int]) -> ValuedRanges[int]:
    return tuple(ValuedRange(offset, offset + 1, attempt) for offset, attempt in sorted(attempts.items()))
