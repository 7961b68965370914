"""The functions that Spark's Python workers run: a task gets records, and returns the manifest of its outcomes files.

Spark's Kafka source reads fresh records; a task reads its retries itself, with exact reads. The same handler gets both,
and the same files take their outcomes. No manifest names the files of a task that failed.

Tasks also read fresh ranges exactly that Spark's Kafka source can't read: it fails the job for a timestamp that needs
more than 64 bits in microseconds, because a producer has written nanoseconds. An exact read takes several times as
long, so replay asks each partition's leader for the first timestamp that is too large. One that is too small can't be
looked up like that. The job then fails, and starts again with exact reads, but not at most once: it has handled some
records by then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from ackline.errors import FatalError, RangeGone
from ackline.kafka.copies import CopyReader
from ackline.kafka.exact import ExactReader, Found, Gone
from ackline.ledger.metrics import FetchTimes, timed_fetches
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange, ValuedRanges
from ackline.ledger.order import Order
from ackline.ledger.outcomes import Outcome
from ackline.worker.records import (
    OUT_OF_RANGE,
    RECORD_COLUMNS,
    GoneOffsets,
    Headers,
    Records,
    from_messages,
    from_spark,
)
from ackline.worker.run import Note, TaskRun
from ackline.worker.settings import KafkaSettings, ReplayJob, TaskSettings

Attempts = ValuedRanges[int]
"""Offsets of one topic-partition to read; the value is the number of the attempt that each is now given, or FRESH."""

FRESH = 0
"""The value of fresh offsets in `Attempts`: they are first attempts, and one without a record is a gap."""

Retries = Mapping[TopicPartition, Attempts]

# Connecting takes a task some tens of milliseconds. With more offsets than this, another task is worth that.
_OFFSETS_PER_TASK = 500
_MAX_OFFSETS_PER_TASK = 250_000  # a task holds them all, and its progress is seen when it ends
_TASKS_PER_CORE = 4
_BATCH_ROWS = 1000
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class UnreadableRecords:
    """Records whose headers the Kafka client can't decode, so no handler can get them. `records` has no headers."""

    records: Records

    @property
    def tp(self) -> TopicPartition:
        """The topic-partition of the records."""
        return self.records.tp


Batch = Records | GoneOffsets | UnreadableRecords


