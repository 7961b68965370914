"""A world in memory: topics, a consumer group, dead letters, tables and a clock, without a broker, Spark or Delta.

The adapters in `memory_store`, `memory_kafka` and `memory_parts` work on one `World`, which outlives them as the real
parts outlive a process. What the real parts answer is stated once, in the contract tests that both kinds pass. Nothing
here waits or runs by itself: whoever owns the world makes its log grow, expire or fail, and a test sees all that was
written in `history`, in the order in which it was written.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ackline.commit_rule import Committed
from ackline.handler import Dead, Record, Skip
from ackline.offsets import TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
READ, BEFORE, AFTER = "read", "before", "after"
"""Where a process may be struck: at something that it reads, right before and right after something that it writes."""

Hook = Callable[[str, str], None]
"""Called by the adapters with (operation, READ, BEFORE or AFTER); it may block, or raise to end the process."""


def no_hook(_operation: str, _when: str) -> None:
    """The hook of a process that nothing happens to."""


class LogRecord(NamedTuple):
    """A record as it lies in the log; `timestamp` in milliseconds since 1970."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


@dataclass(slots=True)
class MemoryLog:
    """One partition. `written` keeps every record ever, also those that are `aborted`, `compacted` or below `start`.

    Of what was cut it keeps nothing. `epochs` are its leaders' epochs: for each, the log's end when it began.
    """

    start: int = 0
    end: int = 0
    has_leader: bool = True
    written: dict[int, LogRecord] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    compacted: set[int] = field(default_factory=set)
    undecided: list[int] = field(default_factory=list)
    """Offsets of the transaction that is open."""
    epochs: list[int] = field(default_factory=lambda: [0])

    def append(
        self, value: bytes | None, time: datetime, *, key: bytes | None = None, headers: Any = (), open_: bool = False
    ) -> int:
        """A record at the end; `open_` puts it into the open transaction."""
        offset, self.end = self.end, self.end + 1
        milliseconds = int((time - EPOCH).total_seconds() * 1000)
        self.written[offset] = LogRecord(offset, key, value, tuple(headers), milliseconds)
        if open_:
            self.undecided.append(offset)
        return offset

    def decide(self, commit: bool) -> None:
        """End the open transaction, whose marker takes an offset."""
        if self.undecided:
            self.aborted.update(() if commit else self.undecided)
            self.undecided.clear()
            self.end += 1

    def gap(self, offsets: int) -> None:
        """Offsets that never held a record."""
        self.end += offsets

    def expire(self, start: int) -> None:
        """Retention: the log now starts at `start`."""
        self.start = max(self.start, min(start, self.end))

    def elect(self, end: int | None = None) -> None:
        """Another leader, whose log ends at `end`: what lay there is cut; by default nothing is."""
        end = self.end if end is None else end
        for offsets in (self.written, self.aborted, self.compacted):
            for offset in [one for one in offsets if one >= end]:
                offsets.pop(offset) if isinstance(offsets, dict) else offsets.remove(offset)
        self.undecided = [offset for offset in self.undecided if offset < end]
        self.start, self.end = min(self.start, end), end
        self.epochs = [*(min(began, end) for began in self.epochs), end]

    def epoch_end(self, epoch: int) -> int | None:
        """Where a leader's epoch ends in this log, or the log start where retention took it whole; None where the log
        has not come to it."""
        later = epoch + 1
        if later > len(self.epochs):
            return None
        return self.end if later == len(self.epochs) else max(self.start, self.epochs[later])

    def readable_end(self, isolation: str) -> int:
        """The last stable offset under read_committed, else the high watermark."""
        stable = self.undecided[0] if self.undecided else self.end
        return max(self.start, stable if isolation == "read_committed" else self.end)

    def ever(self, offset: int, isolation: str) -> LogRecord | None:
        """The record that was written there, whatever became of it; None for one that was aborted."""
        hidden = isolation == "read_committed" and offset in self.aborted
        return None if hidden else self.written.get(offset)

    def record(self, offset: int, isolation: str) -> LogRecord | None:
        """The record that a reader is given there now."""
        there = self.start <= offset < self.readable_end(isolation) and offset not in self.compacted
        return self.ever(offset, isolation) if there else None


@dataclass(slots=True)
class MemoryTopic:
    """A topic, under an id that no other has."""

    topic_id: str
    logs: dict[int, MemoryLog]


class HandlerCall(NamedTuple):
    """A call of the handler: by whom, in which turn, on which topic's record, and where the readable log ended."""

    by: str
    turn: int
    tp: TopicPartition
    topic_id: str
    offset: int
    attempt: int
    readable_end: int
    epoch: int = 0


