"""The loop of an exact read: one client with the settings for its kind of stretch, many partitions at once.

librdkafka keeps one fetch in flight to each broker, and starts the next as soon as a partition's queue runs
low; so a partition that is done is unassigned at once, or its waiting fetch would hold up the others.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.kafka import clients
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import brokers
from ackline.kafka.cursor import Cursor, Found, Gone
from ackline.kafka.failures import MISSING, LastError, failure, refuses_login, transient
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome

_WAIT = 0.2
_AT_ONCE = 1000
_OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION", "_NO_OFFSET"})


class Meter:
    """A client's newest statistics."""

    def __init__(self) -> None:
        self._text = "{}"
        self.count = 0

    def __call__(self, text: str) -> None:
        self._text = text
        self.count += 1

    @property
    def records(self) -> int:
        """Records received, those never handed out included."""
        return sum(int(p["rxmsgs"]) for p in self._partitions())

    @property
    def bytes(self) -> int:
        """Bytes received."""
        return sum(int(broker["rxbytes"]) for broker in json.loads(self._text).get("brokers", {}).values())

    @property
    def positions(self) -> int:
        """A number that changes while partitions are read, also where no record is handed out."""
        return sum(int(p["next_offset"]) for p in self._partitions())

    def _partitions(self) -> Iterator[Any]:
        for topic in json.loads(self._text).get("topics", {}).values():
            yield from topic["partitions"].values()


