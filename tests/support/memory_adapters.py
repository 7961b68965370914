"""The adapters of a pipeline over a `World`: all that the steps need, with a reader of its logs in place of Spark."""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ackline.errors import FatalError, RangeGone, TransientError
from ackline.handler import Dead, InFlight, Record, Skip, sign_tokens_with
from ackline.kafka.copies import CopyReader
from ackline.kafka.dead_letters import DeadLetters, FoundLetter, LetterId
from ackline.kafka.exact import ExactReader, Gone
from ackline.kafka.fetching import Headers
from ackline.kafka.produce import OutputTopics
from ackline.lane.adapters import Adapters, Progress
from ackline.ledger.backoff import parse_duration
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRanges
from ackline.ledger.order import NO_KEY, WHOLE_PARTITION, Order
from ackline.ledger.outcomes import UNIX_EPOCH, ErrorClass, Outcome, timestamp_of
from ackline.ledger.pending import UNKNOWN_KEY
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.functions import load_partition_filter
from ackline.pipeline.pipeline import Pipeline
from ackline.worker.files import WrittenFile
from ackline.worker.outcomes import error_class_of
from tests.support.memory import (
    BEFORE,
    READ,
    ArrivedLetter,
    HandlerCall,
    Hook,
    InFlightSkipped,
    LogRecord,
    World,
    next_fault,
    no_hook,
)
from tests.support.memory_kafka import MemoryCluster, MemoryCopies, MemoryGroup, MemoryLetters, MemoryReader
from tests.support.memory_store import MemoryStore
from tests.support.memory_table import OutcomesFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ackline.spark.job import ReplayResult
    from ackline.worker.settings import ReplayJob


TOKEN_KEYS = (b"a key of the tests, in memory",)
"""What the tokens of a world are signed with."""


@dataclass(frozen=True, slots=True)
class MemoryAdapters(Adapters):
    """The adapters of one pipeline in a world, for one process."""

    world: World | None = None
    hook: Hook = no_hook

    def reader(self) -> ExactReader:
        assert self.world is not None
        return MemoryReader(self.world, self.pipeline.kafka.isolation, self.hook)

    def task_folder(self, turn: TurnId) -> Any:
        """Opens nothing: tasks in memory need no folder."""
        self.hook("task folder", BEFORE)
        return nullcontext()

    def remove_task_folders(self, turn: TurnId) -> None:
        """Does nothing: tasks in memory leave no folders."""

    def copy_sender(self) -> OutputTopics:
        assert self.world is not None
        return MemoryCopies(self.world, self.hook, self.run_id)

    def dead_letter_sender(self, topic: str) -> DeadLetters:
        assert self.world is not None
        return MemoryLetters(self.world, topic, self.hook, self.run_id)

    def send_answers(self, topic: str, answers: Sequence[tuple[str, str]]) -> None:
        assert self.world is not None
        log = self.world.log(TopicPartition(topic, 0))
        assert log is not None
        for token, value in answers:
            log.append(value.encode(), self.world.now, key=token.encode())

    def find_letter(self, topic: str, wanted: LetterId, given_up_at: datetime) -> FoundLetter | None:
        """Returns the last dead letter with this identity. A world keeps no headers of records: each record has two
        of the same name."""
        assert self.world is not None
        arrived = [event for event in self.world.history if isinstance(event, ArrivedLetter)]
        found = [(at, letter) for at, letter in enumerate(arrived) if wanted.is_of(letter.headers)]
        if not found:
            return None
        at, letter = found[-1]
        sent_at, headers = self.world.now, letter.headers
        source: Headers = [("trace", b"t-1"), ("trace", b"t-2")]
        return FoundLetter(TopicPartition(topic, 0), at, sent_at, headers, source, letter.key, letter.value)


