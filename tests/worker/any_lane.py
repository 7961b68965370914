"""The lane of the tests with any values: real Delta tables, a world in memory for Kafka, and Spark's tasks in process.

What the tasks and settle send goes through the real Kafka client to a broker of the client's own, which the test starts
in this process. `run_lane` is a lane from its first record until nothing is pending, and judges it.
"""

import json
import os
import re
import traceback
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Message, Producer
from deltalake import DeltaTable

from ackline.cli.account import failure_lines
from ackline.handler import Tier
from ackline.kafka import dead_letters, fetching
from ackline.kafka.dead_letters import DeadLetters
from ackline.kafka.fetching import Headers, headers_of
from ackline.kafka.produce import OutputTopics
from ackline.lane.adapters import translation_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import NO_TIMESTAMP
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE
from ackline.tables.store import LedgerStore
from ackline.trees import output_rows
from ackline.trees.in_process import manifests_of_tasks
from ackline.worker import tasks
from ackline.worker.outcomes import OUTCOME_WORDS
from ackline.worker.records import OUT_OF_RANGE, TIMESTAMP, from_spark
from ackline.worker.settings import FIRST_UNREADABLE, ReplayJob, TaskSettings
from ackline.worker.tasks import assign_reads, read_retries, store_column
from tests.support import memory_adapters
from tests.support.in_process import run_in_process
from tests.support.memory import LogRecord
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_kafka import MemoryReader
from tests.support.memory_lane import ACKS, MemoryLane
from tests.worker import any_handlers
from tests.worker.any_handlers import ACTS, EMITTED, STREAMS, TOKENS, Act
from tests.worker.any_values import UNREADABLE
from tests.worker.task_lab import KeyValue

_NOT_IN_NAMES = re.compile(r"[\0-\x20\x7f-\x9f,;{}()=]")
SECONDS_A_TURN = 5
_MOST_TURNS = 6
"""Turns after which nothing is pending: two attempts, each of which an answer or a deadline may end."""


