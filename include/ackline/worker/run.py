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
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import IntEnum
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext

from ackline.calling import close_handlers
from ackline.errors import ConfigError, FatalError
from ackline.handler import Tier
from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.order import NO_KEY, WHOLE_PARTITION, Order, storable
from ackline.ledger.outcomes import NO_TIMESTAMP, ErrorClass, Outcome
from ackline.pipeline.properties import key_hash
from ackline.pipeline.topology import SOURCE_STEP
from ackline.worker.files import Chunk, OutcomeCounter, OutcomeFiles
from ackline.worker.gate import Gate
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
from ackline.worker.streams import CallHandler, load_calls
from ackline.worker.under_way import CallsUnderWay

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


class Note(IntEnum):
    """What a row of the column tier has as `outcome` in place of the place of the handler's word in OUTCOME_WORDS, from
    1 on, or of 0 for another answer. Only the first two are about a record that exists."""

    TOMBSTONE = -1
    UNREADABLE = -2
    EXPIRED = -3
    COMPACTED = -4
    FETCHED = -5
    """The offset of the row is how many records the broker sent for retries."""


_ACKED = OUTCOME_WORDS.index("acked").as_py() + 1


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
        self._gates: dict[TopicPartition, Gate] = {}
        has_trees = settings.replay.topology is not None
        self._files = files(settings.target, key_hashes=secret is not None, trees=has_trees)
        self._waits: dict[TopicPartition, FetchTimes] = {}
        self._last_offsets: dict[TopicPartition, int] = {}
        self._calls = 0
        self._fetched = 0
        self._out_of_range = 0
        self._rate_limit = RateLimit(settings.rate) if settings.rate else None
        self._call = self._load_call()
        under_way = calls_under_way
        if isinstance(self._call, IsolatedHandler | CallsUnderWay):
            under_way = self._call.calls_ended
        self._progress = TaskProgress(settings.progress, SOURCE_STEP, f"{part_of_task()}-{source}", under_way)

    def _load_call(self) -> CallHandler | CallsUnderWay | None:
        settings = self._settings
        if settings.tier is Tier.COLUMN:
            return None
        if settings.replay.isolated:
            return IsolatedHandler(without_secrets(settings.replay), settings.tier, self._clock)
        with naming_host():
            return load_calls(settings.replay, settings.tier, rated=settings.rate is not None)

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
        if kind is not None and not isinstance(self._call, IsolatedHandler):  # that process ends with its objects
            if isinstance(self._call, CallsUnderWay):
                self._call.stop()
            with suppress(Exception):  # the error that ends the task says more
                close_handlers()
        if isinstance(self._call, IsolatedHandler | CallsUnderWay):
            self._call.close()
        if kind is not None:
            self._files.discard()

    def _close_handlers(self) -> None:
        """Has the handlers that are classes write what they have buffered, and end their connections. Raises the
        AcklineError of a `close`: the records that it was for are then handled again, or at most once `lost`."""
        if isinstance(self._call, IsolatedHandler):
            self._call.close_handlers()
        else:
            close_handlers()

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
        gate = self.gate(records.tp)
        if gate is not None:
            records = self.ordered(records)
        if isinstance(self._call, CallsUnderWay):
            self._store_known(self._call.take(records, gate=gate))
        else:
            self._store_known([(records, self._call(records) if gate is None else self.call_gated(records, gate))])

    def gate(self, tp: TopicPartition) -> Gate | None:
        """Returns what holds back records of a topic-partition in this task; None without an `order`."""
        replay = self._settings.replay
        if replay.order is Order.NONE:
            return None
        if tp not in self._gates:
            behind = dict(self._settings.waiting[tp].behind) if tp in self._settings.waiting else {}
            self._gates[tp] = Gate(behind, replay.on_failure is Outcome.FAILED)
        return self._gates[tp]

    def ordered(self, records: Records, readable: bool = True) -> Records:
        """Returns the records with their order keys. A tombstone that no handler gets has no order, if it is readable:
        then it is skipped, whatever its key waits for."""
        has_key, count = records.keys.is_valid().to_numpy(zero_copy_only=False), len(records)
        if self._settings.replay.order is Order.PARTITION:
            keys = np.full(count, WHOLE_PARTITION)
        elif self._is_whole(records.tp):
            keys = np.where(has_key, WHOLE_PARTITION, NO_KEY)
        else:
            hashes = self._hashes(records.keys)
            assert hashes is not None, "an order by key needs the secret that keys are hashed with"
            keys = storable(hashes.fill_null(0).to_numpy(), has_key)
        if readable and not self._settings.replay.deliver_tombstones and records.values.null_count:
            keys = np.where(records.values.is_valid().to_numpy(zero_copy_only=False), keys, NO_KEY)
        return replace(records, order_keys=keys)

    def _is_whole(self, tp: TopicPartition) -> bool:
        return tp in self._settings.waiting and self._settings.waiting[tp].whole

    def call_gated(self, records: Records, gate: Gate) -> Outcomes:
        """Returns the outcomes of records that `ordered` has returned: calls the handler for those that nothing holds
        back, one call of a key after the other."""
        assert self._call is not None
        assert not isinstance(self._call, CallsUnderWay)
        in_waves = self._settings.gets_batches
        if isinstance(self._call, IsolatedHandler):
            call = partial(self._call, gate=gate)
            return gate.call_in_waves(call, records, self._clock) if in_waves else call(records)
        return (gate.call_in_waves if in_waves else gate.call)(self._call, records, self._clock)

    def _store_known(self, known: Iterable[tuple[Records, Outcomes]]) -> None:
        for records, outcomes in known:
            self._calls += outcomes.calls
            self._store_records(records, outcomes)

    def _end_calls(self) -> None:
        """Waits for the calls that are under way, and stores their outcomes."""
        if isinstance(self._call, CallsUnderWay):
            self._store_known(self._call.finish())

    def _store_records(self, records: Records, outcomes: Outcomes) -> None:
        hashes = self._hashes_of(records)
        self._store(records.tp, records.offsets, records.timestamps, records.attempts, outcomes, hashes)
        self._progress.add(len(records))

    def _hashes(self, keys: pa.Array) -> pa.Array | None:
        """Returns the hash of each key, null for a record without one; None if the pipeline stores no hashes."""
        if self._key_hash is None:
            return None
        distinct = keys.dictionary_encode()  # each different key of the batch is hashed once
        hashes = [self._key_hash(key) for key in distinct.dictionary.to_pylist()]
        return pa.array(hashes, pa.int64()).take(distinct.indices)

    def _hashes_of(self, records: Records) -> pa.Array | None:
        """Returns what `_hashes` returns for the keys of the records, from their order keys where these are hashes."""
        keys = records.order_keys
        by_key = self._settings.replay.order is Order.KEY and not self._is_whole(records.tp)
        if keys is None or self._key_hash is None or not by_key:
            return self._hashes(records.keys)
        none = records.keys.is_null().to_numpy(zero_copy_only=False)
        left = np.flatnonzero((keys == NO_KEY) & ~none)  # tombstones
        if len(left):
            keys = keys.copy()
            keys[left] = np.asarray(self._hashes(records.keys.take(pa.array(left))))
        return pa.array(keys, mask=none)

    def store_gone(self, gone: GoneOffsets) -> None:
        """Stores retries that the log no longer holds. They have attempt 0, because no handler was called."""
        self._end_calls()  # those of lower offsets, whose outcomes come first
        offsets = np.array(gone.offsets, dtype=np.int64)
        self._check_order(gone.tp, offsets)
        timestamps, handled_at = np.full_like(offsets, NO_TIMESTAMP), np.full_like(offsets, self._clock())
        chunk = Chunk(offsets, timestamps, np.zeros(len(offsets), np.int32), handled_at)
        self._files.add(gone.tp, gone.outcome, chunk)
        self._progress.add(len(offsets))

    def store_unreadable(self, records: Records) -> None:
        """Stores each of `records`, which no handler can get, as failed, or as held back."""
        self._end_calls()
        time, gate = self._clock(), self.gate(records.tp)
        failed = [_unreadable(row, time) for row in range(len(records))]
        if gate is not None:
            records = self.ordered(records, readable=False)
            assert records.order_keys is not None
            keys, offsets = records.order_keys.tolist(), records.offsets.tolist()
            for row, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
                failed[row] = gate.held_back(row, key, offset, time) or failed[row]
                gate.note(key, offset, failed[row])
        self._store_records(records, Outcomes(np.full(len(records), time, dtype=np.int64), failed))

    def store_column(self, tp: TopicPartition, batch: pa.RecordBatch) -> None:
        """Stores rows of one topic-partition that have the columns of `ackline.spark.lineage.with_outcomes`."""
        codes = batch.column("outcome").to_numpy()
        if self._rate_limit is not None:
            self._rate_limit.wait(int(np.count_nonzero(codes >= 0)))
        kinds = np.where(codes >= Note.UNREADABLE, 0, codes)
        # Rows of one kind at a time, so that all are stored in the order of offsets.
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]):
            part, kind = batch.slice(start, end - start), int(kinds[start])
            if not kind:
                self._store_codes(tp, part, codes[start:end])
            elif kind == Note.FETCHED:
                self._fetched += sum(part.column("offset").to_pylist())
            else:
                self.store_gone(GoneOffsets(tp, part.column("offset").to_pylist(), Outcome[Note(kind).name]))

    def _store_codes(self, tp: TopicPartition, batch: pa.RecordBatch, codes: npt.NDArray[np.int32]) -> None:
        time, offsets = self._clock(), batch.column("offset").to_numpy()
        not_acked = [self._of_code(row, int(codes[row]), time) for row in np.flatnonzero(codes != _ACKED).tolist()]
        self._calls += int(np.count_nonzero(codes >= 0))
        outcomes = Outcomes(np.full(len(offsets), time, dtype=np.int64), not_acked)
        hashes = None if self._key_hash is None else self._hashes(batch.column("key"))
        timestamps, attempts = batch.column("timestamp").to_numpy(), batch.column("attempt").to_numpy()
        self._store(tp, offsets, timestamps, attempts, outcomes, hashes)
        self._progress.add(len(offsets))

    def _of_code(self, row: int, code: int, time: int) -> RowOutcome:
        if code == Note.UNREADABLE:
            return _unreadable(row, time)
        if code == Note.TOMBSTONE:
            return tombstone_outcome(row, time)
        if not code:
            return RowOutcome(row, Outcome.FAILED, ErrorClass.INVALID_OUTCOME, INVALID_WORD, time)
        word, module = OUTCOME_WORDS[code - 1].as_py(), str(self._settings.replay.handler)
        return outcome_of_word(row, word, None, None, None, time, module)

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
            rows = whole.take(np.array([result.row for result in results]))
            chunk = replace(
                rows,
                attempts=np.zeros_like(rows.attempts) if outcome is Outcome.HELD_BACK else rows.attempts,
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
        self._end_calls()
        return (self._manifest(),)

    def _manifest(self, **of_trees: Any) -> pa.RecordBatch:
        """Returns the task's manifest; `of_trees` is what `manifest` takes beside the counts of each task."""
        self._close_handlers()  # before the outcomes are reported: what a `close` could not write is not acked
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
