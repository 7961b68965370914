"""The lab: a pipeline on topics of its own and a clock to set, run turn by turn on the real broker, Spark and Delta.

A "poll" of Storm's tests is `run()`, a "restart" is another `run()`: nothing is kept between two of them but the tables
and Kafka. What a test asserts is read from the broker and from the tables by other means than the product's own, and
when a test ends, the independent checker judges what it left behind.
"""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ackline.local.broker import Broker
from ackline.offsets import TopicPartition as At
from ackline.pipeline import Pipeline, load
from ackline.steps import commit as commit_step
from ackline.steps import plan as planning_step
from ackline.steps import replay as replay_step
from ackline.steps import run as run_step
from ackline.steps import settle as settle_step
from ackline.steps.parts import Parts, open_parts
from ackline.testing import journal
from ackline.turns import Plan, SettledPartition, Settlement
from ackline.verify.check import Sources, check
from tests.e2e import wire

ROOT = Path(__file__).parents[2]
Spark = Callable[[], SparkSession]
Value = Mapping[str, object] | bytes | None
"""JSON for the journal handler (`{"fail": 1}`), bytes as they are, or a tombstone."""


class Row(NamedTuple):
    """What a test says of a row of `outcomes`; of a whole range `end` is set."""

    offset: int
    attempt: int
    outcome: str
    end: int | None = None


