"""Group, cluster and exact reader in memory and at a real broker pass the same tests, so that no double can drift."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from ackline.errors import FatalError, GroupBusy
from ackline.kafka.cluster import Cluster
from ackline.kafka.exact import ExactReader
from ackline.kafka.fetching import Gone
from ackline.kafka.group import Group
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.kafka import kafka_log
from tests.support.memory import World
from tests.support.memory_kafka import MemoryCluster, MemoryGroup, MemoryReader
from tests.tables.lane_rows import NOON


class LogInMemory:
    """The log and the group of a world."""

    def __init__(self) -> None:
        self.tp = TopicPartition("orders", 0)
        self._world = World(NOON)
        self._log = self._world.create_topic("orders").logs[0]

    def group(self) -> AbstractContextManager[Group]:
        return nullcontext(MemoryGroup(self._world, "group"))

    def cluster(self) -> AbstractContextManager[Cluster]:
        return nullcontext(MemoryCluster(self._world, "read_committed"))

    def reader(self) -> AbstractContextManager[ExactReader]:
        return nullcontext(MemoryReader(self._world, "read_committed"))

    def produce(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._log.append(value, NOON)

    def abort(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._log.append(value, NOON, open_=True)
        self._log.end_transaction(commit=False)

    def expire(self, before: int) -> None:
        self._log.expire(before)

    @contextmanager
    def member(self) -> Iterator[object]:
        self._world.members.append("contract (127.0.0.1)")
        yield None
        self._world.members.clear()


class LogOfABroker:
    """A log and a group of the broker of the tests."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.tp = TopicPartition(topic, 0)
        self._broker, self._group = broker, f"group-{uuid.uuid4().hex[:10]}"

    def group(self) -> AbstractContextManager[Group]:
        return Group(kafka_log.config(self._broker), self._group)

    def cluster(self) -> AbstractContextManager[Cluster]:
        return Cluster(kafka_log.config(self._broker), "read_committed")

    def reader(self) -> AbstractContextManager[ExactReader]:
        return ExactReader(kafka_log.config(self._broker), "read_committed")

    def produce(self, values: Sequence[bytes]) -> None:
        kafka_log.put(self._broker, self.tp.topic, [(None, value) for value in values])

    def abort(self, values: Sequence[bytes]) -> None:
        kafka_log.aborted(self._broker, self.tp.topic, values)

    def expire(self, before: int) -> None:
        kafka_log.delete_before(self._broker, self.tp.topic, before)

    def member(self) -> AbstractContextManager[object]:
        return wire.member(self._broker.bootstrap, self._group, self.tp.topic, client_id="contract")


Log = LogInMemory | LogOfABroker
"""One partition of a topic and one consumer group, of either kind."""


@pytest.fixture(params=["memory", "broker"])
def log(request: pytest.FixtureRequest) -> Log:
    """A log without records, and a group without commits."""
    if request.param == "memory":
        return LogInMemory()
    make: MakeTopic = request.getfixturevalue("topic")
    return LogOfABroker(request.getfixturevalue("broker"), make())


def test_s31_what_was_committed_is_read_back_and_offset_0_is_not_unset(log: Log) -> None:
    with log.group() as group, log.group() as other:
        assert group.committed([log.tp]) == group.committed([]) == {}
        group.commit({log.tp: Committed(0, '{"ledger": "é", "n": 1}')})
        group.commit({})
        assert other.committed([log.tp]) == {log.tp: Committed(0, '{"ledger": "é", "n": 1}')}
        for offset in (5, 3):
            other.commit({log.tp: Committed(offset, "")})
            assert group.committed([log.tp]) == {log.tp: Committed(offset, "")}


def test_what_is_not_there_has_no_commit_and_takes_none(log: Log) -> None:
    nowhere = TopicPartition("nowhere", 0)
    with log.group() as group:
        assert group.committed([nowhere]) == {}
        for offsets in ({nowhere: Committed(1, "")}, {log.tp: Committed(-1, "")}):
            with pytest.raises(FatalError):
                group.commit(offsets)


def test_s37_a_live_member_is_named_and_nothing_is_committed(log: Log) -> None:
    with log.group() as group:
        with log.member():
            assert len(group.members()) == 1
            with pytest.raises(GroupBusy, match="contract"):
                group.commit({log.tp: Committed(1, "")})
        assert group.committed([log.tp]) == {}
        group.commit({log.tp: Committed(1, "")})


def test_s40_s41_s43_each_wanted_offset_is_found_or_provably_gone(log: Log) -> None:
    log.produce([b"%d" % n for n in range(4)])
    log.abort([b"x", b"y"])
    log.produce([b"last"])
    log.expire(2)
    with log.cluster() as cluster, log.reader() as reader:
        bounds = cluster.bounds([log.tp])[log.tp]
        assert (bounds.start, bounds.end) == (2, 8)
        answers = list(reader.read({log.tp: [0, 1, 2, 3, 4, 6, 7]}))
        gone = {answer.offset: answer.outcome for answer in answers if isinstance(answer, Gone)}
        assert gone == dict.fromkeys((0, 1), Outcome.EXPIRED) | dict.fromkeys((4, 6), Outcome.COMPACTED)
        values = {answer.offset: answer.message.value() for answer in answers if not isinstance(answer, Gone)}
        assert values == {2: b"2", 3: b"3", 7: b"last"}
        with pytest.raises(FatalError, match="the log ends at 8"):
            list(reader.read({log.tp: [8]}))


def test_a_topic_is_known_by_its_id_and_its_partitions_by_their_leaders(log: Log) -> None:
    with log.cluster() as cluster:
        topics = cluster.topics([log.tp.topic, "nowhere"])
        assert list(topics) == [log.tp.topic]
        assert topics[log.tp.topic].topic_id
        assert dict(topics[log.tp.topic].partitions) == {0: True}
        assert log.tp.topic in cluster.names()
        log.produce([b"a"])
        assert (cluster.written_ends([log.tp]), cluster.written_ends([])) == ({log.tp: 1}, {})
        with pytest.raises(FatalError):
            cluster.bounds([TopicPartition("nowhere", 0)])
