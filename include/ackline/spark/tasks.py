"""What runs in Spark's Python workers: records in, files of outcomes out, and a few rows that name the files.

Fresh records come from Spark's Kafka source, retries are read here exactly; both meet the same handler and the same
files. A task that fails leaves files that nothing names.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from ackline.errors import FatalError
from ackline.handler import Tier
from ackline.metrics import Fetches, waited
from ackline.offsets import TopicPartition
from ackline.outcome import ErrorClass, Outcome
from ackline.spark.handlers.answering import Answering, Work, answering, clock_of
from ackline.spark.handlers.call import WORDS, Answers, Clock, Unacked, spoken, tombstone
from ackline.spark.isolation.isolated import Isolated
from ackline.spark.output.outcome_files import Chunk, OutcomeCounts, OutcomeFiles
from ackline.spark.rate_limit import RateLimit
from ackline.spark.records import RECORD_COLUMNS, Int64s, Records, from_spark
from ackline.spark.retries import GoneRows, UnreadableRows, Wanted, exact_rows

MANIFEST = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("outcome", pa.string()),
        ("stats", pa.string()),
        ("modification_time", pa.int64()),
        ("calls", pa.int64()),
        ("fetched", pa.int64()),
        ("fetches", pa.int64()),
        ("fetch_seconds", pa.float64()),
        ("fetch_seconds_max", pa.float64()),
    ]
)
"""What a task returns: a row a file; without a path one for its counts, and one a partition that it waited for."""
MANIFEST_DDL = (
    "path string, size long, rows long, topic string, partition int, outcome string, stats string, "
    "modification_time long, calls long, fetched long, fetches long, fetch_seconds double, fetch_seconds_max double"
)
# In the column tier a row may stand for something else than a record; its column `note` then says for what.
NOTED = RECORD_COLUMNS.append(pa.field("note", pa.string()))
FETCHED = "fetched"
TOMBSTONE = "tombstone"
UNREADABLE = "unreadable"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Kafka:
    """How a task reads retries; holds secrets, so it travels only inside a task's own function."""

    config: dict[str, str]
    isolation: str


def handle_fresh(work: Work) -> Callable[[Batches], Batches]:
    """A task over what Spark's Kafka source reads."""

    def task(batches: Batches) -> Batches:
        with Handling(work) as handling:
            for batch, wait in waited(batches):
                if batch.num_rows:
                    rows = from_spark(batch, work.topic)
                    handling.count_wait(rows.tp, wait)
                    handling.handle(rows)
            yield handling.manifest()

    return task


def handle_retries(work: Work, kafka: Kafka, chunks: Any) -> Callable[[Batches], Batches]:
    """A task a chunk of retries; `chunks` is the broadcast list that the task's one row, `id`, points into."""

    def task(batches: Batches) -> Batches:
        with Handling(work) as handling:
            for wanted in _mine(batches, chunks):
                for rows, wait in waited(exact_rows(wanted, kafka.config, kafka.isolation, handling.count_fetched)):
                    handling.count_wait(rows.tp, wait)
                    if isinstance(rows, GoneRows):
                        handling.gone(rows)
                    elif isinstance(rows, UnreadableRows):
                        handling.unreadable(rows.rows)
                    else:
                        handling.handle(rows)
            yield handling.manifest()

    return task


def read_retries(kafka: Kafka, chunks: Any) -> Callable[[Batches], Batches]:
    """Retries as rows of `NOTED`, for a handler that stays in the JVM."""

    def task(batches: Batches) -> Batches:
        fetched: list[int] = []
        for wanted in _mine(batches, chunks):
            for rows in exact_rows(wanted, kafka.config, kafka.isolation, fetched.append):
                if isinstance(rows, GoneRows):
                    yield _noted(rows.tp, rows.offsets, rows.outcome)
                elif isinstance(rows, UnreadableRows):
                    yield _with_note(rows.rows.to_arrow(), UNREADABLE)
                else:
                    yield _with_note(rows.to_arrow())
        yield _noted(TopicPartition("", -1), [sum(fetched)], FETCHED)

    return task


def store_column(work: Work) -> Callable[[Batches], Batches]:
    """A task over rows whose outcome the JVM has computed."""

    def task(batches: Batches) -> Batches:
        with Handling(work) as handling:
            for batch, wait in waited(batches):
                for tp, part in _by_topic_partition(batch, work.topic):
                    handling.count_wait(tp, wait)
                    handling.store_column(tp, part)
                    wait = Fetches()  # it was one wait, for the batch as a whole: the first partition in it has it
            yield handling.manifest()

    return task


