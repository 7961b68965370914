"""What happens inside a Spark task: it calls the handler on its records, and writes their outcomes to files.

The task keeps its share of the rate limit (`max_rate`). Tasks do not communicate: each gets the run's rate divided by
the number of tasks that may run at the same time, and never exceeds that. A task that a slow handler or broker has
delayed catches up by at most one second's worth.

The task hashes the keys of records. The JVM does not, although it is faster: the secret would have to be part of an
expression, and Spark shows expressions in plans, in its page and in the event log.
"""

import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from ackline.errors import ConfigError, FatalError
from ackline.handler import Tier
from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import NO_TIMESTAMP, ErrorClass, Outcome
from ackline.pipeline.properties import key_hash
from ackline.pipeline.topology import SOURCE_STEP
from ackline.worker.files import Chunk, OutcomeCounter, OutcomeFiles
from ackline.worker.isolation.handler_process import IsolatedHandler
from ackline.worker.outcomes import (
    INVALID_WORD,
    OUTCOME_WORDS,
    Outcomes,
    RowOutcome,
    outcome_clock,
    outcome_of_word,
    tombstone_outcome,
)
from ackline.worker.progress import TaskProgress, calls_under_way
from ackline.worker.records import OUT_OF_RANGE, GoneOffsets, Int64s, Records
from ackline.worker.settings import ReplaySettings, TaskSettings, manifest
from ackline.worker.streams import CallHandler, load_call

_CATCH_UP_SECONDS = 1.0
_PORTION_SECONDS = 0.1
"""A record handler gets this many seconds' worth of records at a time, so that the records come evenly."""
_MAX_PORTION = 1000
"""Records that a record handler gets at a time, at most."""


