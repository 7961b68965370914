"""The Kafka adapters of a `World`: cluster, consumer group, exact reader and dead-letter sender."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from confluent_kafka import OFFSET_INVALID, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import FatalError, TransientError
from ackline.kafka.cluster import Cluster, Positions, TopicInfo
from ackline.kafka.dead_letters import DeadLetters, Delivery, Letter
from ackline.kafka.exact import ExactReader, Found, Gone
from ackline.kafka.fetching import beyond_end
from ackline.kafka.group import Group
from ackline.kafka.produce import OutputTopics, Row
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.outcomes import UNIX_EPOCH, Outcome, timestamp_of
from ackline.pipeline.warnings import TopicPolicy
from tests.support.memory import (
    AFTER,
    BEFORE,
    READ,
    ArrivedCopy,
    ArrivedLetter,
    GroupCommit,
    Hook,
    MemoryLog,
    World,
    next_fault,
    no_hook,
)


class MemoryCluster(Cluster):
    """The cluster of a world, read under one isolation level."""

    def __init__(self, world: World, isolation: str, hook: Hook = no_hook) -> None:
        self.world, self.isolation, self._hook = world, isolation, hook

    def close(self) -> None:
        """Does nothing."""

    def reachable(self) -> str:
        return "memory"

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        self._hook("topics", READ)
        existing = {name: self.world.topics[name] for name in sorted(set(names)) if name in self.world.topics}
        return {
            name: TopicInfo(topic.topic_id, {number: log.has_leader for number, log in sorted(topic.logs.items())})
            for name, topic in existing.items()
        }

    def operations(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        return {name: self.world.operations("topic", name) for name in names}

    def policies(self, names: Iterable[str]) -> dict[str, TopicPolicy]:
        """Returns the retention of the topics for which a test has set one: it expires records itself."""
        topics = ((name, self.world.topics[name]) for name in names if name in self.world.topics)
        return {name: TopicPolicy(topic.retention) for name, topic in topics if topic.retention is not None}

    def names(self) -> list[str]:
        self._hook("names", READ)
        return [name for name in sorted(self.world.topics) if "DESCRIBE" in self.world.operations("topic", name)]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Returns the bounds of each partition. Raises FatalError if one does not exist, TransientError if one has no
        leader."""
        self._hook("bounds", READ)
        return {tp: self._bounds(tp) for tp in sorted(set(partitions))}

    def _bounds(self, tp: TopicPartition) -> LogBounds:
        log = self._log_with_leader(tp)
        end = log.readable_end(self.isolation)
        withheld = log.end - end if self.isolation == "read_committed" else 0
        return LogBounds(log.start, end, len(log.leader_epochs) - 1, withheld)

    def _log_with_leader(self, tp: TopicPartition) -> MemoryLog:
        log = self.world.log(tp)
        if log is None:
            raise FatalError(f"{tp} does not exist", tp=tp)
        if not log.has_leader:
            raise TransientError(f"{tp} has no leader", tp=tp)
        return log

    def truncated_at(self, positions: Positions, timeout: float = 0.0) -> dict[TopicPartition, int | None]:
        """Returns the partitions whose log no longer holds all that the leader of the epoch had below the offset."""
        self._hook("epochs", READ)
        truncated: dict[TopicPartition, int | None] = {}
        for tp, (offset, leader_epoch) in positions.items():
            log = self.world.log(tp)
            if log is None or not log.has_leader:
                raise TransientError(f"{tp} has no leader", tp=tp)
            end = log.leader_epoch_end(leader_epoch)
            if end is None or end < offset:
                truncated[tp] = end
        return truncated

    def record_times(
        self, offsets: Mapping[TopicPartition, int], isolation: str | None = None, *, timeout: float = 5.0
    ) -> dict[TopicPartition, datetime]:
        self._hook("times", READ)
        times = {}
        for tp, first in offsets.items():
            log = self.world.log(tp)
            records = (
                (log.record(offset, isolation or self.isolation) for offset in range(first, log.end)) if log else ()
            )
            record = next((record for record in records if record is not None), None)
            time = timestamp_of(record.timestamp) if record is not None else None
            if time is not None:
                times[tp] = time
        return times

    def offsets_since(
        self, partitions: Iterable[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int | None]:
        first: dict[TopicPartition, int | None] = {}
        for tp in partitions:
            log = self._log_with_leader(tp)
            records = (record for record in log.written.values() if record.offset >= log.start)
            first[tp] = next((record.offset for record in records if record.timestamp >= milliseconds), None)
        return first


class MemoryGroup(Group):
    """A group of a world: the real adapter, with the world in place of the broker for its three requests."""

    def __init__(self, world: World, group_id: str, run_id: str = "", hook: Hook = no_hook) -> None:
        self.world, self.group_id, self._run_id, self._hook = world, group_id, run_id, hook
        self._config: Mapping[str, object] = {"bootstrap.servers": "memory"}
        self._timeout = 0.0
        self._last_read: dict[TopicPartition, Committed | None] = {}
        self._read_at = 0

    def close(self) -> None:
        """Does nothing."""

    def _fetch_committed(self, tps: Iterable[TopicPartition], stable: bool) -> list[ClientPartition]:
        self._hook("committed", READ)
        if stable and self.world.offsets_pending:
            raise self._offsets_pending()
        self._read_at = len(self.world.history)
        answer = []
        for tp in tps:
            committed = self._last_read[tp] = self.world.committed.get((self.group_id, tp))
            if committed is None:
                answer.append(ClientPartition(*tp, OFFSET_INVALID))
            else:
                answer.append(ClientPartition(*tp, committed.offset, metadata=committed.metadata))
        return answer

    def _describe_members(self) -> list[str]:
        self._hook("members", READ)
        self._check_type()
        return sorted(self.world.members)

    def operations(self, probe: str = "") -> frozenset[str] | None:
        self._check_type()
        return self.world.operations("group", self.group_id)

    def _check_type(self) -> None:
        if self.world.taken is not None:
            raise self._group_taken(self.world.taken)

    def _alter_offsets(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._hook("commit", BEFORE)
        fault = next_fault(self.world.faults.commits)
        if self.world.members:
            raise self._group_busy(self.world.members)
        if fault == "refused":
            raise TransientError("committing offsets: the coordinator is away")
        missing = [tp for tp in offsets if self.world.log(tp) is None]
        stored = {tp: committed for tp, committed in offsets.items() if tp not in missing}
        newest = self.world.newest_settlements.get(self._run_id, (-1, -1))
        self.world.history.append(GroupCommit(stored, self._run_id, newest, dict(self._last_read), self._read_at))
        self.world.committed.update({(self.group_id, tp): committed for tp, committed in stored.items()})
        self._hook("commit", AFTER)
        if fault == "unanswered":
            raise TransientError("committing offsets: _TIMED_OUT")
        for tp in missing:
            message = f"committing offsets of {tp}: UNKNOWN_TOPIC_OR_PART"
            raise FatalError(message, tp=tp)


class MemoryReader(ExactReader):
    def __init__(self, world: World, isolation: str, hook: Hook = no_hook) -> None:
        self.world, self.isolation, self._hook = world, isolation, hook
        self._count = 0

    def close(self) -> None:
        """Does nothing."""

    @property
    def delivered(self) -> int:
        return self._count

    @property
    def received_bytes(self) -> int:
        """Always 0: bytes are not measured."""
        return 0

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Generator[Found | Gone]:
        partitions = {tp: offsets for tp, offsets in sorted(wanted.items()) if offsets}
        bounds = MemoryCluster(self.world, self.isolation, self._hook).bounds(partitions)
        for tp, offsets in partitions.items():
            if list(offsets) != sorted(set(offsets)) or offsets[0] < 0:
                raise ValueError(f"offsets of {tp} are not ascending")
            if offsets[-1] >= bounds[tp].end:
                raise beyond_end(tp, offsets[-1], bounds[tp].end)
        for tp, offsets in partitions.items():
            for offset in offsets:
                self._hook("fetch", READ)
                yield self._answer(tp, offset)

    def _answer(self, tp: TopicPartition, offset: int) -> Found | Gone:
        log = self.world.log(tp)
        if log is None or not log.has_leader:
            raise TransientError(f"{tp}: no record came", tp=tp, offset=offset)
        if offset < log.start:
            return Gone(tp, offset, Outcome.EXPIRED)
        record = log.record(offset, self.isolation)
        if record is None:
            return Gone(tp, offset, Outcome.COMPACTED)
        self._count += 1
        message = Message(
            topic=tp.topic, partition=tp.partition, offset=offset, key=record.key, value=record.value,
            headers=list(record.headers), timestamp=(self.world.timestamp_type, record.timestamp),
        )  # fmt: skip
        return Found(message, tp, offset)


class MemoryCopies(OutputTopics):
    """A sender to the rescue topic of a world."""

    def __init__(self, world: World, hook: Hook = no_hook, run_id: str = "") -> None:
        self.world, self._hook, self._run_id = world, hook, run_id

    def close(self) -> None:
        """Does nothing."""

    def send(self, rows: Sequence[Row]) -> list[int]:
        refused = []
        for number, row in enumerate(rows):
            self._hook("copy", BEFORE)
            fault = next_fault(self.world.faults.copies)
            log = self.world.log(tp := TopicPartition(row.topic, row.place["partition"]))
            if fault == "lost" or log is None:
                raise TransientError(f"copying records to the rescue topic {row.topic}: no answer")
            if fault == "refused":
                refused.append(number)
                continue
            time = UNIX_EPOCH + timedelta(milliseconds=row.place.get("timestamp", 0))
            row.offset = log.append(row.value, time, key=row.key, headers=row.headers)
            self.world.history.append(ArrivedCopy(tp, row.offset, row.value, self._run_id))
            self._hook("copy", AFTER)
        return refused


class MemoryLetters(DeadLetters):
    """A sender to a dead-letter topic of a world. It sends all letters before the first acknowledgement comes."""

    def __init__(self, world: World, topic: str, hook: Hook = no_hook, run_id: str = "") -> None:
        self.world, self.topic, self._hook, self._run_id = world, topic, hook, run_id
        self._arrived = sum(isinstance(event, ArrivedLetter) for event in world.history)

    def close(self) -> None:
        """Does nothing."""

    def send(self, letters: Iterable[Letter]) -> Iterator[Delivery]:
        deliveries = [self._deliver(letter) for letter in letters]
        yield from deliveries

    def _deliver(self, letter: Letter) -> Delivery:
        self._hook("letter", BEFORE)
        fault = next_fault(self.world.faults.letters)
        if fault in ("lost", "refused") or self.topic not in self.world.topics:
            return Delivery(letter, False, "_MSG_TIMED_OUT" if fault == "lost" else "NOT_ENOUGH_REPLICAS")
        message, omitted = letter.message, fault == "large"
        headers = {name: value.decode() for name, value in letter.headers}
        acknowledged = fault != "unanswered"
        value = None if omitted else message.value()
        arrived = ArrivedLetter(value, message.key(), headers, omitted, acknowledged, self._run_id)
        place = self._arrived if acknowledged else -1
        self._arrived += 1
        self.world.history.append(arrived)
        self._hook("letter", AFTER)
        error = None if acknowledged else "_MSG_TIMED_OUT"
        return Delivery(letter, acknowledged, error, omitted and acknowledged, 0 if acknowledged else -1, place)
