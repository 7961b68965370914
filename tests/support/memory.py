"""A world in memory: topics, a consumer group, dead letters, tables and a clock, without a broker, Spark or Delta.

The adapters in `memory_store`, `memory_kafka` and `memory_adapters` work on one `World`. It outlives them, as the real
parts outlive a process. Contract tests hold the adapters to what the real parts do. A world does nothing by itself and
never waits: the test lets logs grow, records expire and operations fail. `World.history` lists every write in the order
in which it was made.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME

from ackline.handler import InFlight, Record
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import UNIX_EPOCH
from tests.support.journal import follow_orders

READ, BEFORE, AFTER = "read", "before", "after"
"""When a hook is called: at a read, right before a write, and right after a write."""


class InFlightSkipped(InFlight):
    """An InFlight of a record with a tuple that a step has skipped. A handler of a `World` returns it, because a world
    has no steps."""


Hook = Callable[[str, str], None]
"""The adapters call it with (operation, READ, BEFORE or AFTER). It may block, or raise to end the process."""


def no_hook(_operation: str, _when: str) -> None:
    """The hook of a process that nothing happens to."""


class LogRecord(NamedTuple):
    """A record in a log. `timestamp` is in milliseconds since 1970."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


@dataclass(slots=True)
class MemoryLog:
    """The log of one partition.

    `written` keeps every record, also after it has expired or was compacted, but not records that were truncated.
    `leader_epochs` has the end of the log at which each leader's epoch began.
    """

    start: int = 0
    end: int = 0
    has_leader: bool = True
    written: dict[int, LogRecord] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    compacted: set[int] = field(default_factory=set)
    in_transaction: list[int] = field(default_factory=list)
    """The offsets of the open transaction."""
    leader_epochs: list[int] = field(default_factory=lambda: [0])

    def append(
        self, value: bytes | None, time: datetime, *, key: bytes | None = None, headers: Any = (), open_: bool = False
    ) -> int:
        """Appends a record and returns its offset; `open_` makes it part of the open transaction."""
        offset, self.end = self.end, self.end + 1
        milliseconds = int((time - UNIX_EPOCH).total_seconds() * 1000)
        self.written[offset] = LogRecord(offset, key, value, tuple(headers), milliseconds)
        if open_:
            self.in_transaction.append(offset)
        return offset

    def end_transaction(self, commit: bool) -> None:
        """Commits or aborts the open transaction, if there is one. Its marker takes an offset."""
        if self.in_transaction:
            self.aborted.update(() if commit else self.in_transaction)
            self.in_transaction.clear()
            self.end += 1

    def add_gap(self, offsets: int) -> None:
        self.end += offsets

    def expire(self, start: int) -> None:
        """Lets retention raise the log start to `start`, at most to the log end."""
        self.start = max(self.start, min(start, self.end))

    def elect(self, end: int | None = None) -> None:
        """Elects another leader whose log ends at `end`, and truncates the records from there on; by default none."""
        end = self.end if end is None else end
        self.written = {offset: record for offset, record in self.written.items() if offset < end}
        for offsets in (self.aborted, self.compacted):
            offsets.difference_update([offset for offset in offsets if offset >= end])
        self.in_transaction = [offset for offset in self.in_transaction if offset < end]
        self.start, self.end = min(self.start, end), end
        self.leader_epochs = [*(min(began, end) for began in self.leader_epochs), end]

    def leader_epoch_end(self, leader_epoch: int) -> int | None:
        """Returns where a leader's epoch ends in this log, or the log start if the whole epoch has expired; None if the
        log has no such epoch yet."""
        later = leader_epoch + 1
        if later > len(self.leader_epochs):
            return None
        return self.end if later == len(self.leader_epochs) else max(self.start, self.leader_epochs[later])

    def readable_end(self, isolation: str) -> int:
        """Returns the last stable offset under read_committed, otherwise the high watermark."""
        stable = self.in_transaction[0] if self.in_transaction else self.end
        return max(self.start, stable if isolation == "read_committed" else self.end)

    def original(self, offset: int, isolation: str) -> LogRecord | None:
        """Returns the record that was written at an offset, also if it is gone; None if there was none or, under
        read_committed, if it was aborted."""
        hidden = isolation == "read_committed" and offset in self.aborted
        return None if hidden else self.written.get(offset)

    def record(self, offset: int, isolation: str) -> LogRecord | None:
        """Returns the record that a reader now gets at an offset; None if it gets none."""
        readable = self.start <= offset < self.readable_end(isolation) and offset not in self.compacted
        return self.original(offset, isolation) if readable else None


