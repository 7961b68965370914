"""The loop of an exact read, and what the events of a log prove about the offsets it wants.

A `Cursor` is pure: it holds which wanted offsets of a partition are answered, and derives what the log's next event
proves about the others. A `Fetcher` is one client, set up for dense or for sparse stretches, that reads many partitions
at once.

librdkafka keeps one fetch in flight to each broker, and starts the next as soon as a partition's queue runs low. The
loop therefore unassigns a partition as soon as it is answered, because its waiting fetch would hold up the others. The
loop does without a retry library: between two polls it answers offsets, seeks and unassigns, and its time limit counts
the silence since the last progress, not the time since its start.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.kafka import clients
from ackline.kafka.clients import (
    DAMAGED,
    NOT_FOUND,
    LastError,
    ackline_error,
    damaged_batch_error,
    is_login_failure,
    is_transient,
)
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import brokers
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome

SEEK_DISTANCE = 48
"""A reader seeks an offset farther ahead than this. Up to here it reads on: a seek fetches that many on average."""
DENSE_SPAN = 50_000
"""Offsets that a close stretch must span to be read for throughput: the records fetched beyond its end are few then."""

Headers = list[tuple[str, bytes | None]]

# A consumer's message always has pairs of name and bytes, although the stubs allow more. Called through methodcaller,
# because the specialised method call of a warm interpreter does not check whether the call has failed, and the client
# then returns its broken answer all the same.
_headers: Callable[[Message], Any] = methodcaller("headers")


def headers_of(message: Message) -> Headers | None:
    """Returns a record's headers in their order; a name may repeat. None if a name is not UTF-8: the client then gives
    no header at all.

    Call it once for each message: after such a failure the client's next answer ends the process.
    """
    try:
        headers = _headers(message)
    except (SystemError, UnicodeError):
        return None
    return list(headers or ())


@dataclass(frozen=True, slots=True)
class Found:
    """A wanted offset and its record."""

    message: Message
    topic_partition: TopicPartition
    offset: int
    has_headers: bool = True
    """False for a copy whose original had headers that the client can't decode."""

    @property
    def headers(self) -> Headers | None:
        """What `headers_of` returns of the record. Read it once for each message."""
        return headers_of(self.message) if self.has_headers else None

    @property
    def timestamp(self) -> tuple[int, bool]:
        """The record's timestamp in milliseconds since 1970, -1 if it has none, and whether the broker has set it."""
        kind, milliseconds = self.message.timestamp()
        return -1 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds, kind == TIMESTAMP_LOG_APPEND_TIME


@dataclass(frozen=True, slots=True)
class Gone:
    """A wanted offset that is proved to hold no record: retention (EXPIRED) or compaction (COMPACTED) removed it."""

    topic_partition: TopicPartition
    offset: int
    outcome: Outcome


@dataclass(slots=True)
class Cursor:
    """One partition's ascending wanted offsets and how far they are answered.

    `wanted[:index]` are answered; `wanted[index:stop]` are the stretch that is being read. `position` is the next
    offset that the client hands out, as far as the reader can tell.
    """

    tp: TopicPartition
    wanted: Sequence[int]
    index: int = 0
    stop: int = 0
    position: int = 0

    @property
    def next(self) -> int:
        """The lowest offset without an answer."""
        return self.wanted[self.index]

    @property
    def stretch_answered(self) -> bool:
        """Whether each wanted offset before `stop` is answered: the neighbouring ones that one fetch reads."""
        return self.index >= self.stop

    @property
    def all_answered(self) -> bool:
        """Whether each wanted offset is answered."""
        return self.index >= len(self.wanted)

    @property
    def must_seek(self) -> bool:
        """Whether a seek to the next wanted offset costs less than reading on to it."""
        return self.next - self.position > SEEK_DISTANCE

    def choose_stretch(self) -> bool:
        """Sets `stop` to the end of the next stretch: offsets that one kind of client reads best. Returns whether they
        are dense."""
        stop, dense = self._cluster_end(self.index), self._is_dense(self.index)
        while not dense and stop < len(self.wanted) and not self._is_dense(stop):
            stop = self._cluster_end(stop)
        self.position, self.stop = self.next, stop
        return dense

    def on_record(self, message: Message, offset: int) -> Iterator[Found | Gone]:
        """Advances to the log's next record, at `offset`. Yields `COMPACTED` for each wanted offset below it, and the
        record if it is wanted."""
        self.position = offset + 1
        yield from self.gone_below(offset, Outcome.COMPACTED)
        if not self.stretch_answered and self.next == offset:
            self.index += 1
            yield Found(message, self.tp, offset)

    def gone_below(self, offset: int, outcome: Outcome) -> Iterator[Gone]:
        """Yields `outcome` as the answer to each wanted offset of the stretch below `offset`."""
        while not self.stretch_answered and self.next < offset:
            self.index += 1
            yield Gone(self.tp, self.wanted[self.index - 1], outcome)

    def _cluster_end(self, index: int) -> int:
        """The index after the last offset that is reached from `wanted[index]` without a seek."""
        end = index + 1
        while end < len(self.wanted) and self.wanted[end] - self.wanted[end - 1] <= SEEK_DISTANCE:
            end += 1
        return end

    def _is_dense(self, index: int) -> bool:
        return self.wanted[self._cluster_end(index) - 1] - self.wanted[index] >= DENSE_SPAN


