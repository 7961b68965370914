"""The Kafka adapters in memory: cluster, group, exact reader and dead letters of a `World`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from confluent_kafka import OFFSET_INVALID, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.commit_rule import Committed
from ackline.errors import FatalError, TransientError
from ackline.kafka.cluster import Cluster, TopicInfo
from ackline.kafka.dead_letters import DeadLetters, Letter, Sent
from ackline.kafka.exact import ExactReader, Found, Gone
from ackline.kafka.fetching import beyond_end
from ackline.kafka.group import Group
from ackline.kafka.truncation import Positions
from ackline.offsets import LogBounds, TopicPartition
from ackline.outcome import Outcome
from ackline.setting_warnings import TopicPolicy
from ackline.testing.memory import (
    AFTER,
    BEFORE,
    EPOCH,
    READ,
    GroupCommit,
    Hook,
    MemoryLog,
    Posted,
    World,
    no_hook,
    take,
)

CREATE_TIME = 1
"""Kafka's kind of timestamp: the producer's."""


class MemoryCluster(Cluster):
    """A cluster of a world, asked under one isolation."""

    def __init__(self, world: World, isolation: str, hook: Hook = no_hook) -> None:
        self.world, self.isolation, self._hook = world, isolation, hook

    def close(self) -> None:
        """Nothing is held."""

    def reachable(self) -> str:
        """The cluster's id."""
        return "memory"

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """The topics that exist of those named."""
        self._hook("topics", READ)
        found = {name: self.world.topics[name] for name in sorted(set(names)) if name in self.world.topics}
        return {
            name: TopicInfo(topic.topic_id, {number: log.has_leader for number, log in sorted(topic.logs.items())})
            for name, topic in found.items()
        }

    def policies(self, names: Iterable[str]) -> dict[str, TopicPolicy]:
        """A world has no settings of topics: it forgets when it is told to."""
        return {}

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        self._hook("names", READ)
        return sorted(self.world.topics)

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """The bounds of each partition. Raises FatalError for one that does not exist, TransientError for one without
        a leader."""
        self._hook("bounds", READ)
        return {tp: self._bounds(tp) for tp in sorted(set(partitions))}

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the log of each partition ends, open transactions included."""
        self._hook("bounds", READ)
        return {tp: self._led(tp).end for tp in sorted(set(partitions))}

    def _bounds(self, tp: TopicPartition) -> LogBounds:
        log = self._led(tp)
        return LogBounds(log.start, log.readable_end(self.isolation), len(log.epochs) - 1)

    def _led(self, tp: TopicPartition) -> MemoryLog:
        log = self.world.log(tp)
        if log is None:
            raise FatalError(f"{tp} does not exist", topic=tp.topic, partition=tp.partition)
        if not log.has_leader:
            raise TransientError(f"{tp} has no leader", topic=tp.topic, partition=tp.partition)
        return log

    def cut(self, positions: Positions) -> dict[TopicPartition, int | None]:
        """Those partitions whose log no longer holds all that the leader of an epoch had below an offset."""
        self._hook("epochs", READ)
        found: dict[TopicPartition, int | None] = {}
        for tp, (offset, epoch) in positions.items():
            log = self.world.log(tp)
            if log is None or not log.has_leader:
                raise TransientError(f"{tp} has no leader", topic=tp.topic, partition=tp.partition)
            end = log.epoch_end(epoch)
            if end is None or end < offset:
                found[tp] = end
        return found

    def record_times(
        self, offsets: Mapping[TopicPartition, int], *, timeout: float = 5.0
    ) -> dict[TopicPartition, datetime]:
        """When the first record at or after each offset was stamped; absent where there is none."""
        self._hook("times", READ)
        times = {}
        for tp, first in offsets.items():
            log = self.world.log(tp)
            found = (log.record(o, self.isolation) for o in range(first, log.end)) if log else ()
            record = next((one for one in found if one is not None), None)
            if record is not None:
                times[tp] = EPOCH + timedelta(milliseconds=record.timestamp)
        return times


class MemoryGroup(Group):
    """A group of a world: the real adapter, whose three requests are answered from the world."""

    def __init__(self, world: World, group_id: str, by: str = "", hook: Hook = no_hook) -> None:
        self.world, self.group_id, self._by, self._hook = world, group_id, by, hook
        self._config: Mapping[str, object] = {"bootstrap.servers": "memory"}
        self._patience = 0.0
        self._seen: dict[TopicPartition, Committed | None] = {}
        self._seen_at = 0

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, asked: Iterable[TopicPartition]) -> list[ClientPartition]:
        self._hook("held", READ)
        self._seen_at = len(self.world.history)
        answer = []
        for tp in asked:
            committed = self._seen[tp] = self.world.committed.get((self.group_id, tp))
            if committed is None:
                answer.append(ClientPartition(*tp, OFFSET_INVALID))
            else:
                answer.append(ClientPartition(*tp, committed.offset, metadata=committed.metadata))
        return answer

    def _described(self) -> list[str]:
        self._hook("members", READ)
        return sorted(self.world.members)

    def _alter(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        self._hook("commit", BEFORE)
        fault = take(self.world.faults.commits)
        if self.world.members:
            raise self._busy(self.world.members)
        if fault == "refused":
            raise TransientError("committing offsets: the coordinator is away")
        missing = [tp for tp in offsets if self.world.log(tp) is None]
        stored = {tp: wanted for tp, wanted in offsets.items() if tp not in missing}
        knew = self.world.known.get(self._by, (-1, -1))
        self.world.history.append(GroupCommit(stored, self._by, knew, dict(self._seen), self._seen_at))
        self.world.committed.update({(self.group_id, tp): wanted for tp, wanted in stored.items()})
        self._hook("commit", AFTER)
        if fault == "unanswered":
            raise TransientError("committing offsets: _TIMED_OUT")
        for tp in missing:
            said = f"committing offsets of {tp}: UNKNOWN_TOPIC_OR_PART"
            raise FatalError(said, topic=tp.topic, partition=tp.partition)


class MemoryReader(ExactReader):
    """Reads given offsets of a world's log."""

    def __init__(self, world: World, isolation: str, hook: Hook = no_hook) -> None:
        self.world, self.isolation, self._hook = world, isolation, hook
        self._count = 0

    def close(self) -> None:
        """Nothing is held."""

    @property
    def delivered(self) -> int:
        """Records read so far."""
        return self._count

    @property
    def received_bytes(self) -> int:
        """Not measured."""
        return 0

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Iterator[Found | Gone]:
        """Answer each offset once, in order within its partition; raises as the real reader does."""
        places = {tp: offsets for tp, offsets in sorted(wanted.items()) if offsets}
        bounds = MemoryCluster(self.world, self.isolation, self._hook).bounds(places)
        for tp, offsets in places.items():
            if list(offsets) != sorted(set(offsets)) or offsets[0] < 0:
                raise ValueError(f"offsets of {tp} are not ascending")
            if offsets[-1] >= bounds[tp].end:
                raise beyond_end(tp, offsets[-1], bounds[tp].end)
        for tp, offsets in places.items():
            for offset in offsets:
                self._hook("fetch", READ)
                yield self._answer(tp, offset)

    def _answer(self, tp: TopicPartition, offset: int) -> Found | Gone:
        log = self.world.log(tp)
        if log is None or not log.has_leader:
            raise TransientError(f"{tp}: no record came", topic=tp.topic, partition=tp.partition, offset=offset)
        if offset < log.start:
            return Gone(tp, offset, Outcome.EXPIRED)
        record = log.record(offset, self.isolation)
        if record is None:
            return Gone(tp, offset, Outcome.COMPACTED)
        self._count += 1
        message = Message(
            topic=tp.topic, partition=tp.partition, offset=offset, key=record.key, value=record.value,
            headers=list(record.headers), timestamp=(CREATE_TIME, record.timestamp),
        )  # fmt: skip
        return Found(message, tp, offset)