@dataclass(slots=True)
class MemoryTopic:
    """A topic. No other topic has its id, also not one created later under the same name."""

    topic_id: str
    logs: dict[int, MemoryLog]
    retention: timedelta | None = None
    """How long records stay, as a reader of the topic's settings sees it. The test expires them itself."""


class HandlerCall(NamedTuple):
    """A call of the handler by a process, in a turn, for a record of the topic with this id."""

    run_id: str
    turn: int
    tp: TopicPartition
    topic_id: str
    offset: int
    attempt: int
    readable_end: int
    """Where the readable log ended at the time of the call."""
    epoch: int = 0
    lane: str = "live"


class TableCommit(NamedTuple):
    """A commit to a table by a process. `value` is the Plan, the Settlement, the Marker or a list of outcome files."""

    table: str
    application: str
    number: int
    value: Any
    run_id: str


class ArrivedCopy(NamedTuple):
    """A copy that has arrived on the rescue topic, and where."""

    tp: TopicPartition
    offset: int
    value: bytes | None
    run_id: str = ""


class GroupCommit(NamedTuple):
    """Offsets that a process committed to the group."""

    offsets: Mapping[TopicPartition, Committed]
    run_id: str
    newest_settlement: tuple[int, int]
    """The newest settlement (epoch, n) that the process had seen."""
    last_read: Mapping[TopicPartition, Committed | None]
    """What the process had last read of the group."""
    read_at: int
    """The length of the history at that time."""


class ArrivedLetter(NamedTuple):
    """A dead letter that has arrived on its topic: the record's value and key, and the headers by name."""

    value: bytes | None
    key: bytes | None
    headers: Mapping[str, str]
    value_omitted: bool
    acknowledged: bool
    """Whether the sender got the acknowledgement."""
    run_id: str = ""


@dataclass(slots=True)
class Faults:
    """The next faults by kind of operation, one word an operation. An empty queue means that operations succeed.

    letters: "lost" (never arrives), "unanswered" (arrives, without an acknowledgement), "refused" (never accepted),
    "large" (arrives without its value). tables and commits: "refused" (nothing is stored), "unanswered" (stored, but
    the operation fails). jobs: any word (the Spark job fails).
    """

    letters: deque[str] = field(default_factory=deque)
    copies: deque[str] = field(default_factory=deque)
    """"refused" (the broker takes no copy as it is) or "lost" (an error of the producer)."""
    tables: deque[str] = field(default_factory=deque)
    commits: deque[str] = field(default_factory=deque)
    jobs: deque[str] = field(default_factory=deque)

    def clear(self) -> None:
        for queue in (self.letters, self.copies, self.tables, self.commits, self.jobs):
            queue.clear()


def next_fault(queue: deque[str]) -> str | None:
    """Removes and returns the next fault of a queue; None if the operation is to succeed."""
    return queue.popleft() if queue else None