class RateLimit:
    """One Spark task's share of `max_rate`, in records a second, from now on."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._used_until = clock()

    def wait(self, records: int) -> None:
        """Waits until this many more records may be handled. At any time since the start, the records handled are at
        most rate · seconds."""
        now = self._clock()
        self._used_until = max(self._used_until, now - _CATCH_UP_SECONDS) + records / self._rate
        while (left := self._used_until - self._clock()) > 0:
            self._sleep(left)

    def portions(self, records: Records, tier: Tier, deliver_tombstones: bool) -> Iterator[Records]:
        """Yields `records` in parts, each when it may be handled. A part is at most a second's worth; a record handler
        gets smaller ones. Tombstones that the handler does not get are free."""
        size = int(self._rate) if tier is Tier.ARROW else min(_MAX_PORTION, int(self._rate * _PORTION_SECONDS))
        for start in range(0, len(records), max(1, size)):
            part = records.slice(start, max(1, size))
            self.wait(len(part) if deliver_tombstones else len(part) - int(part.values.null_count))
            yield part


def rate_per_task(max_rate: int, tasks: int, cores: int | None) -> float:
    """Returns the records a second that each task may handle. With `cores` None all tasks may run at the same time."""
    return max_rate / max(1, tasks if cores is None else min(tasks, cores))


FETCHED = "fetched"
TOMBSTONE = "tombstone"
UNREADABLE = "unreadable"
"""Values of the column `note` in the column tier. A row with a note has no outcome of the handler. `expired` and
`compacted` are notes, too."""


class TaskRun:
    """One Spark task. As a context manager it removes the files of a task that fails."""

    def __init__(self, settings: TaskSettings, source: str = "fresh") -> None:
        self._source = source
        settings.replay.enter()
        self._settings = settings
        self._clock = outcome_clock(settings.replay.now, settings.replay.not_before)
        files = OutcomeFiles if settings.replay.record_outcomes else OutcomeCounter
        secret = settings.replay.key_hash_secret
        self._key_hash = None if secret is None else key_hash(secret)
        has_trees = settings.replay.topology is not None
        self._files = files(settings.target, key_hashes=secret is not None, trees=has_trees)
        self._waits: dict[TopicPartition, FetchTimes] = {}
        self._last_offsets: dict[TopicPartition, int] = {}
        self._calls = 0
        self._fetched = 0
        self._out_of_range = 0
        self._rate_limit = RateLimit(settings.rate) if settings.rate else None
        self._call = self._load_call()
        under_way = self._call.calls_ended if isinstance(self._call, IsolatedHandler) else calls_under_way
        self._progress = TaskProgress(settings.progress, SOURCE_STEP, f"{part_of_task()}-{source}", under_way)

    def _load_call(self) -> CallHandler | None:
        settings = self._settings
        if settings.tier is Tier.COLUMN:
            return None
        if settings.replay.isolated:
            return IsolatedHandler(without_secrets(settings.replay), settings.tier, self._clock)
        with naming_host():
            return load_call(settings.replay, settings.tier)

    def __enter__(self) -> Self:
        """Checks, before the first record, that this task may start. Raises what `TaskFolder.check` raises, and
        ConfigError if the handler does not import."""
        try:
            ignore_ctrl_c()
            if isinstance(self._call, IsolatedHandler):
                with naming_host():
                    self._call.start()
            # The import comes before the marker: after an import that fails, another executor may take this part.
            check_start(self._settings, self._source)
            self._progress.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._progress.end()
        if isinstance(self._call, IsolatedHandler):
            self._call.close()
        if kind is not None:
            self._files.discard()

    def count_fetched(self, records: int) -> None:
        """Counts records that the broker sent for retries."""
        self._fetched += records

    def count_wait(self, tp: TopicPartition, wait: FetchTimes) -> None:
        """Counts how long a batch of records took to come."""
        if wait.count and tp.partition >= 0:  # a row that is about no record has partition -1
            self._waits[tp] = self._waits.get(tp, FetchTimes()) + wait

    def handle(self, records: Records) -> None:
        """Calls the handler, and stores the outcomes. `records` are one of the portions that `portions` yields."""
        assert self._call is not None
        outcomes = self._call(records)
        self._calls += outcomes.calls
        self._store_records(records, outcomes)

    def _store_records(self, records: Records, outcomes: Outcomes) -> None:
        hashes = self._hashes(records.keys)
        self._store(records.tp, records.offsets, records.timestamps, records.attempts, outcomes, hashes)
        self._progress.add(len(records))

    def _hashes(self, keys: pa.Array) -> pa.Array | None:
        """Returns the hash of each key, null for a record without one; None if the pipeline stores no hashes."""
        if self._key_hash is None:
            return None
        distinct = keys.dictionary_encode()  # each different key of the batch is hashed once
        hashes = [self._key_hash(key) for key in distinct.dictionary.to_pylist()]
        return pa.array(hashes, pa.int64()).take(distinct.indices)

    def store_gone(self, gone: GoneOffsets) -> None:
        """Stores retries that the log no longer holds. They have attempt 0, because no handler was called."""
        offsets = np.array(gone.offsets, dtype=np.int64)
        self._check_order(gone.tp, offsets)
        timestamps, handled_at = np.full_like(offsets, NO_TIMESTAMP), np.full_like(offsets, self._clock())
        chunk = Chunk(offsets, timestamps, np.zeros(len(offsets), np.int32), handled_at)
        self._files.add(gone.tp, gone.outcome, chunk)
        self._progress.add(len(offsets))

    def store_unreadable(self, records: Records) -> None:
        """Stores each of `records`, which no handler can get, as failed."""
        time = self._clock()
        failed = [_unreadable(row, time) for row in range(len(records))]
        self._store_records(records, Outcomes(np.full(len(records), time, dtype=np.int64), failed))

    def store_column(self, tp: TopicPartition, batch: pa.RecordBatch) -> None:
        """Stores rows of one topic-partition, each of which has either the column handler's `outcome` or a `note`."""
        notes = batch.column("note")
        if self._rate_limit is not None:
            self._rate_limit.wait(notes.null_count)
        if notes.null_count == batch.num_rows:
            return self._store_words(tp, batch)
        values = notes.to_pylist()
        for note in dict.fromkeys(values):
            offsets = batch.filter(pa.array([value == note for value in values])).column("offset").to_pylist()
            if note == FETCHED:
                self._fetched += sum(offsets)
            elif note in (Outcome.EXPIRED, Outcome.COMPACTED):
                self.store_gone(GoneOffsets(tp, offsets, Outcome(note)))
        has_record = [value in (None, TOMBSTONE, UNREADABLE) for value in values]
        if any(has_record):
            self._store_words(tp, batch.filter(pa.array(has_record)))
        return None

    def _store_words(self, tp: TopicPartition, batch: pa.RecordBatch) -> None:
        words, notes, time = batch.column("outcome"), batch.column("note"), self._clock()
        valid = pc.fill_null(pc.is_in(words, OUTCOME_WORDS), False)
        acked = pc.and_(pc.and_(valid, notes.is_null()), pc.fill_null(pc.equal(words, "acked"), False))
        not_acked = []
        for row in np.flatnonzero(~acked.to_numpy(zero_copy_only=False)).tolist():
            if notes[row].as_py() == UNREADABLE:
                not_acked.append(_unreadable(row, time))
            elif notes[row].is_valid:
                not_acked.append(tombstone_outcome(row, time))
            elif valid[row].as_py():
                module = str(self._settings.replay.handler)
                not_acked.append(outcome_of_word(row, words[row].as_py(), None, None, None, time, module))
            else:
                not_acked.append(RowOutcome(row, Outcome.FAILED, ErrorClass.INVALID_OUTCOME, INVALID_WORD, time))
        self._calls += notes.null_count
        handled_at = np.full(batch.num_rows, time, dtype=np.int64)
        timestamps = batch.column("timestamp").cast(pa.int64()).fill_null(NO_TIMESTAMP).to_numpy(zero_copy_only=False)
        out_of_range = batch.column("out_of_range").to_numpy(zero_copy_only=False)
        timestamps = np.where(out_of_range, OUT_OF_RANGE, timestamps)
        attempts = batch.column("attempt").to_numpy()
        offsets = batch.column("offset").to_numpy()
        hashes = None if self._key_hash is None else self._hashes(batch.column("key"))
        self._store(tp, offsets, timestamps, attempts, Outcomes(handled_at, not_acked), hashes)
        self._progress.add(len(offsets))

    def _store(
        self,
        tp: TopicPartition,
        offsets: Int64s,
        timestamps: Int64s,
        attempts: Any,
        outcomes: Outcomes,
        hashes: pa.Array | None,
    ) -> None:
        self._check_order(tp, offsets)
        self._out_of_range += int(np.count_nonzero(timestamps == OUT_OF_RANGE))
        whole = Chunk(offsets, timestamps, attempts, outcomes.handled_at, key_hashes=hashes, trees=outcomes.trees)
        if not outcomes.not_acked:
            self._files.add(tp, Outcome.ACKED, whole)
            return
        acked = np.ones(len(offsets), dtype=np.bool_)
        others: dict[Outcome, list[RowOutcome]] = defaultdict(list)
        for result in outcomes.not_acked:
            acked[result.row] = False
            failed = result.outcome is Outcome.FAILED
            others[self._settings.replay.on_failure if failed else result.outcome].append(result)
        self._files.add(tp, Outcome.ACKED, whole.take(np.flatnonzero(acked)))
        for outcome, results in others.items():
            chunk = replace(
                whole.take(np.array([result.row for result in results])),
                handled_at=np.array([result.handled_at for result in results], dtype=np.int64),
                classes=[result.error_class for result in results],
                messages=[result.error_message for result in results],
                places=[result.error_place for result in results],
                dues=[result.due for result in results] if outcome is Outcome.IN_FLIGHT else None,
                trees=pa.array([result.tree for result in results], pa.string()).dictionary_encode(),
            )
            self._files.add(tp, outcome, chunk)

    def _check_order(self, tp: TopicPartition, offsets: Int64s) -> None:
        """Raises FatalError if an offset came twice or out of order: a column handler may multiply or sort rows."""
        last = self._last_offsets.get(tp, -1)
        if not len(offsets):
            return
        if offsets[0] <= last or (len(offsets) > 1 and int(np.diff(offsets).min()) <= 0):
            raise FatalError(f"{tp}: records came twice or out of order after offset {last}; nothing was stored")
        self._last_offsets[tp] = int(offsets[-1])

    def portions(self, records: Records) -> Iterable[Records]:
        """Returns the records in the portions that this task handles before it sends rows, each when the rate limit
        allows it."""
        if self._rate_limit is None:
            return (records,)
        return self._rate_limit.portions(records, self._settings.tier, self._settings.replay.deliver_tombstones)

    def rows(self) -> Iterable[pa.RecordBatch]:
        """Returns rows for the tasks after this one; none without steps."""
        return ()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Closes the files. Returns the rows that are left, the last of which are the task's manifest."""
        return (self._manifest(),)

    def _manifest(self, **of_trees: Any) -> pa.RecordBatch:
        """Returns the task's manifest; `of_trees` is what `manifest` takes beside the counts of each task."""
        files, counts = self._files.close(), self._files.counts
        return manifest(files, counts, self._waits, self._calls, self._fetched, self._out_of_range, **of_trees)