_POLL_SECONDS = 0.2
_BATCH = 1000
_OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION", "_NO_OFFSET"})


class Statistics:
    """A `stats_cb` that keeps a client's newest statistics."""

    def __init__(self) -> None:
        self._text = "{}"
        self.version = 0

    def __call__(self, text: str) -> None:
        self._text = text
        self.version += 1

    @property
    def records(self) -> int:
        """Records received, including those that were never handed out."""
        return sum(int(p["rxmsgs"]) for p in self._partitions())

    @property
    def bytes(self) -> int:
        """Bytes received from all brokers."""
        return sum(int(broker["rxbytes"]) for broker in json.loads(self._text).get("brokers", {}).values())

    @property
    def positions(self) -> int:
        """The sum of all positions: it changes while the client reads, also while it hands out no record."""
        return sum(int(p["next_offset"]) for p in self._partitions())

    def _partitions(self) -> Iterator[Any]:
        for topic in json.loads(self._text).get("topics", {}).values():
            yield from topic["partitions"].values()


class Fetcher:
    """One client that reads stretches of many partitions, and fails after `timeout` seconds without progress."""

    def __init__(
        self, config: Mapping[str, object], isolation: str, cluster: Cluster, *, dense: bool, timeout: float
    ) -> None:
        self._statistics = Statistics()
        self._config = config
        self._cluster = cluster
        self._dense = dense
        self._timeout = timeout
        self._last = LastError()
        self._passing_error: KafkaError | None = None
        self._client = clients.consumer(
            config, isolation,
            **{**(clients.DENSE_FETCH if dense else clients.SPARSE_FETCH), "error_cb": self._last,
               "stats_cb": self._statistics, "statistics.interval.ms": 200},
        )  # fmt: skip

    def close(self) -> None:
        """Closes the connection of its client."""
        self._client.close()

    def refreshed_statistics(self) -> Statistics:
        """Waits for statistics that cover everything read so far, and returns them. Call it between reads only."""
        deadline, version = time.monotonic() + 2 * _POLL_SECONDS, self._statistics.version
        while self._statistics.version == version and time.monotonic() < deadline:
            self._client.poll(0.02)
        return self._statistics

    def read(self, cursors: Sequence[Cursor]) -> Iterator[Found | Gone]:
        """Yields the answers to the wanted offsets of each cursor before its `stop`, in the order of offsets."""
        active: dict[tuple[str | None, int | None], Cursor] = {cursor.tp: cursor for cursor in cursors}
        stall = StallTimer(self._timeout, self._statistics)
        self._passing_error = None
        self._client.assign([_position(cursor) for cursor in cursors])
        try:
            while active:
                messages = self._poll(stall)
                for message in messages:
                    yield from self._answers(active, message)
                self._seek_or_leave(active, messages)
                if stall.is_stalled():
                    raise self._stall_error(active.values())
        finally:
            self._client.unassign()

    def _poll(self, stall: "StallTimer") -> list[Message]:
        started = time.monotonic()
        messages = self._client.consume(1, _POLL_SECONDS)
        stall.add(time.monotonic() - started, got_record=any(message.error() is None for message in messages))
        return messages + self._client.consume(_BATCH, 0) if messages and self._dense else messages

    def _answers(
        self, active: Mapping[tuple[str | None, int | None], Cursor], message: Message
    ) -> Iterator[Found | Gone]:
        """Yields the answers that a record, an end of a partition or an error of the log proves."""
        cursor = active.get((message.topic(), message.partition()))
        error, offset = message.error(), message.offset()
        if cursor is None or offset is None:
            if error is not None:
                self._keep_or_raise(error, None)
        elif cursor.stretch_answered:
            pass
        elif error is None:
            if offset < cursor.next:
                cursor.position = offset + 1
            else:
                yield from cursor.on_record(message, offset)
        elif error.code() == KafkaError._PARTITION_EOF:
            # The reader started at or below the wanted offset and reached the end: no record is there.
            yield from cursor.gone_below(offset, Outcome.COMPACTED)
        elif error.name() in _OUT_OF_RANGE:
            yield from self._out_of_range(cursor)
        else:
            self._keep_or_raise(error, cursor)

    def _seek_or_leave(self, active: dict[tuple[str | None, int | None], Cursor], messages: Sequence[Message]) -> None:
        """Unassigns the partitions that are answered, and seeks where the next wanted offset is far ahead."""
        for key in {(message.topic(), message.partition()) for message in messages}:
            cursor = active.get(key)
            if cursor is None:
                continue
            if cursor.stretch_answered:
                del active[key]
                self._client.incremental_unassign([ClientPartition(*cursor.tp)])
            elif cursor.must_seek:
                self._seek(cursor)

    def _seek(self, cursor: Cursor) -> None:
        cursor.position = cursor.next
        try:
            self._client.seek(_position(cursor))
        except KafkaException:  # librdkafka has stopped fetching this partition: assign it anew
            self._client.incremental_unassign([_position(cursor)])
            self._client.incremental_assign([_position(cursor)])

    def _out_of_range(self, cursor: Cursor) -> Iterator[Gone]:
        """Answers what the log lost since the read began, and seeks the next wanted offset."""
        try:
            bounds = self._cluster.bounds([cursor.tp])[cursor.tp]
        except TransientError:
            time.sleep(_POLL_SECONDS)
        else:
            yield from cursor.gone_below(bounds.start, Outcome.EXPIRED)
            if not cursor.stretch_answered and cursor.next >= bounds.end:
                time.sleep(_POLL_SECONDS)  # a broker that restarts may report too short a log for a moment
        if not cursor.stretch_answered:
            self._seek(cursor)

    def _keep_or_raise(self, error: KafkaError, cursor: Cursor | None) -> None:
        """Keeps an error that may pass; raises any other. Ignores other errors without a partition: they concern the
        group, which the reader does not use."""
        if is_transient(error) or error.name() in NOT_FOUND:
            self._passing_error = error
        elif cursor is not None or is_login_failure(error):
            raise self._ackline_error(error, cursor)

    def _ackline_error(self, error: KafkaError, cursor: Cursor | None) -> AcklineError:
        tp, offset = (cursor.tp, cursor.next) if cursor is not None else (None, None)
        if tp is not None and offset is not None and error.name() in DAMAGED:
            return damaged_batch_error(tp, offset, error.name())
        doing = "reading records" if offset is None else f"reading from offset {offset}"
        return ackline_error(error, doing, self._config, tp, offset, self._last)

    def _stall_error(self, cursors: Iterable[Cursor]) -> AcklineError:
        """Returns the error that names why no record came. Raises as `Cluster.bounds` does."""
        cursor = min(cursors, key=lambda cursor: cursor.tp)
        tp, offset = cursor.tp, cursor.next
        end = self._cluster.bounds([tp])[tp].end
        if offset >= end:
            return beyond_end(tp, offset, end)
        if self._passing_error is not None and not is_transient(self._passing_error):
            return self._ackline_error(self._passing_error, cursor)
        return TransientError(
            f"{tp}: no record came for {self._timeout:g} s from offset {offset} on, although the log ends at {end}"
            f" (at {brokers(self._config)}); check that the partition has a leader, and that no quota"
            f" (consumer_byte_rate) makes a reader wait longer; then run this again",
            tp=tp, offset=offset,
        )  # fmt: skip