def split_for_tasks(retries: Retries, cores: int, whole: bool = False) -> list[Retries]:
    """Splits `retries` into parts of about equal size, one for each Spark task on `cores` cores. A part is a
    continuous section of the retries, in the order of topic-partitions and offsets. Splits no topic-partition if they
    stay `whole`: then its part is as large as it is."""
    total = sum(len(attempts) for ranges in retries.values() for attempts in ranges)
    tasks = max(1, min(-(-total // _OFFSETS_PER_TASK), cores * _TASKS_PER_CORE), -(-total // _MAX_OFFSETS_PER_TASK))
    return _sections(retries, -(-total // tasks), whole)


def _sections(retries: Retries, size: int, whole: bool = False) -> list[Retries]:
    """Returns continuous sections of `size` offsets each; the last may have fewer, and `whole` ones more."""
    parts: list[dict[TopicPartition, list[ValuedRange[int]]]] = []
    room = 0
    for tp, ranges in sorted(retries.items()):
        for attempts in ranges:
            start = attempts.start
            while start < attempts.end:
                if room <= 0 and not (whole and parts and tp in parts[-1]):
                    parts.append({})
                    room = size
                end = attempts.end if whole else min(attempts.end, start + room)
                parts[-1].setdefault(tp, []).append(ValuedRange(start, end, attempts.value))
                room -= end - start
                start = end
    return [{tp: tuple(ranges) for tp, ranges in part.items()} for part in parts]


@dataclass(slots=True)
class _Collected:
    """What was read of one topic-partition and is not yet yielded: records, or gone offsets with one outcome."""

    attempts: Mapping[int, int]
    messages: list[Message] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    readable: bool = True
    size: int = 0
    gone: list[int] = field(default_factory=list)
    outcome: Outcome = Outcome.EXPIRED

    def add(self, tp: TopicPartition, answer: Found | Gone) -> Iterator[Batch]:
        """Adds `answer`. Before that, yields what was collected if `answer` is of another kind; then a full batch."""
        if isinstance(answer, Gone) and self.attempts[answer.offset] == FRESH:
            if answer.outcome is Outcome.EXPIRED:  # below the log start: its record was never read, so it is no gap
                raise RangeGone(
                    f"{tp}: the log no longer holds offset {answer.offset} of the planned range; plan again"
                )
        elif isinstance(answer, Gone):
            if self.messages or answer.outcome is not self.outcome:
                yield from self.flush(tp)
            self.outcome = answer.outcome
            self.gone.append(answer.offset)
        else:
            headers = answer.headers
            if self.gone or self.readable is not (headers is not None):
                yield from self.flush(tp)
            self.readable = headers is not None
            self.messages.append(answer.message)
            self.headers.append(tuple(headers or ()))
            self.size += len(answer.message.value() or b"") + len(answer.message.key() or b"")
        if len(self.messages) + len(self.gone) >= _BATCH_ROWS or self.size >= _BATCH_BYTES:
            yield from self.flush(tp)

    def flush(self, tp: TopicPartition) -> Iterator[Batch]:
        """Yields all that was collected."""
        gone, self.gone = self.gone, []
        messages, self.messages, self.size = self.messages, [], 0
        headers, self.headers = self.headers, []
        if gone:
            yield GoneOffsets(tp, gone, self.outcome)
        if messages:
            attempts = [max(1, self.attempts[message.offset() or 0]) for message in messages]
            records = from_messages(tp, messages, headers, attempts)
            yield records if self.readable else UnreadableRecords(records)


def read_retries_exactly(kafka: KafkaSettings, retries: Retries, fetched: Callable[[int], None]) -> Iterator[Batch]:
    """Yields what `batches_of_reader` yields, with a reader of its own. At the end calls `fetched` with the number of
    records that the broker sent."""
    rescued = {tp: kafka.rescued[tp] for tp in retries if tp in kafka.rescued}
    with CopyReader(lambda: ExactReader(kafka.properties, kafka.isolation_level), rescued) as reader:
        yield from batches_of_reader(reader, retries)
        fetched(reader.delivered)


def batches_of_reader(reader: ExactReader | CopyReader, retries: Retries) -> Iterator[Batch]:
    """Yields what the log holds at the wanted offsets, in the order of offsets within a topic-partition. Yields nothing
    for a fresh offset that is a gap. Raises what `ExactReader` raises, RangeGone if retention has taken a fresh offset,
    and FatalError if the reader left an offset out."""
    for section in _sections(retries, _MAX_OFFSETS_PER_TASK):  # all offsets of one are in memory
        yield from _section_of_reader(reader, section)


def _section_of_reader(reader: ExactReader | CopyReader, retries: Retries) -> Iterator[Batch]:
    collected = {
        tp: _Collected(
            {offset: attempts.value for attempts in ranges for offset in range(attempts.start, attempts.end)}
        )
        for tp, ranges in retries.items()
    }
    answered = 0
    for answer in reader.read({tp: list(batch.attempts) for tp, batch in collected.items()}):
        answered += 1
        yield from collected[answer.topic_partition].add(answer.topic_partition, answer)
    for tp, batch in collected.items():
        yield from batch.flush(tp)
    expected = sum(len(batch.attempts) for batch in collected.values())
    if answered != expected:
        raise FatalError(f"the reader answered {answered} of {expected} retries; nothing was stored")


Ranges = Mapping[TopicPartition, OffsetRange]


def split_ranges(fresh: Ranges, exact_from: Mapping[TopicPartition, int]) -> tuple[Ranges, Ranges]:
    """Splits fresh ranges into what Spark's source reads and what exact reads do. `exact_from` has the offset of each
    partition from which on records may be unreadable."""
    by_source, exactly = dict(fresh), {}
    for tp, start in exact_from.items():
        if tp in fresh and start < fresh[tp].end:
            start = max(start, fresh[tp].start)
            by_source[tp], exactly[tp] = OffsetRange(fresh[tp].start, start), OffsetRange(start, fresh[tp].end)
    return {tp: offsets for tp, offsets in by_source.items() if len(offsets)}, exactly


def assign_reads(job: ReplayJob) -> ReplayJob:
    """Returns the job with those fresh ranges that Spark's source reads. The others are among its retries, which exact
    reads get. With an `order`, one of both reads all of a topic-partition, in the order of offsets."""
    exact_from = dict(job.exact_from)
    if job.settings.order is not Order.NONE:
        for tp, fresh in job.fresh.items():
            if tp in job.retries or exact_from.get(tp, fresh.end) < fresh.end:
                exact_from[tp] = 0
    by_source, exactly = split_ranges(job.fresh, exact_from)
    return replace(job, fresh=by_source, retries=with_fresh(job.retries, exactly))


def with_fresh(retries: Mapping[TopicPartition, Attempts], exactly: Ranges) -> dict[TopicPartition, Attempts]:
    """Returns the offsets that exact reads get: the retries, and after them the fresh ranges `exactly`."""
    joined = dict(retries)
    for tp, fresh in exactly.items():
        joined[tp] = (*retries.get(tp, ()), ValuedRange(fresh.start, fresh.end, FRESH))
    return joined


NOTED_COLUMNS = RECORD_COLUMNS.append(pa.field("note", pa.int32())).append(pa.field("out_of_range", pa.bool_()))
"""The columns of retries in the column tier. A row with a `note`, a `Note`, is about something else than a record to
handle. The timestamp of a row that is `out_of_range` is no time, so it is null."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]


OpenRun = Callable[[TaskSettings, str], TaskRun]
"""Makes the run of a task from its settings and the name of its source: `TaskRun`, or that of a pipeline with steps."""


def handle_fresh(settings: TaskSettings, open_run: OpenRun = TaskRun) -> Task:
    """Returns the task that handles records of Spark's Kafka source."""

    def task(batches: Batches) -> Batches:
        with open_run(settings, "fresh") as run:
            for batch, wait in timed_fetches(batches, perf_counter):
                for tp, part in _by_topic_partition(batch, settings.topic):
                    run.count_wait(tp, wait)
                    for portion in run.portions(from_spark(tp, part)):
                        run.handle(portion)
                        yield from run.rows()
                    wait = FetchTimes()  # the task waited once for the whole batch: its first topic-partition counts it
            yield from run.finish()

    return task


def handle_retries(settings: TaskSettings, kafka: KafkaSettings, parts: Any, open_run: OpenRun = TaskRun) -> Task:
    """Returns the task that reads and handles retries. `parts` is a broadcast list; the task's rows hold its indexes in
    the column `id`."""

    def task(batches: Batches) -> Batches:
        with open_run(settings, "exact") as run:
            for retries in _retries_of_task(batches, parts):
                yield from handle_batches(run, read_retries_exactly(kafka, retries, run.count_fetched))
            yield from run.finish()

    return task


def handle_batches(run: TaskRun, batches: Iterable[Batch]) -> Batches:
    """Handles what an exact read has found. Yields the rows for other tasks, but for those that `finish` returns."""
    for batch, wait in timed_fetches(batches, perf_counter):
        run.count_wait(batch.tp, wait)
        if isinstance(batch, GoneOffsets):
            run.store_gone(batch)
        elif isinstance(batch, UnreadableRecords):
            run.store_unreadable(batch.records)
        else:
            for portion in run.portions(batch):
                run.handle(portion)
                yield from run.rows()


def read_retries(kafka: KafkaSettings, parts: Any) -> Task:
    """Returns the task that only reads retries, as rows of NOTED_COLUMNS: a column handler runs in the JVM. `parts` is
    a broadcast list; the task's rows hold its indexes in the column `id`."""

    def task(batches: Batches) -> Batches:
        fetched: list[int] = []
        for retries in _retries_of_task(batches, parts):
            for batch in read_retries_exactly(kafka, retries, fetched.append):
                if isinstance(batch, GoneOffsets):
                    yield _note_rows(batch.tp, batch.offsets, Note[batch.outcome.name])
                elif isinstance(batch, UnreadableRecords):
                    yield _with_note(batch.records, Note.UNREADABLE)
                else:
                    yield _with_note(batch)
        yield _note_rows(TopicPartition("", -1), [sum(fetched)], Note.FETCHED)

    return task


def store_column(settings: TaskSettings) -> Task:
    """Returns the task that stores rows whose outcome a column handler has computed in the JVM."""

    def task(batches: Batches) -> Batches:
        with TaskRun(settings) as run:
            for batch, wait in timed_fetches(batches, perf_counter):
                for tp, part in _by_topic_partition(batch, settings.topic):
                    run.count_wait(tp, wait)
                    run.store_column(tp, part)
                    wait = FetchTimes()  # as in `handle_fresh`
            yield from run.finish()

    return task


def _retries_of_task(batches: Batches, parts: Any) -> Iterator[Retries]:
    for batch in batches:
        for index in batch.column("id").to_pylist():
            yield parts.value[index]


def _by_topic_partition(batch: pa.RecordBatch, topic: str | None) -> Iterable[tuple[TopicPartition, pa.RecordBatch]]:
    """Yields the consecutive rows of each topic-partition as a batch of their own."""
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


def _with_note(records: Records, note: Note | None = None) -> pa.RecordBatch:
    out_of_range = pa.array(records.timestamps == OUT_OF_RANGE)
    columns = [*records.to_arrow().columns, pa.array([note] * len(records), pa.int32()), out_of_range]
    return pa.RecordBatch.from_arrays(columns, schema=NOTED_COLUMNS)


def _note_rows(tp: TopicPartition, offsets: Sequence[int], note: Note) -> pa.RecordBatch:
    row = {"topic": tp.topic, "partition": tp.partition, "attempt": 0, "note": note, "out_of_range": False}
    return pa.RecordBatch.from_pylist([{**row, "offset": offset} for offset in offsets], schema=NOTED_COLUMNS)
