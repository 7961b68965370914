"""Jobs over a topic, their files committed to a real Delta table, and the rows that it then holds."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from ackline.audit.table import AuditTable
from ackline.local.broker import Broker
from ackline.offsets import OffsetRange, Run, Runs, TopicPartition
from ackline.outcome import Outcome
from ackline.spark.job import ReplayJob, ReplayResult, run_replay
from ackline.testing import journal

DAY = date(2024, 5, 6)
Row = dict[str, Any]


def attempts(offsets: Mapping[int, int]) -> Runs[int]:
    """Offsets with the number of the attempt to be made, as a plan holds them."""
    return tuple(Run(offset, offset + 1, attempt) for offset, attempt in sorted(offsets.items()))


class Bench:
    """One outcomes table; every `run` is a turn of its own."""

    def __init__(self, spark: SparkSession, broker: Broker, root: Path, journal_file: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.table = AuditTable(str(root), "outcomes")
        self.table.create()
        self._journal = journal_file
        self._turn = 0

    def job(
        self,
        handler: str,
        fresh: Mapping[TopicPartition, tuple[int, int]] | None = None,
        retries: Mapping[TopicPartition, Mapping[int, int]] | None = None,
        *,
        isolation: str = "read_committed",
        kafka: Mapping[str, str] | None = None,
        deliver_tombstones: bool = False,
        on_failure: Outcome = Outcome.FAILED,
        now: datetime | None = None,
        once: bool = False,
        **more: Any,
    ) -> ReplayJob:
        """A job of the next turn. `handler` is a function of `tests.spark.handlers`, or named with its module."""
        self._turn += 1
        return ReplayJob(
            pipeline="orders",
            lane="live",
            epoch=0,
            turn=self._turn,
            run_id=f"run-{self._turn}",
            plan_date=DAY,
            fresh={place: OffsetRange(*ends) for place, ends in (fresh or {}).items()},
            retries={place: attempts(offsets) for place, offsets in (retries or {}).items()},
            handler=handler if ":" in handler else f"tests.spark.handlers:{handler}",
            isolation=isolation,
            kafka={"bootstrap.servers": self.broker.bootstrap, **(kafka or {})},
            deliver_tombstones=deliver_tombstones,
            on_failure=on_failure,
            outcomes_root=self.table.uri,
            now=now,
            once=once,
            **more,
        )

    def run(self, job: ReplayJob) -> ReplayResult:
        """Run a job and commit its files."""
        result = run_replay(self.spark, job)
        self.commit(result)
        return result

    def commit(self, result: ReplayResult) -> None:
        """What the replay step does with the files of a job."""
        where = {"pipeline": "orders", "plan_date": DAY.isoformat()}
        files = [AddAction(f.path, f.size, where, f.modification_time, True, f.stats) for f in result.files]
        assert self.table.append(files, "test", self._turn)

    def rows(self, job: ReplayJob) -> list[Row]:
        """The table's rows of a turn, in the order of their offsets."""
        found = self.table.read(f"turn = {job.turn}").to_pylist()
        return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"], row["attempt"]))

    def outcomes(self, job: ReplayJob) -> list[tuple[int, str, str | None]]:
        """Offset, outcome and error class of each row of a turn."""
        return [(row["offset"], row["outcome"], row["error_class"]) for row in self.rows(job)]

    def calls(self, topic: str) -> Counter[tuple[int, int, int]]:
        """How often the journal handler was called for each (partition, offset, attempt)."""
        return Counter(
            (call.partition, call.offset, call.attempt) for call in journal.read(self._journal) if call.topic == topic
        )


def stats(file: Any) -> dict[str, Any]:
    """The statistics of a written file."""
    read: dict[str, Any] = json.loads(file.stats)
    return read
