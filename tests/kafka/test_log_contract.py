"""What a log and a consumer group promise: in memory, at a real broker, and at three of them where a log is truncated
(fault 16). So no double can drift."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from ackline.errors import FatalError, GroupBusy, TransientError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.exact import ExactReader
from ackline.kafka.fetching import Gone
from ackline.kafka.group import Group
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.support.brokers import Brokers
from tests.support.memory import World
from tests.support.memory_kafka import MemoryCluster, MemoryGroup, MemoryReader
from tests.tables.lane_rows import NOON


class LogInMemory:
    """A partition and a group of a world."""

    def __init__(self) -> None:
        self.tp = TopicPartition("orders", 0)
        self._world = World(NOON)
        self._log = self._world.create_topic("orders").logs[0]
        self._replica_end = 0

    def group(self) -> AbstractContextManager[Group]:
        return nullcontext(MemoryGroup(self._world, "group"))

    def cluster(self) -> AbstractContextManager[Cluster]:
        return nullcontext(MemoryCluster(self._world, "read_committed"))

    def reader(self) -> AbstractContextManager[ExactReader]:
        return nullcontext(MemoryReader(self._world, "read_committed"))

    def produce(self, *values: bytes) -> None:
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

    def hand_over(self) -> None:
        self._log.elect()

    def lag(self) -> None:
        self._replica_end = self._log.end

    def elect_lagging(self) -> None:
        self._log.elect(self._replica_end)


class LogOfABroker:
    """A partition and a group of a broker."""

    def __init__(self, broker: Broker | Brokers, topic: str) -> None:
        self.tp = TopicPartition(topic, 0)
        self.config, self._bootstrap = client_config({"bootstrap.servers": broker.bootstrap}), broker.bootstrap
        self._group = f"group-{uuid.uuid4().hex[:10]}"

    def group(self) -> AbstractContextManager[Group]:
        return Group(self.config, self._group)

    def cluster(self) -> AbstractContextManager[Cluster]:
        return Cluster(self.config, "read_committed")

    def reader(self) -> AbstractContextManager[ExactReader]:
        return ExactReader(self.config, "read_committed")

    def produce(self, *values: bytes) -> None:
        wire.produce(self._bootstrap, self.tp.topic, [wire.Write(value) for value in values])

    def abort(self, values: Sequence[bytes]) -> None:
        wire.produce_aborted(self._bootstrap, self.tp.topic, [wire.Write(value) for value in values])

    def expire(self, before: int) -> None:
        wire.delete_records(self._bootstrap, self.tp, before)

    def member(self) -> AbstractContextManager[object]:
        return wire.member(self._bootstrap, self._group, self.tp.topic, client_id="contract")


class LogOfThreeBrokers(LogOfABroker):
    """A partition on nodes 2 and 3; node 2 leads."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers, f"topic-{uuid.uuid4().hex[:10]}")
        self.brokers = brokers
        brokers.create_topic(self.tp.topic, config={"unclean.leader.election.enable": "true"}, replicas=[(2, 3)])

    def hand_over(self) -> None:
        self.brokers.await_in_sync(self.tp.topic, {2, 3})
        self.brokers.nodes[2].stop()
        self.brokers.await_leader(self.tp.topic, 3)

    def lag(self) -> None:
        self.brokers.nodes[3].stop()
        self.brokers.await_in_sync(self.tp.topic, {2})

    def elect_lagging(self) -> None:
        self.brokers.nodes[2].kill()
        self.brokers.nodes[3].start()
        self.brokers.await_leader(self.tp.topic, 3)


Log = LogInMemory | LogOfABroker
Replicated = LogInMemory | LogOfThreeBrokers