class MemoryLetters(DeadLetters):
    """A sender to a world's dead-letter topic; everything is on its way before the first answer comes."""

    def __init__(self, world: World, topic: str, hook: Hook = no_hook, by: str = "") -> None:
        self.world, self.topic, self._hook, self._by = world, topic, hook, by

    def close(self) -> None:
        """Nothing is held."""

    def send(self, letters: Iterable[Letter]) -> Iterator[Sent]:
        """Send each letter and say, in their order, what became of it."""
        sent = [self._sent(letter) for letter in letters]
        yield from sent

    def _sent(self, letter: Letter) -> Sent:
        self._hook("letter", BEFORE)
        fault = take(self.world.faults.letters)
        if fault in ("lost", "refused") or self.topic not in self.world.topics:
            return Sent(letter, False, "_MSG_TIMED_OUT" if fault == "lost" else "TOPIC_AUTHORIZATION_FAILED")
        message, omitted = letter.message, fault == "large"
        said = {name: value.decode() for name, value in letter.headers}
        confirmed = fault != "unanswered"
        value = None if omitted else message.value()
        self.world.history.append(Posted(value, message.key(), said, omitted, confirmed, self._by))
        self._hook("letter", AFTER)
        return Sent(letter, confirmed, None if confirmed else "_MSG_TIMED_OUT", omitted and confirmed)