class TableCommit(NamedTuple):
    """A commit to a table: `value` is the Plan, the Settlement, or the files of outcomes."""

    table: str
    application: str
    number: int
    value: Any
    by: str


class GroupCommit(NamedTuple):
    """Offsets that a process committed; `knew` is the newest settlement that it had seen, `read` what it had last read
    of the group, when the history was `read_at` long."""

    offsets: Mapping[TopicPartition, Committed]
    by: str
    knew: tuple[int, int]
    read: Mapping[TopicPartition, Committed | None]
    read_at: int


class Posted(NamedTuple):
    """A dead letter that has arrived: record, headers by name, and who sent it. `acknowledged`: the sender was told
    so."""

    value: bytes | None
    key: bytes | None
    said: Mapping[str, str]
    omitted: bool
    acknowledged: bool
    by: str = ""


@dataclass(slots=True)
class Faults:
    """What goes wrong next, one word an operation, taken from the left; nothing goes wrong where a queue is empty.

    letters: "lost" (never arrives), "unanswered" (arrives, nobody says so), "refused" (for good), "large" (goes without
    its value). tables and commits: "refused" (nothing is stored), "unanswered" (stored, and an error). jobs: "failed".
    """

    letters: deque[str] = field(default_factory=deque)
    tables: deque[str] = field(default_factory=deque)
    commits: deque[str] = field(default_factory=deque)
    jobs: deque[str] = field(default_factory=deque)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        for queue in (self.letters, self.tables, self.commits, self.jobs):
            queue.clear()


def take(queue: deque[str]) -> str | None:
    """The next fault of a queue, used up."""
    return queue.popleft() if queue else None


@dataclass(slots=True)
class MemoryTables:
    """What is stored: values by their turn, files of outcomes by name, numbers by transaction id."""

    ids: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    plans: dict[Any, Any] = field(default_factory=dict)
    settlements: dict[Any, Any] = field(default_factory=dict)
    outcomes: dict[Any, list[Any]] = field(default_factory=dict)
    notes: dict[tuple[str, int], str] = field(default_factory=dict)
    """What was said with a commit, by application and number."""
    files: dict[str, Any] = field(default_factory=dict)
    """Files that tasks have written; those in no commit are invisible."""


class World:
    """Everything that outlives a process."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.topics: dict[str, MemoryTopic] = {}
        self.gone: dict[str, MemoryTopic] = {}
        """Topics that were deleted, by id."""
        self.committed: dict[tuple[str, TopicPartition], Committed] = {}
        self.members: list[str] = []
        self.tables = MemoryTables()
        self.history: list[HandlerCall | Posted | TableCommit | GroupCommit] = []
        self.faults = Faults()
        self.handle: Callable[[Record], None] = obey
        self.known: dict[str, tuple[int, int]] = {}
        """For each process, the newest settlement (epoch, n) that it has seen."""
        self._ids = 0

    def clock(self) -> datetime:
        """The time now."""
        return self.now

    def new_id(self, kind: str) -> str:
        """An id that nothing else has."""
        self._ids += 1
        return f"{kind}-{self._ids}"

    def create_topic(self, name: str, partitions: int = 1) -> MemoryTopic:
        """A new topic, in place of one that had the name."""
        self.delete_topic(name)
        self.topics[name] = MemoryTopic(self.new_id("topic"), {number: MemoryLog() for number in range(partitions)})
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """The topic is gone, and what groups had committed for it."""
        old = self.topics.pop(name, None)
        if old is not None:
            self.gone[old.topic_id] = old
            self.committed = {key: one for key, one in self.committed.items() if key[1].topic != name}

    def log(self, tp: TopicPartition) -> MemoryLog | None:
        """The log of a partition that exists."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.logs.get(tp.partition)

    def log_of(self, topic_id: str, tp: TopicPartition) -> MemoryLog | None:
        """The log of a partition of the topic with this id, also after its deletion."""
        topic = self.topics.get(tp.topic)
        if topic is None or topic.topic_id != topic_id:
            topic = self.gone.get(topic_id)
        return None if topic is None else topic.logs.get(tp.partition)

    def partitions(self) -> Iterator[TopicPartition]:
        """All partitions there are, sorted."""
        for name, topic in sorted(self.topics.items()):
            for number in sorted(topic.logs):
                yield TopicPartition(name, number)


def obey(record: Record) -> None:
    """The handler that does what the record says, in the words of `ackline.testing.journal`."""
    orders = json.loads(record.value) if record.value is not None else {}
    if orders.get("skip"):
        raise Skip("the record asked for it")
    if orders.get("dead"):
        raise Dead("the record asked for it")
    failures = orders.get("fail", 0)
    if failures < 0 or record.attempt <= failures:
        raise ValueError("as the record asked")