def memory_adapters(
    world: World,
    pipeline: Pipeline,
    run_id: str,
    hook: Hook = no_hook,
    fixed_now: datetime | None = None,
    lane: str = LIVE,
) -> MemoryAdapters:
    """Returns the adapters of a lane in a world, for one process; `fixed_now` sets its clock, as `--now` does."""

    def run_job(_: "Callable[[], SparkSession]", job: "ReplayJob", on_progress: Progress | None) -> "ReplayResult":
        return MemoryJob(world, job, hook).run()

    isolation = pipeline.kafka.isolation
    return MemoryAdapters(
        pipeline=pipeline,
        store=MemoryStore(world, pipeline.name, lane, run_id, hook),
        cluster=MemoryCluster(world, isolation, hook),
        group=MemoryGroup(world, pipeline.kafka.group_id, run_id, hook),
        kafka={"bootstrap.servers": "memory"},
        token_keys=TOKEN_KEYS if pipeline.ack_topic is not None else None,
        run_id=run_id,
        actor="test",
        fixed_now=fixed_now,
        clock=world.clock,
        sleep=lambda _: None,
        run_job=run_job,
        check_job=lambda *_: None,
        code=lambda: world.code,
        partition_filter=load_partition_filter(pipeline.kafka.partition_filter),
        world=world,
        hook=hook,
    )


def no_session() -> Any:
    """Takes the place of the function that opens a Spark session; a job in memory never calls it."""
    raise AssertionError("no Spark is needed here")