class Lab:
    """One pipeline. `now` is the time that each run goes by; `wait` moves it."""

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
        self.name, self.group, self.dead = f"lab-{unique}", f"group-{unique}", f"dead-{unique}"
        self.topics = [f"topic-{unique}-{n}" for n in range(topics)]
        self.topic = self.topics[0]
        self.audit = str(folder / "audit")
        self.journal = os.environ[journal.JOURNAL]
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.judged = False
        """Whether the checker has judged it since it last ran; set by a test that destroys the checker's evidence."""
        self.journalled = True
        """Whether the handler writes its calls down."""
        self._called = 0
        self.settings = self._settings(settings)
        if create:
            for topic in self.topics:
                broker.create_topic(topic, partitions, topic_config)
            if self.settings["dead_letter"] != "none":
                broker.create_topic(self.dead)
        self.define()

    def _settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        kafka = {"bootstrap_servers": self.broker.bootstrap, "group_id": self.group, "topics": self.topics}
        more = given.get("kafka", {})
        if {"pattern", "partitions", "connection"} & more.keys():
            kafka.pop("bootstrap_servers" if "connection" in more else "topics")
        return {
            "name": self.name,
            "handler": "ackline.testing.journal:handle",
            "dead_letter": {"topic": self.dead},
            **given,
            "kafka": {**kafka, **more},
        }

    def define(self, **changed: Any) -> Pipeline:
        """Write the pipeline file, with settings changed for good; returns it as the product reads it."""
        self.settings |= changed
        folder = self.folder / "pipelines"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        self.pipeline = load(file)
        return self.pipeline

    # ---- what happens ---------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def produce(self, *values: Value, partition: int = 0, topic: str | None = None) -> None:
        """Append records, each acknowledged when this returns."""
        wire.produce(self.broker.bootstrap, topic or self.topic, map(encoded, values), partition)

    def records(self, count: int, special: Mapping[int, Value] | None = None, **where: Any) -> None:
        """Append `count` records that are acked, but for those whose place among them is in `special`."""
        self.produce(*((special or {}).get(n, {"n": n}) for n in range(count)), **where)

    def parts(self, run_id: str | None = None) -> Any:
        """The pipeline opened at the lab's time: a context manager of `Parts`."""
        self.judged = False
        return open_parts(
            self.pipeline, run_id=run_id or f"test-{uuid.uuid4().hex[:6]}", actor="test", now=self.now, audit=self.audit
        )

    def run(self) -> run_step.RunResult:
        """One run, in this process."""
        with self.parts() as parts:
            return run_step.run(parts, self.spark)

    def plan(self) -> Plan:
        """The step plan, by itself."""
        with self.parts() as parts:
            planned = planning_step.plan(parts).plan
        assert planned is not None
        return planned

    def replay(self) -> replay_step.Replayed:
        """The step replay, by itself."""
        with self.parts() as parts:
            return replay_step.replay(parts, self.spark)

    def settle(self) -> commit_step.CommitResult:
        """The step settle, by itself."""
        with self.parts() as parts:
            return settle_step.settle(parts)

    def command(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The command `ackline`, as a process of its own, piped."""
        return subprocess.run(
            [str(Path(sys.executable).parent / "ackline"), *arguments],
            env={**os.environ, **self.environment, **(env or {})},
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process where this lab's files are."""
        return {"ACKLINE_PIPELINES": str(self.folder / "pipelines"), "ACKLINE_AUDIT": self.audit}

    def commit(self, offset: int, metadata: str = "", partition: int = 0) -> None:
        """Move the group from outside, as any consumer could."""
        self._consumer_commit(TopicPartition(self.topic, partition, offset, metadata=metadata))

    def _consumer_commit(self, tp: TopicPartition) -> None:
        with wire.closing(Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": self.group})) as consumer:
            for done in wire.patiently(lambda: consumer.commit(offsets=[tp], asynchronous=False)):
                assert done.error is None

    def forget_commit(self) -> None:
        """The group's commits are gone, as after a week without any."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})  # kept: its requests end with it
        admin.delete_consumer_groups([self.group])[self.group].result(30)

    def expire(self, before: int, partition: int = 0) -> None:
        """Retention takes everything below `before`."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for done in admin.delete_records([TopicPartition(self.topic, partition, before)]).values():
            done.result(30)

    # ---- what came of it ------------------------------------------------------------------------------------------

    def held(self, partition: int = 0, topic: str | None = None) -> tuple[int, str] | None:
        """What the broker holds for the group: offset and metadata; None where there is nothing."""
        with wire.closing(Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": self.group})) as consumer:
            asked = [TopicPartition(topic or self.topic, partition)]
            found = wire.patiently(lambda: consumer.committed(asked, timeout=10))[0]
        return (found.offset, found.metadata or "") if found.offset >= 0 else None

    def committed(self, partition: int = 0, topic: str | None = None) -> int | None:
        """The group's committed offset, as the broker says."""
        held = self.held(partition, topic)
        return held[0] if held else None

    def calls(self) -> list[journal.Call]:
        """All handler calls of this lab, in order."""
        return [call for call in journal.read(self.journal) if call.topic in self.topics]

    def handled(self, partition: int = 0, topic: str | None = None) -> list[tuple[int, int]]:
        """(offset, attempt) of the handler calls since this was last asked, sorted, of one partition."""
        calls = self.calls()
        new, self._called = calls[self._called :], len(calls)
        return sorted((c.offset, c.attempt) for c in new if (c.topic, c.partition) == (topic or self.topic, partition))

    def offsets(self, partition: int = 0, topic: str | None = None) -> list[int]:
        """The offsets of `handled`."""
        return [offset for offset, _ in self.handled(partition, topic)]

    def table(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table; none where it is not there."""
        if not DeltaTable.is_deltatable(f"{self.audit}/{name}"):
            return []
        table = DeltaTable(f"{self.audit}/{name}").to_pyarrow_table(filters=[("pipeline", "=", self.name)])
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def rows(self, partition: int = 0, topic: str | None = None) -> list[Row]:
        """The effective rows of `outcomes` of one partition, sorted: those whose turn is settled and not void."""
        counting = {(s["lane"], s["epoch"], s["turn"]) for s in self.table("settlements") if s["kind"] != "void"}
        return sorted(
            Row(row["offset"], row["attempt"], row["outcome"], row["end_offset"])
            for row in self.table("outcomes")
            if (row["topic"], row["partition"]) == (topic or self.topic, partition)
            and (row["lane"], row["epoch"], row["turn"]) in counting
        )

    def outcomes(self, partition: int = 0) -> Counter[str]:
        """How many effective rows there are of each outcome."""
        return Counter(row.outcome for row in self.rows(partition))

    def settlement(self) -> Settlement:
        """The newest settlement."""
        with self.parts() as parts:
            assert isinstance(parts, Parts)
            newest = parts.store.newest()
        assert newest is not None
        return newest

    def settled(self, partition: int = 0, topic: str | None = None) -> SettledPartition:
        """What the newest settlement says of a partition."""
        return self.settlement().partitions[At(topic or self.topic, partition)]

    def pending(self, partition: int = 0) -> list[int]:
        """The pending offsets."""
        return [o for run in self.settled(partition).state.pending for o in range(run.start, run.end)]

    def letters(self) -> list[wire.Read]:
        """Every record of the dead-letter topic."""
        return wire.read(self.broker.bootstrap, self.dead)

    def violations(self, settled: bool = False) -> list[str]:
        """What the independent checker finds."""
        retry = self.pipeline.retry
        mine = self.folder / "journal"
        mine.write_text("".join(f"{c.topic}\t{c.partition}\t{c.offset}\t{c.attempt}\t{c.pid}\n" for c in self.calls()))
        sources = Sources(
            self.broker.bootstrap,
            self.audit,
            self.name,
            self.group,
            [topic for topic in self.topics if topic in wire.topics(self.broker.bootstrap)],
            dead_letter_topic=None if self.settings["dead_letter"] == "none" else self.dead,
            isolation=self.pipeline.kafka.isolation,
            journal=str(mine) if self.journalled else None,
        )
        # The checker judges by a single limit of retries; a policy by error class or a class of its own has none.
        max_retries = None if retry.by_error or retry.class_ else retry.max_retries
        return check(sources, max_retries=max_retries, settled=settled).violations

    def judge(self, settled: bool = False) -> None:
        """Fail where an invariant does not hold. `settled`: nothing may be left to do either."""
        if not settled and not DeltaTable.is_deltatable(f"{self.audit}/settlements"):  # killed, or refused, before that
            assert self.name not in (self.held() or (0, ""))[1]
            return
        found = self.violations(settled)
        assert not found, "\n".join(found)
        self.judged = True


def encoded(value: Value) -> wire.Write:
    """A record with this value, without a key unless it is a tombstone."""
    if value is None:
        return wire.Write(None, key=b"gone")
    return wire.Write(value if isinstance(value, bytes) else json.dumps(value).encode())


def all_of(outcome: str, offsets: Iterable[int], attempt: int = 1) -> list[Row]:
    """A row each, as `Lab.rows` has them."""
    return [Row(offset, attempt, outcome) for offset in offsets]


def fails(offsets: Iterable[int], times: int) -> dict[int, Value]:
    """For `Lab.records`: these fail so often, −1: always."""
    return {offset: {"fail": times} for offset in offsets}
