"""The lab: a pipeline with topics and a clock of its own, run turn by turn on the real broker and Delta.

Its jobs run in this process, or on Spark in labs of the fixture `spark_lab`. Each `run()` opens the pipeline anew, as a
process of its own does: only the tables and Kafka keep anything between two runs. A test reads the broker and the
tables by other means than the product's own. The independent checker judges each lab when its test ends.
"""

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ackline.lane import commit as commit_step
from ackline.lane.adapters import Adapters, open_adapters
from ackline.lane.lease import WhenHeld
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE, Plan, SettledPartition, Settlement
from ackline.local.broker import Broker
from ackline.pipeline.pipeline import load
from ackline.steps import plan as planning_step
from ackline.steps import replay as replay_step
from ackline.steps import run as run_step
from ackline.steps import settle as settle_step
from ackline.verify.check import Sources, check
from tests.e2e import wire
from tests.e2e.commands import ROOT, Finished, run_as_process, run_here
from tests.support import journal

__all__ = ["ROOT", "Lab", "Row", "Spark", "all_of", "fails"]

Spark = Callable[[], SparkSession]
Value = Mapping[str, object] | bytes | None
"""JSON for the journal handler (`{"fail": 1}`), bytes as they are, or a tombstone."""


class Row(NamedTuple):
    """What a test compares of a row of `outcomes`; `end` is set if the row is for a range of offsets."""

    offset: int
    attempt: int
    outcome: str
    end: int | None = None