class MemoryJob:
    """One replay: calls the world's handler once for each record, and writes outcome files that no commit names yet."""

    def __init__(self, world: World, job: "ReplayJob", hook: Hook) -> None:
        self._world, self._job, self._hook = world, job, hook
        self._turn = job.target.turn
        self._calls = 0
        self._behind = {tp: dict(waiting.behind) for tp, waiting in job.waiting.items()}
        """By partition: the lowest offset of each key that holds its later ones back."""

    def run(self) -> "ReplayResult":
        """Does what `ackline.spark.job.run_replay` does. Raises RangeGone if a log no longer holds its range."""
        from ackline.spark.job import ReplayResult  # here, because it imports pyspark

        # Each key becomes a file; its last part: whether the rows are of retries.
        rows: dict[tuple[TopicPartition, Outcome, bool], list[OutcomeRow]] = {}
        fresh = ((tp, row) for tp, planned in sorted(self._job.fresh.items()) for row in self._fresh(tp, planned))
        reads = [(False, fresh), (True, self._retries())]
        # With an order all that a partition tries again comes before what it has not read.
        for is_retry, found in reads if self._job.settings.order is Order.NONE else reversed(reads):
            for tp, row in found:
                rows.setdefault((tp, row.outcome, is_retry), []).append(row)
        if next_fault(self._world.faults.jobs):
            raise TransientError("Spark did not get through; the same step may succeed later")
        kept = rows.items() if self._job.settings.record_outcomes else ()
        files = tuple(self._file(tp, outcome, written) for (tp, outcome, _), written in kept)
        counts: dict[TopicPartition, dict[Outcome, int]] = {}
        for (tp, outcome, _), written in rows.items():
            counts.setdefault(tp, {}).setdefault(outcome, 0)
            counts[tp][outcome] += len(written)
        fetches = {tp: FetchTimes(1) for tp in counts}
        fetched = sum(len(runs) for runs in self._job.retries.values())
        unacked = sum(row.error_class == ErrorClass.UNACKED for written in rows.values() for row in written)
        return ReplayResult(files, counts, self._calls, fetched, fetches, unacked=unacked)

    def _fresh(self, tp: TopicPartition, planned: OffsetRange) -> Iterator[OutcomeRow]:
        for offset in range(planned.start, planned.end):
            self._hook("poll", READ)
            log = self._world.log(tp)
            if log is None or not log.has_leader:
                raise TransientError("Spark did not get through (UnknownTopicOrPartitionException)")
            if offset < log.start:
                raise RangeGone("the log no longer holds the planned range: retention or deletion was faster")
            if offset >= log.readable_end(self._job.kafka.isolation_level):
                raise FatalError("the Spark job failed (TimeoutException)")
            record = log.record(offset, self._job.kafka.isolation_level)
            if record is not None:
                yield self._in_order(tp, record, 1)

    def _retries(self) -> Iterator[tuple[TopicPartition, OutcomeRow]]:
        attempts = {tp: _spread(runs) for tp, runs in sorted(self._job.retries.items())}
        wanted = {tp: sorted(numbers) for tp, numbers in attempts.items()}
        kafka = self._job.kafka
        reader = CopyReader(lambda: MemoryReader(self._world, kafka.isolation_level, self._hook), kafka.rescued)
        for answer in reader.read(wanted) if wanted else ():
            tp = answer.topic_partition
            if isinstance(answer, Gone):
                yield tp, OutcomeRow(answer.offset, 0, answer.outcome, self._now())
                continue
            message, headers = answer.message, answer.headers
            record = LogRecord(
                answer.offset, message.key(), message.value(), tuple(headers or ()), message.timestamp()[1]
            )
            yield tp, self._in_order(tp, record, attempts[tp][answer.offset])

    def _in_order(self, tp: TopicPartition, record: LogRecord, attempt: int) -> OutcomeRow:
        """Returns the outcome of a record, which is held back if a lower one of its key is not settled."""
        order, waiting = self._job.settings.order, self._job.waiting.get(tp)
        stored = UNKNOWN_KEY
        if order is Order.KEY:
            stored = NO_KEY if record.key is None else zlib.crc32(record.key)
        is_whole = order is Order.PARTITION or (waiting is not None and waiting.whole and stored != NO_KEY)
        key, behind = WHOLE_PARTITION if is_whole else stored, self._behind.setdefault(tp, {})
        skipped = record.value is None and not self._job.settings.deliver_tombstones
        if not skipped and behind.get(key, record.offset) < record.offset:
            return OutcomeRow(record.offset, 0, Outcome.HELD_BACK, self._now(), key=stored)
        row = self._handled(tp, record, attempt)._replace(key=stored)
        if not row.outcome.terminal and order is not Order.NONE and key != NO_KEY:
            behind[key] = min(behind.get(key, record.offset), record.offset)
        return row

    def _handled(self, tp: TopicPartition, record: LogRecord, attempt: int) -> OutcomeRow:
        if record.value is None and not self._job.settings.deliver_tombstones:
            return OutcomeRow(record.offset, attempt, Outcome.SKIPPED, self._now(), ErrorClass.TOMBSTONE)
        topic = self._world.topics[tp.topic]
        end = topic.logs[tp.partition].readable_end(self._job.kafka.isolation_level)
        self._calls += 1
        run_id, turn, epoch = self._job.target.run_id, self._turn.n, self._turn.epoch
        call = HandlerCall(run_id, turn, tp, topic.topic_id, record.offset, attempt, end, epoch, self._turn.lane)
        self._world.history.append(call)
        time = timestamp_of(record.timestamp)
        try:
            tokens = self._job.settings.tokens
            sign_tokens_with(tokens.token if tokens is not None else None)
            answer = self._world.handle(
                Record(*tp, record.offset, time, record.key, record.value, record.headers, attempt)
            )
            if isinstance(answer, InFlight):
                return self._in_flight(record.offset, attempt, answer)
        except Skip:
            return OutcomeRow(record.offset, attempt, Outcome.SKIPPED, self._now(), ErrorClass.SKIP)
        except Exception as error:
            name = ErrorClass.DEAD.value if isinstance(error, Dead) else error_class_of(error)
            return OutcomeRow(record.offset, attempt, self._job.settings.on_failure, self._now(), name)
        return OutcomeRow(record.offset, attempt, Outcome.ACKED, self._now())

    def _in_flight(self, offset: int, attempt: int, answer: InFlight) -> OutcomeRow:
        timeout = answer.timeout or self._job.settings.in_flight_timeout
        due = self._now() + parse_duration(timeout) if timeout is not None else None
        error_class = ErrorClass.SKIP if isinstance(answer, InFlightSkipped) else None
        return OutcomeRow(offset, attempt, Outcome.IN_FLIGHT, self._now(), error_class, due=due)

    def _now(self) -> datetime:
        """Returns the time of the job, rounded up to a millisecond like the times of all outcomes."""
        since = (self._job.settings.now or self._world.now) - UNIX_EPOCH
        return UNIX_EPOCH + timedelta(milliseconds=math.ceil(since / timedelta(milliseconds=1)))

    def _file(self, tp: TopicPartition, outcome: Outcome, rows: list[OutcomeRow]) -> WrittenFile:
        path = self._world.new_id("file")
        self._world.tables.files[path] = OutcomesFile(self._turn, {tp: tuple(rows)})
        return WrittenFile(path, 1, len(rows), outcome, "{}", 0)


def _spread(runs: ValuedRanges[int]) -> dict[int, int]:
    return {offset: run.value for run in runs for offset in range(run.start, run.end)}