def without_secrets(settings: ReplaySettings) -> ReplaySettings:
    """Returns the settings for the handler's process, without the secrets that only the task itself needs. The key of
    the tokens stays: a token is made when the handler reads it."""
    return replace(settings, store_options=None, key_hash_secret=None, outputs=None)


def ignore_ctrl_c() -> None:
    """Makes a Python worker of Spark ignore SIGINT: a terminal sends it to each process of the command. The driver
    cancels the job and ends its workers. Without this, the record that is being handled would fail with
    KeyboardInterrupt, and idle workers would print a traceback."""
    if TaskContext.get() is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def naming_host() -> Iterator[None]:
    """Adds the host to a ConfigError: a handler may import on some executors only."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the executor on {socket.gethostname()}: {error}", key=error.key) from None


def _unreadable(row: int, time: int) -> RowOutcome:
    return RowOutcome(row, Outcome.FAILED, ErrorClass.UNDECODABLE, "the name of a header is not UTF-8", time)


def check_start(settings: TaskSettings, name: str) -> None:
    """Checks that the task `name` of this part may start. Raises what `TaskFolder.check` raises."""
    if settings.folder is not None:
        # Spark may make one part of a fresh read and an exact read that have one part each, so a marker names both.
        settings.folder.check(f"{part_of_task()}-{name}")


def part_of_task() -> int:
    """Returns the number of this task among those of its stage, which is the same in each attempt; 0 outside Spark."""
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