def _mine(batches: Batches, chunks: Any) -> Iterator[Wanted]:
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield chunks.value[number]


class Handling:
    """One task: the handler, the files, the counts. On an error the files are removed."""

    def __init__(self, work: Work) -> None:
        if work.once:
            _refuse_repetition()
        self._work = work
        self._clock = clock_of(work.now)
        self._files = OutcomeFiles(work.turn) if work.record_outcomes else OutcomeCounts(work.turn)
        self._waits: dict[TopicPartition, Fetches] = {}
        self._last: dict[TopicPartition, int] = {}
        self._calls = 0
        self._fetched = 0
        self._pace = RateLimit(work.rate) if work.rate else None
        self._answer = _answer_of(work, self._clock) if work.tier is not Tier.COLUMN else None

    def __enter__(self) -> "Handling":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(self._answer, Isolated):
            self._answer.close()
        if kind is not None:
            self._files.discard()

    def count_fetched(self, records: int) -> None:
        """Records that the broker delivered for retries."""
        self._fetched += records

    def count_wait(self, tp: TopicPartition, wait: Fetches) -> None:
        """How long a batch of records took to come."""
        if wait.count and tp.partition >= 0:  # a row that stands for no record has no partition
            self._waits[tp] = self._waits.get(tp, Fetches()) + wait

    def handle(self, rows: Records) -> None:
        """Let the handler answer, and keep the outcomes; no faster than it may."""
        if self._pace is None:
            return self._handle(rows)
        for part in self._pace.portions(rows, self._work.tier, self._work.deliver_tombstones):
            self._handle(part)
        return None

    def _handle(self, rows: Records) -> None:
        assert self._answer is not None
        answers = self._answer(rows)
        self._calls += answers.calls
        self._store(rows.tp, rows.offsets, rows.timestamps, rows.attempts, answers)

    def gone(self, rows: GoneRows) -> None:
        """Retries that the log does not hold any more: attempt 0, for no handler was called."""
        count = len(rows.offsets)
        self._in_order(rows.tp, np.array(rows.offsets, dtype=np.int64))
        chunk = Chunk(
            np.array(rows.offsets, dtype=np.int64),
            np.full(count, -1, dtype=np.int64),
            np.zeros(count, dtype=np.int32),
            np.full(count, self._clock(), dtype=np.int64),
        )
        self._files.add(rows.tp, rows.outcome, chunk)

    def unreadable(self, rows: Records) -> None:
        """Records that no handler can be given: each failed."""
        at = self._clock()
        failed = [_unreadable(row, at) for row in range(len(rows))]
        answers = Answers(np.full(len(rows), at, dtype=np.int64), failed)
        self._store(rows.tp, rows.offsets, rows.timestamps, rows.attempts, answers)

    def store_column(self, tp: TopicPartition, batch: pa.RecordBatch) -> None:
        """Rows of one topic-partition with the column handler's `outcome`, or a `note` instead."""
        notes = batch.column("note")
        if self._pace is not None:
            self._pace.take(notes.null_count)
        if notes.null_count == batch.num_rows:
            return self._store_spoken(tp, batch)
        words = notes.to_pylist()
        for note in dict.fromkeys(words):
            part = batch.filter(pa.array([word == note for word in words]))
            offsets = part.column("offset").to_pylist()
            if note == FETCHED:
                self._fetched += sum(offsets)
            elif note in (Outcome.EXPIRED, Outcome.COMPACTED):
                self.gone(GoneRows(tp, offsets, Outcome(note)))
        handled = [word in (None, TOMBSTONE, UNREADABLE) for word in words]
        if any(handled):
            self._store_spoken(tp, batch.filter(pa.array(handled)))
        return None

    def _store_spoken(self, tp: TopicPartition, batch: pa.RecordBatch) -> None:
        outcomes, notes, at = batch.column("outcome"), batch.column("note"), self._clock()
        known = pc.fill_null(pc.is_in(outcomes, WORDS), False)
        plain = pc.and_(pc.and_(known, notes.is_null()), pc.fill_null(pc.equal(outcomes, "acked"), False))
        unacked = []
        for row in np.flatnonzero(~plain.to_numpy(zero_copy_only=False)).tolist():
            if notes[row].as_py() == UNREADABLE:
                unacked.append(_unreadable(row, at))
            elif notes[row].is_valid:
                unacked.append(tombstone(row, at))
            elif known[row].as_py():
                unacked.append(spoken(row, outcomes[row].as_py(), None, None, None, at, str(self._work.handler)))
            else:
                unacked.append(Unacked(row, Outcome.FAILED, ErrorClass.INVALID_OUTCOME, _NO_WORD, at))
        self._calls += notes.null_count
        handled_at = np.full(batch.num_rows, at, dtype=np.int64)
        times = batch.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        attempts = batch.column("attempt").to_numpy()
        self._store(tp, batch.column("offset").to_numpy(), times, attempts, Answers(handled_at, unacked))

    def _store(self, tp: TopicPartition, offsets: Int64s, timestamps: Int64s, attempts: Any, answers: Answers) -> None:
        self._in_order(tp, offsets)
        if not answers.unacked:
            self._files.add(tp, Outcome.ACKED, Chunk(offsets, timestamps, attempts, answers.handled_at))
            return
        acked = np.ones(len(offsets), dtype=np.bool_)
        others: dict[Outcome, list[Unacked]] = defaultdict(list)
        for one in answers.unacked:
            acked[one.row] = False
            others[self._work.on_failure if one.outcome is Outcome.FAILED else one.outcome].append(one)
        chunk = Chunk(offsets[acked], timestamps[acked], attempts[acked], answers.handled_at[acked])
        self._files.add(tp, Outcome.ACKED, chunk)
        for outcome, ones in others.items():
            at = np.array([one.row for one in ones])
            times = np.array([one.handled_at for one in ones], dtype=np.int64)
            classes, messages = [one.error_class for one in ones], [one.error_message for one in ones]
            chunk = Chunk(offsets[at], timestamps[at], attempts[at], times, classes, messages)
            self._files.add(tp, outcome, chunk)

    def _in_order(self, tp: TopicPartition, offsets: Int64s) -> None:
        """That no row came twice. Raises FatalError: a column handler that multiplies or sorts rows, say."""
        last = self._last.get(tp, -1)
        if not len(offsets):
            return
        if offsets[0] <= last or (len(offsets) > 1 and int(np.diff(offsets).min()) <= 0):
            raise FatalError(f"{tp}: records came twice or out of order after offset {last}")
        self._last[tp] = int(offsets[-1])

    def manifest(self) -> pa.RecordBatch:
        """Close the files; rows of `MANIFEST`."""
        rows: list[dict[str, Any]] = [
            {name: getattr(file, name) for name in MANIFEST.names[:8]}
            | {"path": file.path or None, "outcome": file.outcome.value}
            for file in self._files.close()
        ]
        for tp, waits in self._waits.items():
            numbers = {"fetches": waits.count, "fetch_seconds": waits.seconds, "fetch_seconds_max": waits.longest}
            rows.append({"topic": tp.topic, "partition": tp.partition, **numbers})
        rows.append({"calls": self._calls, "fetched": self._fetched})
        return pa.RecordBatch.from_pylist(rows, schema=MANIFEST)