@dataclass(slots=True)
class MemoryTables:
    """What the tables hold: values by turn, outcome files by name, and numbers by transaction id."""

    ids: dict[str, str] = field(default_factory=dict)
    replaced_ids: list[tuple[int, str]] = field(default_factory=list)
    """The former ids of the ledger, each with the length of the history when it was replaced."""
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict)
    settlements: dict[Any, Any] = field(default_factory=dict)
    outcomes: dict[Any, list[Any]] = field(default_factory=dict)
    notes: dict[tuple[str, int], str] = field(default_factory=dict)
    """The note of each commit that has one, by application and number."""
    markers: dict[tuple[str, int], Any] = field(default_factory=dict)
    """The marker of each commit that has one, by application and number."""
    files: dict[str, Any] = field(default_factory=dict)
    """The files that tasks have written. A file counts once a commit names it."""
    lost_files: set[Any] = field(default_factory=set)
    """The turns whose outcomes can't be read, because a file of them does not exist any more."""

    def copy(self) -> "MemoryTables":
        """Returns the tables as they are now. The values in them never change, so they are in both."""
        nested = {
            "numbers": {name: dict(of_table) for name, of_table in self.numbers.items()},
            "outcomes": {turn: list(files) for turn, files in self.outcomes.items()},
        }
        return replace(self, **{each.name: getattr(self, each.name).copy() for each in fields(self)} | nested)


class World:
    """Everything that outlives a process."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.topics: dict[str, MemoryTopic] = {}
        self.deleted_topics: dict[str, MemoryTopic] = {}
        """Deleted topics, by id."""
        self.committed: dict[tuple[str, TopicPartition], Committed] = {}
        self.members: list[str] = []
        self.offsets_pending = False
        """Whether a transaction that has not ended holds offsets of the group."""
        self.taken: str | None = None
        """What has the id of the group in place of a consumer group."""
        self.denied: set[tuple[str, str, str]] = set()
        """What the login may not do: an operation, `topic` or `group`, and a name."""
        self.tables = MemoryTables()
        self.history: list[HandlerCall | ArrivedLetter | ArrivedCopy | TableCommit | GroupCommit] = []
        self.faults = Faults()
        self.timestamp_type = TIMESTAMP_CREATE_TIME
        """Whether producers or the broker stamp the records, as Kafka's client names it."""
        self.code = ""
        """The code that each process runs, as `ackline.lane.code` names it."""
        self.handle: Callable[[Record], InFlight | None] = handle_by_orders
        self.newest_settlements: dict[str, tuple[int, int]] = {}
        """The newest settlement (epoch, n) that each process has seen, by run id."""
        self._ids = 0

    def operations(self, kind: str, name: str) -> frozenset[str]:
        """Returns what the login may do with a topic or a group."""
        return frozenset(o for o in ("DESCRIBE", "READ", "WRITE") if (o, kind, name) not in self.denied)

    def clock(self) -> datetime:
        return self.now

    def new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}-{self._ids}"

    def create_topic(self, name: str, partitions: int = 1) -> MemoryTopic:
        """Creates a topic, after deleting one of the same name."""
        self.delete_topic(name)
        self.topics[name] = MemoryTopic(self.new_id("topic"), {number: MemoryLog() for number in range(partitions)})
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, with the offsets that groups have committed for it."""
        old = self.topics.pop(name, None)
        if old is not None:
            self.deleted_topics[old.topic_id] = old
            self.committed = {key: value for key, value in self.committed.items() if key[1].topic != name}

    def log(self, tp: TopicPartition) -> MemoryLog | None:
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.logs.get(tp.partition)

    def log_of(self, topic_id: str, tp: TopicPartition) -> MemoryLog | None:
        """Returns the log of a partition of the topic with this id, also after the topic was deleted."""
        topic = self.topics.get(tp.topic)
        if topic is None or topic.topic_id != topic_id:
            topic = self.deleted_topics.get(topic_id)
        return None if topic is None else topic.logs.get(tp.partition)

    def partitions(self) -> Iterator[TopicPartition]:
        """Yields all partitions of all topics, sorted."""
        for name, topic in sorted(self.topics.items()):
            for number in sorted(topic.logs):
                yield TopicPartition(name, number)


def handle_by_orders(record: Record) -> None:
    """The handler of a world: does what the record's value orders, in the words of `tests.support.journal`."""
    follow_orders(json.loads(record.value) if record.value is not None else {}, record.attempt)