class Fetcher:
    """A client and its loop. `timeout`: seconds without progress after which reading is an error."""

    def __init__(
        self, config: Mapping[str, object], isolation: str, cluster: Cluster, *, dense: bool, timeout: float
    ) -> None:
        self.meter = Meter()
        self._config = config
        self._cluster = cluster
        self._dense = dense
        self._timeout = timeout
        self._last = LastError()
        self._trouble: KafkaError | None = None
        self._client = clients.consumer(
            config, "ackline-exact", isolation,
            **{**(clients.DENSE if dense else clients.SPARSE), "check.crcs": True, "error_cb": self._last,
               "stats_cb": self.meter, "statistics.interval.ms": 200},
        )  # fmt: skip

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def refresh_meter(self) -> None:
        """Wait for statistics that know everything read so far; only between reads."""
        deadline, seen = time.monotonic() + 2 * _WAIT, self.meter.count
        while self.meter.count == seen and time.monotonic() < deadline:
            self._client.poll(0.02)

    def read(self, cursors: Sequence[Cursor]) -> Iterator[Found | Gone]:
        """Answer the present stretch of each of `cursors`, each in its order."""
        active: dict[tuple[str | None, int | None], Cursor] = {cursor.partition: cursor for cursor in cursors}
        patience = Patience(self._timeout, self.meter)
        self._trouble = None
        self._client.assign([_start(cursor) for cursor in cursors])
        try:
            while active:
                messages = self._take(patience)
                for message in messages:
                    yield from self._answers(active, message)
                self._move(active, messages)
                if patience.over:
                    raise self._stalled(active.values())
        finally:
            self._client.unassign()

    def _take(self, patience: "Patience") -> list[Message]:
        started = time.monotonic()
        messages = self._client.consume(1, _WAIT)
        patience.waited(time.monotonic() - started, any(message.error() is None for message in messages))
        return messages + self._client.consume(_AT_ONCE, 0) if messages and self._dense else messages

    def _answers(
        self, active: Mapping[tuple[str | None, int | None], Cursor], message: Message
    ) -> Iterator[Found | Gone]:
        """What one event of the log answers."""
        cursor = active.get((message.topic(), message.partition()))
        error, offset = message.error(), message.offset()
        if cursor is None or offset is None:
            if error is not None:
                self._note(error, None)
        elif cursor.finished:
            pass
        elif error is None:
            if offset < cursor.next:
                cursor.position = offset + 1
            else:
                yield from cursor.record(message, offset)
        elif error.code() == KafkaError._PARTITION_EOF:
            yield from cursor.gone_below(offset, Outcome.COMPACTED)
        elif error.name() in _OUT_OF_RANGE:
            yield from self._out_of_range(cursor)
        else:
            self._note(error, cursor)

    def _move(self, active: dict[tuple[str | None, int | None], Cursor], messages: Sequence[Message]) -> None:
        """Leave the partitions that are answered, and seek where the next wanted offset is far."""
        for key in {(message.topic(), message.partition()) for message in messages}:
            cursor = active.get(key)
            if cursor is None:
                continue
            if cursor.finished:
                del active[key]
                self._client.incremental_unassign([ClientPartition(*cursor.partition)])
            elif cursor.far:
                self._seek(cursor)

    def _seek(self, cursor: Cursor) -> None:
        cursor.position = cursor.next
        try:
            self._client.seek(_start(cursor))
        except KafkaException:  # its fetching has stopped
            self._client.incremental_unassign([_start(cursor)])
            self._client.incremental_assign([_start(cursor)])

    def _out_of_range(self, cursor: Cursor) -> Iterator[Gone]:
        """The log has moved: answer what it lost, and go on from the next offset that is wanted."""
        try:
            bounds = self._cluster.bounds([cursor.partition])[cursor.partition]
        except TransientError:
            time.sleep(_WAIT)
        else:
            yield from cursor.gone_below(bounds.start, Outcome.EXPIRED)
            if not cursor.finished and cursor.next >= bounds.end:
                time.sleep(_WAIT)  # a broker that restarts may know less of its log for a moment
        if not cursor.finished:
            self._seek(cursor)

    def _note(self, error: KafkaError, cursor: Cursor | None) -> None:
        """Remember what may pass; raise what won't. Errors without a partition concern the group, which is
        not used."""
        if transient(error) or error.name() in MISSING:
            self._trouble = error
        elif cursor is not None or refuses_login(error):
            raise self._failed(error, cursor)

    def _failed(self, error: KafkaError, cursor: Cursor | None) -> AcklineError:
        tp, offset = (cursor.partition, cursor.next) if cursor is not None else (None, None)
        doing = "reading records" if offset is None else f"reading from offset {offset}"
        return failure(error, doing, self._config, tp, offset, self._last)

    def _stalled(self, cursors: Iterable[Cursor]) -> AcklineError:
        """Why nothing came. Raises what asking the broker raises."""
        cursor = min(cursors, key=lambda cursor: cursor.partition)
        tp, offset = cursor.partition, cursor.next
        end = self._cluster.bounds([tp])[tp].end
        if offset >= end:
            return beyond_end(tp, offset, end)
        if self._trouble is not None and not transient(self._trouble):
            return self._failed(self._trouble, cursor)
        return TransientError(
            f"{tp}: no record came for {self._timeout:g} s from offset {offset} on, although the log ends at {end}"
            f" (at {brokers(self._config)}); check that the partition has a leader, then run this again",
            topic=tp.topic, partition=tp.partition, offset=offset,
        )  # fmt: skip


class Patience:
    """Time since something last came: a record, or a step through records that are not handed out."""

    def __init__(self, timeout: float, meter: Meter) -> None:
        self._timeout = timeout
        self._meter = meter
        self._quiet = 0.0
        self._positions = 0

    def waited(self, seconds: float, record: bool) -> None:
        """So long was waited; whether a record came of it."""
        self._quiet = 0.0 if record else self._quiet + seconds

    @property
    def over(self) -> bool:
        """Whether it has lasted long enough, without the client having moved since this was last asked."""
        if self._quiet <= self._timeout:
            return False
        before, self._positions = self._positions, self._meter.positions
        if before == self._positions:
            return True
        self._quiet = 0.0
        return False


def _start(cursor: Cursor) -> ClientPartition:
    return ClientPartition(*cursor.partition, cursor.next)


def beyond_end(tp: TopicPartition, offset: int, end: int) -> FatalError:
    """The error for a wanted offset that the log never reached, or no longer does."""
    return FatalError(
        f"{tp}: offset {offset} is wanted, but the log ends at {end}; it was truncated, or the topic was created again",
        topic=tp.topic, partition=tp.partition, offset=offset,
    )  # fmt: skip