def _unreadable(row: int, at: int) -> Unacked:
    return Unacked(row, Outcome.FAILED, ErrorClass.UNDECODABLE, "the name of a header is not UTF-8", at)


def _refuse_repetition() -> None:
    """At most once: raise FatalError in a task that is not the first attempt at its records."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        raise FatalError("a task was tried again under at_most_once; its records may have been handled, so it refuses")


_NO_WORD = "the outcome is null, or not one of acked, failed, skipped, dead"


def _answer_of(work: Work, clock: Clock) -> Answering:
    return Isolated(work, clock) if work.isolated else answering(work)


def _by_topic_partition(batch: pa.RecordBatch, topic: str | None) -> Iterable[tuple[TopicPartition, pa.RecordBatch]]:
    """Stretches of a batch that are of one topic-partition."""
    if not batch.num_rows:
        return
    partitions = batch.column("partition").to_numpy()
    changes = partitions[1:] != partitions[:-1]
    topics = None
    if topic is None:
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(bounds):
        name = topic if topics is None else topics[start].as_py()
        yield TopicPartition(str(name), int(partitions[start])), batch.slice(start, end - start)


def _with_note(batch: pa.RecordBatch, note: str | None = None) -> pa.RecordBatch:
    columns = [*batch.columns, pa.array([note] * batch.num_rows, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=NOTED)


def _noted(tp: TopicPartition, offsets: Sequence[int], note: str) -> pa.RecordBatch:
    row = {"topic": tp.topic, "partition": tp.partition, "attempt": 0, "note": str(note)}
    return pa.RecordBatch.from_pylist([{**row, "offset": offset} for offset in offsets], schema=NOTED)