class LogContract:
    """One partition of a topic and one consumer group; a test begins without records and without commits."""

    def test_s31_what_was_committed_is_read_back_and_offset_0_is_not_unset(self, log: Log) -> None:
        with log.group() as group, log.group() as other:
            assert group.committed([log.tp]) == group.committed([]) == {}
            group.commit({log.tp: Committed(0, '{"ledger": "é", "n": 1}')})
            group.commit({})
            assert other.committed([log.tp]) == {log.tp: Committed(0, '{"ledger": "é", "n": 1}')}
            for offset in (5, 3):
                other.commit({log.tp: Committed(offset, "")})
                assert group.committed([log.tp]) == {log.tp: Committed(offset, "")}

    def test_what_is_not_there_has_no_commit_and_takes_none(self, log: Log) -> None:
        nowhere = TopicPartition("nowhere", 0)
        with log.group() as group:
            assert group.committed([nowhere]) == {}
            for offsets in ({nowhere: Committed(1, "")}, {log.tp: Committed(-1, "")}):
                with pytest.raises(FatalError):
                    group.commit(offsets)

    def test_s37_a_live_member_is_named_and_nothing_is_committed(self, log: Log) -> None:
        with log.group() as group:
            with log.member():
                assert len(group.members()) == 1
                with pytest.raises(GroupBusy, match="contract"):
                    group.commit({log.tp: Committed(1, "")})
            assert group.committed([log.tp]) == {}
            group.commit({log.tp: Committed(1, "")})

    def test_s40_s41_s43_each_wanted_offset_is_found_or_provably_gone(self, log: Log) -> None:
        log.produce(*[b"%d" % n for n in range(4)])
        log.abort([b"x", b"y"])
        log.produce(b"last")
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

    def test_a_topic_is_known_by_its_id_and_its_partitions_by_their_leaders(self, log: Log) -> None:
        with log.cluster() as cluster:
            topics = cluster.topics([log.tp.topic, "nowhere"])
            assert list(topics) == [log.tp.topic]
            assert topics[log.tp.topic].topic_id
            assert dict(topics[log.tp.topic].partitions) == {0: True}
            assert log.tp.topic in cluster.names()
            log.produce(b"a")
            with pytest.raises(FatalError):
                cluster.bounds([TopicPartition("nowhere", 0)])


def checking(cluster: Cluster, tp: TopicPartition) -> Callable[[int, int], dict[TopicPartition, int | None]]:
    return lambda offset, leader_epoch: cluster.truncated_at({tp: (offset, leader_epoch)})


class ReplicaContract:
    """A partition that has a replica beside its leader: what leaders answer about older epochs."""

    def test_a_leader_that_hands_over_truncates_nothing(self, log: Replicated) -> None:
        """One client sends all requests: it notices the new leader by itself."""
        log.produce(*[b"{}"] * 4)
        with log.cluster() as cluster:
            truncated = checking(cluster, log.tp)
            assert cluster.bounds([log.tp])[log.tp] == LogBounds(0, 4, 0)
            assert truncated(4, 0) == {}
            log.hand_over()
            assert cluster.bounds([log.tp])[log.tp] == LogBounds(0, 4, 1)
            assert truncated(4, 0) == {}
            log.produce(*[b"{}"] * 2)
            assert truncated(4, 0) == truncated(6, 1) == {}
            assert truncated(5, 0) == {log.tp: 4}, "the older leader never had a fifth record"
            log.expire(5)
            assert truncated(4, 0) == {}, "what retention deleted was not truncated"
            log.expire(6)
            assert truncated(4, 0) == truncated(6, 1) == {}
            assert cluster.truncated_at({}) == {}

    def test_s42_a_truncated_log_is_found_also_when_it_has_grown_again(self, log: Replicated) -> None:
        log.produce(*[b"{}"] * 3)
        log.lag()
        log.produce(*[b"{}"] * 2)
        with log.cluster() as cluster:
            truncated = checking(cluster, log.tp)
            _, end, old, _ = cluster.bounds([log.tp])[log.tp]
            log.elect_lagging()
            _, short_end, new, _ = cluster.bounds([log.tp])[log.tp]
            assert old is not None
            assert new is not None
            assert new > old
            assert (end, short_end) == (5, 3)
            assert truncated(5, old) == {log.tp: 3}
            log.produce(*[b"{}"] * 4)
            assert cluster.bounds([log.tp])[log.tp].end == 7
            assert truncated(5, old) == truncated(4, old) == {log.tp: 3}
            assert truncated(3, old) == truncated(7, new) == {}
            assert truncated(7, new + 5) == {log.tp: None}, "an epoch that never was"
            log.expire(4)
            assert truncated(5, old) == {log.tp: 4}
            log.expire(6)
            assert truncated(5, old) == {}, "no record is left that the truncation could hide"


class TestInMemory(LogContract, ReplicaContract):
    @pytest.fixture
    def log(self) -> LogInMemory:
        return LogInMemory()


class TestAtABroker(LogContract):
    @pytest.fixture
    def log(self, broker: Broker, topic: MakeTopic) -> Log:
        return LogOfABroker(broker, topic())


class TestAtThreeBrokers(ReplicaContract):
    @pytest.fixture
    def log(self, brokers: Brokers) -> LogOfThreeBrokers:
        return LogOfThreeBrokers(brokers)

    def test_a_partition_without_leader_does_not_pass(self, log: LogOfThreeBrokers) -> None:
        log.produce(b"{}")
        log.lag()
        log.brokers.nodes[2].kill()
        log.brokers.await_leader(log.tp.topic, None)
        with log.cluster() as cluster, pytest.raises(TransientError, match=log.tp.topic):
            cluster.truncated_at({log.tp: (1, 0)}, timeout=1)