class StallTimer:
    """Counts the seconds without progress: without a record, and without a step through records that the client does
    not hand out."""

    def __init__(self, timeout: float, statistics: Statistics) -> None:
        self._timeout = timeout
        self._statistics = statistics
        self._silence = 0.0
        self._positions = 0

    def add(self, seconds: float, *, got_record: bool) -> None:
        """Adds the seconds that a poll took; a record sets the timer to zero."""
        self._silence = 0.0 if got_record else self._silence + seconds

    def is_stalled(self) -> bool:
        """Whether the time-out has passed without a record, and the client's positions are those of the last time-out.

        A client that has moved gets a new time-out.
        """
        if self._silence <= self._timeout:
            return False
        before, self._positions = self._positions, self._statistics.positions
        if before == self._positions:
            return True
        self._silence = 0.0
        return False


def _position(cursor: Cursor) -> ClientPartition:
    return ClientPartition(*cursor.tp, cursor.next)


def beyond_end(tp: TopicPartition, offset: int, end: int) -> FatalError:
    """Returns the error for a wanted offset that the log never reached, or no longer reaches."""
    return FatalError(
        f"{tp}: offset {offset} is wanted, but the log ends at {end}; it was truncated, or the topic was created again",
        tp=tp, offset=offset,
    )  # fmt: skip