class Case(NamedTuple):
    """One record that is not plain, and what is done for it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]
    act: Act
    answers: Sequence[tuple[Callable[[bytes], bytes | None], bytes | None]] = ()
    """What answers it, turn by turn: what makes a key of the token, and a value."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens before a turn. With `plain` there is a plain record before and behind each case, and forged
    answers."""

    cases: Sequence[Case]
    plain: bool
    answers: Sequence[tuple[bytes | None, bytes | None]] = ()
    records_a_batch: int = 9


@dataclass(frozen=True, slots=True)
class Kind:
    """A pipeline file, and the other settings that some lanes of the kind have."""

    file: Mapping[str, Any]
    options: Sequence[Mapping[str, Any]] = ()
    batches: bool = False
    """Whether one call handles a batch of records."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """By stream of the source, the table that takes it."""
    joined: str | None = None
    """The table that gets one row of each plain record from a step."""


def as_spark_reads(tp: TopicPartition, records: Sequence[LogRecord]) -> pa.RecordBatch:
    """Records of a log in the columns of Spark's Kafka source."""
    return pa.RecordBatch.from_pydict({
        "topic": pa.array([tp.topic] * len(records)),
        "partition": pa.array([tp.partition] * len(records), pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": pa.array([record.timestamp * 1000 for record in records], TIMESTAMP),
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "headers": pa.array([_as_json(record.headers) for record in records], pa.string()),
    })  # fmt: skip


def _as_json(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """The headers as Spark's `to_json` writes them, which leaves out what is null."""
    pairs = [{"key": key} | ({} if value is None else {"value": b64encode(value).decode()}) for key, value in headers]
    return json.dumps(pairs) if pairs else None


def _with_outcomes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What `ackline.spark.lineage.with_outcomes` has Spark compute."""
    rows, words = batch.select(["offset", "note", "timestamp", "out_of_range"]).to_pylist(), OUTCOME_WORDS.to_pylist()
    given = [ACTS[row["offset"]].word if row["offset"] in ACTS else "acked" for row in rows]
    places = [words.index(word) + 1 if word in words else 0 for word in given]
    codes = [place if row["note"] is None else row["note"] for row, place in zip(rows, places, strict=True)]
    known = batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIMESTAMP)
    timestamps = pc.if_else(batch.column("out_of_range"), OUT_OF_RANGE, known)
    kept = batch.drop_columns(["timestamp", "note", "out_of_range"]).append_column("timestamp", timestamps)
    return kept.append_column("outcome", pa.array(codes, pa.int32()))


def _headers_of(message: Message) -> Headers | None:
    """The headers as the client gives them: none if a name is not UTF-8, for which `UNREADABLE` stands here."""
    headers = headers_of(message)
    return None if any(name == UNREADABLE for name, _ in headers or ()) else headers


@dataclass(frozen=True, slots=True)
class Senders:
    """What sends dead letters and rows for topics, to a broker in this process. They stay open between two turns: a new
    producer waits half a second until it may send."""

    letters: DeadLetters
    topics: OutputTopics


@contextmanager
def senders_in_process() -> Iterator[Senders]:
    """Senders to a broker of the Kafka client's own, which lives as long as its client."""
    client = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    [broker] = client.list_topics(timeout=30).brokers.values()
    config = {"bootstrap.servers": f"{broker.host}:{broker.port}"}
    senders = Senders(DeadLetters(config, "dead"), OutputTopics(config))
    with pytest.MonkeyPatch.context() as patch:
        for kind in (DeadLetters, OutputTopics):
            patch.setattr(kind, "close", lambda _: None)
        yield senders
    senders.letters.close()
    senders.topics.close()


class AnyLane(MemoryLane):
    """A lane on disk. Two tasks in this process handle what is fresh, in small batches as Spark's source gives them."""

    def __init__(self, root: Path, kind: Kind, options: Mapping[str, Any], plain: KeyValue) -> None:
        self.root, self.kind, self.plain, self.records_a_batch = root, kind, plain, 9
        super().__init__(**{**kind.file, **options})
        for topic in ("acks", "sent"):
            self.create(topic)

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        made = super().adapters(*arguments)
        on_disk: dict[str, Any] = {
            "store": LedgerStore(str(self.root), "lane", LIVE),
            "run_job": lambda _, job, __: run_in_process(job, self._manifests),
            "fixed_now": self.world.now,
            "translation": translation_of(made.pipeline, {}),
            "key_hash_secret": b"a secret of the tests" if made.pipeline.audit.key_hash else None,
        }
        return replace(made, **(on_disk | changes))

    def _manifests(self, job: ReplayJob, task: TaskSettings) -> Sequence[pa.RecordBatch]:
        exact_from = {tp: first for tp in job.fresh if (first := self._first_unreadable(tp)) is not None}
        job = assign_reads(replace(job, exact_from=exact_from))
        if task.tier is not Tier.COLUMN:
            return manifests_of_tasks(job, task, self._fresh_of_tasks(job))
        parts, indexes = SimpleNamespace(value=[job.retries]), pa.RecordBatch.from_pydict({"id": [0]})
        sources = [self._noted(job), read_retries(job.kafka, parts)(iter([indexes] if job.retries else []))]
        of_tasks = [chain(*sources)] if job.settings.once else sources
        return [row for batches in of_tasks for row in store_column(task)(map(_with_outcomes, batches))]

    def _first_unreadable(self, tp: TopicPartition) -> int | None:
        """The first offset that Spark's source can't read; 0 if a timestamp is too small, as that is not looked up."""
        stamps = [(record.timestamp, record.offset) for record in self.log(tp).written.values()]
        if any(stamp <= -FIRST_UNREADABLE for stamp, _ in stamps):
            return 0
        return min((offset for stamp, offset in stamps if stamp >= FIRST_UNREADABLE), default=None)

    def _fresh(self, job: ReplayJob) -> Iterator[pa.RecordBatch]:
        for tp, offsets in sorted(job.fresh.items()):
            every = [self.log(tp).written[offset] for offset in range(offsets.start, offsets.end)]
            for start in range(0, len(every), self.records_a_batch):
                yield as_spark_reads(tp, every[start : start + self.records_a_batch])

    def _fresh_of_tasks(self, job: ReplayJob) -> Iterable[Iterator[pa.RecordBatch]]:
        every = list(self._fresh(job))
        if job.settings.once:  # without Spark all tasks have the same number, and each may start once
            return (iter(every),)
        return iter(every[: len(every) // 2]), iter(every[len(every) // 2 :])

    def _noted(self, job: ReplayJob) -> Iterator[pa.RecordBatch]:
        for batch in self._fresh(job):
            tp = TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())
            yield tasks._with_note(from_spark(tp, batch))

    def append(self, key: bytes | None, value: bytes | None, case: Case | None = None) -> int:
        offset = self.log().append(value, self.world.now, key=key, headers=case.headers if case is not None else ())
        if case is not None:
            self.log().written[offset] = self.log().written[offset]._replace(timestamp=case.timestamp)
            ACTS[offset] = case.act
        return offset

    def answer(self, key: bytes | None, value: bytes | None) -> None:
        self.log(ACKS).append(value, self.world.now, key=key)

    def run_and_report(self) -> None:
        """Runs the lane, and makes the report of the command `ackline run`."""
        failure_lines(self.run(), self.adapters().store, "lane", "run")
        self.world.now += timedelta(seconds=SECONDS_A_TURN)


@contextmanager
def any_lane(
    kind: Kind, options: Mapping[str, Any], plain: KeyValue, senders: Senders
) -> Iterator[tuple[AnyLane, pytest.MonkeyPatch]]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for of_before in (ACTS, TOKENS, EMITTED):
            of_before.clear()
        lane = AnyLane(Path(folder), kind, options, plain)
        isolation = lane.adapters().pipeline.kafka.isolation
        patch.setattr(tasks, "ExactReader", lambda *_: MemoryReader(lane.world, isolation))
        patch.setattr(memory_adapters, "MemoryLetters", lambda *_: senders.letters)
        patch.setattr(output_rows, "OutputTopics", lambda _: senders.topics)
        for module in (fetching, dead_letters):
            patch.setattr(module, "headers_of", _headers_of)
        patch.setattr(os, "fsync", lambda _: None)  # a third of the time, and no value depends on it
        yield lane, patch


def failure_of(kind: Kind, options: Mapping[str, Any], plain: KeyValue, turns: Sequence[Turn], senders: Senders) -> str:
    """Runs a lane over all turns, until nothing is pending; `plain` is key and value of a plain record. Returns why it
    has failed, empty if it has not: each record has its outcome, each plain record is acked, and the tables have the
    rows of acked records alone. A text, because pytest can't show an exception that has one of a handler as its
    context."""
    try:
        with any_lane(kind, options, plain, senders) as (lane, patch):
            _judge(lane, _run(lane, turns, patch))
    except BaseException as error:
        lines = traceback.format_tb(BaseException.__dict__["__traceback__"].__get__(error))
        return "".join([*lines, str(type(error)), "\n", _text_of(error)])
    return ""


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "an exception of a handler, without a text"


def _run(lane: AnyLane, turns: Sequence[Turn], patch: pytest.MonkeyPatch) -> set[int]:
    """Runs a lane until nothing is pending. Returns the offsets of the plain records."""
    plain: set[int] = set()
    # The first rows of an inferred table decide on its columns, so no later plain row fits those of odd rows.
    patch.setattr(any_handlers, "STREAMS", STREAMS if turns[0].plain else STREAMS[1:])
    answers: dict[int, list[tuple[Callable[[bytes], bytes | None], bytes | None]]] = {}
    for turn in turns:
        # An Arrow handler fails its whole batch, so a plain record needs one of its own.
        lane.records_a_batch = 1 if lane.kind.batches and turn.plain else turn.records_a_batch
        patch.setattr(tasks, "_BATCH_ROWS", lane.records_a_batch)
        for case in turn.cases:
            plain |= {lane.append(*lane.plain)} if turn.plain else set()
            answers[lane.append(case.key, case.value, case)] = list(case.answers)
        plain |= {lane.append(*lane.plain)} if turn.plain else set()
        for key, value in turn.answers:
            lane.answer(key, value)
        for offset, token in TOKENS.items():
            if answers[offset]:
                mangle, value = answers[offset].pop(0)
                lane.answer(mangle(token.encode()), value)
        lane.run_and_report()
    for _ in range(_MOST_TURNS):
        if not lane.pending():
            break
        for run in lane.state().pending.of_kind(PendingKind.IN_FLIGHT):
            for offset in range(run.start, run.end):
                lane.answer(TOKENS[offset].encode(), b"ack")
        lane.run_and_report()
    return plain


def _judge(lane: AnyLane, plain: set[int]) -> None:
    store, end = lane.adapters().store, lane.log().end
    assert (lane.pending(), lane.floor(), lane.committed()) == ([], end, end), "nothing is pending"
    rows = DeltaTable(store.outcomes.uri).to_pyarrow_table().to_pylist()
    ended = [(row["offset"], row["attempt"]) for row in rows if row["outcome"] != "in_flight"]
    assert len(ended) == len(set(ended)), "one outcome an attempt"
    assert {row["offset"] for row in rows} == set(range(end)), "each offset has an outcome"
    acked = {row["offset"] for row in rows if row["outcome"] == "acked"}
    touched = [tuple(row.values())[7:13] for row in rows if row["offset"] in plain - acked]
    assert not touched, touched
    for stream, name in lane.kind.outputs.items():
        counts = Counter(row["_offset"] for row in _published(store, name))
        del counts[None]  # of rows that are anchored to nothing
        expected = Counter({offset: EMITTED[offset][stream] for offset in acked & EMITTED.keys()})
        assert counts == expected, f"{name} has the rows of the acked records"
    if lane.kind.joined is not None and lane.adapters().pipeline.tracking:
        published = _published(store, lane.kind.joined)
        assert {row["_offset"] for row in published} <= {None, *acked}
        assert sorted(row["plain"] for row in published if row["plain"] is not None) == sorted(plain)


def _published(store: LedgerStore, name: str) -> list[dict[str, Any]]:
    """The rows of an output table, whose names any tool can read."""
    uri = f"{store.root}/lane/outputs/{name}"
    if not DeltaTable.is_deltatable(uri):
        return []
    rows = DeltaTable(uri).to_pyarrow_table()
    assert not _NOT_IN_NAMES.search("".join(rows.column_names))
    return list(rows.to_pylist())