class Lab:
    """One pipeline. `now` is the time of each run; `advance_clock` moves it."""

    def __init__(
        self,
        broker: Broker,
        folder: Path,
        spark: Spark,
        *,
        partitions: int = 1,
        topics: int = 1,
        topic_config: Mapping[str, str] | None = None,
        create: bool = True,
        **settings: Any,
    ) -> None:
        self.broker, self.folder, self.spark = broker, folder, spark
        unique = uuid.uuid4().hex[:10]
        self.name, self.group, self.dead_letter_topic = f"lab-{unique}", f"group-{unique}", f"dead-{unique}"
        self.topics = [f"topic-{unique}-{n}" for n in range(topics)]
        self.topic = self.topics[0]
        self.audit = str(folder / "audit")
        self.journal = os.environ[journal.JOURNAL]
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.judged = False
        """Whether the checker has judged the lab since its last run. A test that destroys the evidence sets it."""
        self.journalled = True
        """Whether the handler writes its calls into the journal."""
        self._calls_returned: Counter[TopicPartition] = Counter()
        self.settings = self._settings(settings)
        if create:
            for topic in self.topics:
                broker.create_topic(topic, partitions, topic_config)
            if self.settings["dead_letter"] != "none":
                broker.create_topic(self.dead_letter_topic)
        self.configure()

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        kafka = {"bootstrap_servers": self.broker.bootstrap, "group_id": self.group, "topics": self.topics}
        more = given.get("kafka", {})
        if {"pattern", "partitions", "connection"} & more.keys():
            kafka.pop("bootstrap_servers" if "connection" in more else "topics")
        return {
            "name": self.name,
            "handler": "tests.support.journal:handle",
            "dead_letter": {"topic": self.dead_letter_topic},
            **given,
            "kafka": {**kafka, **more},
        }

    @property
    def file(self) -> Path:
        return self.folder / "pipelines" / f"{self.name}.yaml"

    def configure(self, **changed: Any) -> None:
        self.settings |= changed
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(yaml.safe_dump(self.settings))
        self.pipeline = load(self.file)

    # ---- what happens ---------------------------------------------------------------------------------------------

    def advance_clock(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def produce(self, *values: Value, partition: int = 0, topic: str | None = None) -> None:
        """Produce records; returns when the broker has acknowledged all of them."""
        wire.produce(self.broker.bootstrap, topic or self.topic, map(encoded, values), partition)

    def produce_records(self, count: int, special: Mapping[int, Value] | None = None, **where: Any) -> None:
        """Produce `count` records that the handler acks; `special` replaces some of them, by position."""
        self.produce(*((special or {}).get(n, {"n": n}) for n in range(count)), **where)

    def adapters(self, run_id: str | None = None, lane: str = LIVE) -> Any:
        """Returns a context manager that opens the pipeline at the lab's time, and gives the `Adapters` of a lane."""
        self.judged = False
        run_id = run_id or f"test-{uuid.uuid4().hex[:6]}"
        # Rivals of one turn, some of them paused; tests/lane/test_lease.py has the runs that wait.
        return open_adapters(
            self.pipeline,
            run_id=run_id,
            actor="test",
            now=self.now,
            audit=self.audit,
            lane=lane,
            when_held=WhenHeld.TAKE_OVER,
        )

    def run(self) -> run_step.RunResult:
        with self.adapters() as adapters:
            return run_step.run(adapters, self.spark)

    def plan(self) -> Plan:
        with self.adapters() as adapters:
            planned = planning_step.plan(adapters).plan
        assert planned is not None
        return planned

    def replay(self) -> replay_step.Replayed:
        with self.adapters() as adapters:
            return replay_step.replay(adapters, self.spark)

    def settle(self) -> commit_step.CommitResult:
        with self.adapters() as adapters:
            return settle_step.settle(adapters)

    def ackline(self, *arguments: str, env: Mapping[str, str] | None = None) -> Finished:
        """Run the command `ackline` in this process; returns its status and output."""
        if arguments[0] == "run":
            self.judged = False
        return run_here(arguments, {**self.environment, **(env or {})})

    def ackline_process(self, *arguments: str, env: Mapping[str, str] | None = None) -> Finished:
        """Run the command `ackline` as a process of its own; returns its status and output."""
        self.judged = False
        return run_as_process(arguments, {**self.environment, **(env or {})})

    def ackline_json(self, *arguments: str) -> Any:
        """Returns the JSON that a command prints; it succeeds, and prints nothing else on standard output."""
        done = self.ackline(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @property
    def environment(self) -> dict[str, str]:
        return {"ACKLINE_PIPELINES": str(self.file.parent), "ACKLINE_AUDIT": self.audit}

    def move_group(self, offset: int, metadata: str = "", partition: int = 0) -> None:
        """Commit an offset for the group, as a client from outside."""
        wire.commit_offset(self.broker.bootstrap, self.group, (self.topic, partition), offset, metadata)

    def delete_group(self) -> None:
        """Delete the group with its commits, as the broker does with a group that commits nothing for a week."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})  # kept: its requests end with it
        admin.delete_consumer_groups([self.group])[self.group].result(30)

    def expire(self, before: int, partition: int = 0) -> None:
        """Delete the records below `before`, as retention does."""
        wire.delete_records(self.broker.bootstrap, (self.topic, partition), before)

    # ---- what came of it ------------------------------------------------------------------------------------------

    def group_commit(self, partition: int = 0, topic: str | None = None) -> tuple[int, str] | None:
        """Returns the group's committed offset and its metadata; None without a commit."""
        return wire.committed_offset(self.broker.bootstrap, self.group, (topic or self.topic, partition))

    def committed(self, partition: int = 0, topic: str | None = None) -> int | None:
        commit = self.group_commit(partition, topic)
        return commit[0] if commit else None

    def calls(self) -> list[journal.Call]:
        return [call for call in journal.read(self.journal) if call.topic in self.topics]

    def new_calls(self, partition: int = 0, topic: str | None = None) -> list[tuple[int, int]]:
        """Returns (offset, attempt) of a partition's handler calls since this method last returned them, sorted."""
        tp = TopicPartition(topic or self.topic, partition)
        calls = [(call.offset, call.attempt) for call in self.calls() if (call.topic, call.partition) == tp]
        new, self._calls_returned[tp] = calls[self._calls_returned[tp] :], len(calls)
        return sorted(new)

    def new_offsets(self, partition: int = 0, topic: str | None = None) -> list[int]:
        return [offset for offset, _ in self.new_calls(partition, topic)]

    @property
    def tables(self) -> str:
        return f"{self.audit}/{self.name}"

    def table(self, name: str) -> list[dict[str, Any]]:
        """Returns all rows of a table; none if it does not exist."""
        if not DeltaTable.is_deltatable(f"{self.tables}/{name}"):
            return []
        table = DeltaTable(f"{self.tables}/{name}").to_pyarrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def rows(self, partition: int = 0, topic: str | None = None) -> list[Row]:
        """Returns the effective rows of one partition, sorted: those whose turn is settled and not void."""
        effective = {(s["lane"], s["epoch"], s["turn"]) for s in self.table("settlements") if s["kind"] != "void"}
        return sorted(
            Row(row["offset"], row["attempt"], row["outcome"], row["end_offset"])
            for row in self.table("outcomes")
            if (row["topic"], row["partition"]) == (topic or self.topic, partition)
            and (row["lane"], row["epoch"], row["turn"]) in effective
        )

    def outcomes(self, partition: int = 0) -> Counter[str]:
        return Counter(row.outcome for row in self.rows(partition))

    def settlement(self) -> Settlement:
        with self.adapters() as adapters:
            assert isinstance(adapters, Adapters)
            newest = adapters.store.newest()
        assert newest is not None
        return newest

    def settled(self, partition: int = 0, topic: str | None = None) -> SettledPartition:
        return self.settlement().partitions[TopicPartition(topic or self.topic, partition)]

    def pending(self, partition: int = 0) -> list[int]:
        pending = self.settled(partition).state.pending
        return [offset for offsets in pending for offset in range(offsets.start, offsets.end)]

    def letters(self) -> list[wire.Read]:
        return wire.read(self.broker.bootstrap, self.dead_letter_topic)

    def sources(self) -> Sources:
        """Returns where the independent checker finds the evidence of the live lane."""
        journal_file = self.folder / "journal"
        lines = (f"{c.topic}\t{c.partition}\t{c.offset}\t{c.attempt}\t{c.pid}\n" for c in self.calls())
        journal_file.write_text("".join(lines))
        return Sources(
            self.broker.bootstrap,
            self.audit,
            self.name,
            self.group,
            [topic for topic in self.topics if topic in wire.topics(self.broker.bootstrap)],
            dead_letter_topic=None if self.settings["dead_letter"] == "none" else self.dead_letter_topic,
            isolation=self.pipeline.kafka.isolation,
            journal=str(journal_file) if self.journalled else None,
        )

    def violations(self, settled: bool = False) -> list[str]:
        """Returns what the independent checker finds. With `settled`, unfinished work is a violation, too."""
        retry = self.pipeline.retry
        # The checker judges by a single limit of retries; a policy by error class or a class of its own has none.
        max_retries = None if retry.by_error or retry.class_ else retry.max_retries
        return check(self.sources(), max_retries=max_retries, settled=settled).violations

    def judge(self, settled: bool = False) -> None:
        """Fails if the checker finds a violation. With `settled`, unfinished work is a violation, too."""
        if not settled and not DeltaTable.is_deltatable(f"{self.tables}/settlements"):  # nothing was stored before that
            assert self.name not in (self.group_commit() or (0, ""))[1]
            return
        violations = self.violations(settled)
        assert not violations, "\n".join(violations)
        self.judged = True


def encoded(value: Value) -> wire.Write:
    """Returns a record with this value; only a tombstone has a key."""
    if value is None:
        return wire.Write(None, key=b"gone")
    return wire.Write(value if isinstance(value, bytes) else json.dumps(value).encode())


def all_of(outcome: str, offsets: Iterable[int], attempt: int = 1) -> list[Row]:
    return [Row(offset, attempt, outcome) for offset in offsets]


def fails(offsets: Iterable[int], times: int) -> dict[int, Value]:
    """Returns records for `Lab.produce_records` whose handler call fails so often; -1: always."""
    return {offset: {"fail": times} for offset in offsets}
