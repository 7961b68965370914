"""Where a log was truncated: what leaders answer about older epochs, in memory and on three brokers (fault 16)."""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from ackline.errors import TransientError
from ackline.kafka.cluster import Cluster, truncated_logs
from ackline.kafka.config import client_config
from ackline.ledger.offsets import LogBounds, TopicPartition
from tests.e2e import wire
from tests.ledger.strategies import NOON
from tests.support.brokers import Brokers
from tests.support.memory import World
from tests.support.memory_kafka import MemoryCluster


class InMemory:
    """The partition of a world in memory."""

    def __init__(self) -> None:
        self.tp = TopicPartition("orders", 0)
        self._world = World(NOON)
        self._log = self._world.create_topic("orders").logs[0]
        self._replica_end = 0

    def cluster(self) -> AbstractContextManager[Cluster]:
        return nullcontext(MemoryCluster(self._world, "read_committed"))

    def produce(self, count: int) -> None:
        for _ in range(count):
            self._log.append(b"{}", NOON)

    def expire(self, before: int) -> None:
        self._log.expire(before)

    def hand_over(self) -> None:
        self._log.elect()

    def lag(self) -> None:
        self._replica_end = self._log.end

    def elect_lagging(self) -> None:
        self._log.elect(self._replica_end)


class OnBrokers:
    """A partition on nodes 2 and 3; node 2 leads."""

    def __init__(self, brokers: Brokers) -> None:
        self.tp = TopicPartition(f"topic-{uuid.uuid4().hex[:10]}", 0)
        self._brokers = brokers
        brokers.create_topic(self.tp.topic, config={"unclean.leader.election.enable": "true"}, replicas=[(2, 3)])

    def cluster(self) -> AbstractContextManager[Cluster]:
        return Cluster(client_config({"bootstrap.servers": self._brokers.bootstrap}), "read_committed")

    def produce(self, count: int) -> None:
        wire.produce(self._brokers.bootstrap, self.tp.topic, [wire.Write(b"{}")] * count)

    def expire(self, before: int) -> None:
        wire.delete_records(self._brokers.bootstrap, self.tp, before)

    def hand_over(self) -> None:
        self._brokers.await_in_sync(self.tp.topic, {2, 3})
        self._brokers.nodes[2].stop()
        self._brokers.await_leader(self.tp.topic, 3)

    def lag(self) -> None:
        self._brokers.nodes[3].stop()
        self._brokers.await_in_sync(self.tp.topic, {2})

    def elect_lagging(self) -> None:
        self._brokers.nodes[2].kill()
        self._brokers.nodes[3].start()
        self._brokers.await_leader(self.tp.topic, 3)


Replicated = InMemory | OnBrokers
"""A partition with a replica beside its leader, of either kind."""


@pytest.fixture(params=["memory", "brokers"])
def log(request: pytest.FixtureRequest) -> Replicated:
    """A log without records."""
    return InMemory() if request.param == "memory" else OnBrokers(request.getfixturevalue("brokers"))


def checking(cluster: Cluster, tp: TopicPartition) -> Callable[[int, int], dict[TopicPartition, int | None]]:
    return lambda offset, leader_epoch: cluster.truncated_at({tp: (offset, leader_epoch)})


def test_a_leader_that_hands_over_truncates_nothing(log: Replicated) -> None:
    """One client sends all requests: it notices the new leader by itself."""
    log.produce(4)
    with log.cluster() as cluster:
        truncated = checking(cluster, log.tp)
        assert cluster.bounds([log.tp])[log.tp] == LogBounds(0, 4, 0)
        assert truncated(4, 0) == {}
        log.hand_over()
        assert cluster.bounds([log.tp])[log.tp] == LogBounds(0, 4, 1)
        assert truncated(4, 0) == {}
        log.produce(2)
        assert truncated(4, 0) == truncated(6, 1) == {}
        assert truncated(5, 0) == {log.tp: 4}, "the older leader never had a fifth record"
        log.expire(5)
        assert truncated(4, 0) == {}, "what retention deleted was not truncated"
        log.expire(6)
        assert truncated(4, 0) == truncated(6, 1) == {}
        assert cluster.truncated_at({}) == {}


def test_s42_a_truncated_log_is_found_also_when_it_has_grown_again(log: Replicated) -> None:
    log.produce(3)
    log.lag()
    log.produce(2)
    with log.cluster() as cluster:
        truncated = checking(cluster, log.tp)
        _, end, old = cluster.bounds([log.tp])[log.tp]
        log.elect_lagging()
        _, short_end, new = cluster.bounds([log.tp])[log.tp]
        assert old is not None
        assert new is not None
        assert new > old
        assert (end, short_end) == (5, 3)
        assert truncated(5, old) == {log.tp: 3}
        log.produce(4)
        assert cluster.bounds([log.tp])[log.tp].end == 7
        assert truncated(5, old) == truncated(4, old) == {log.tp: 3}
        assert truncated(3, old) == truncated(7, new) == {}
        assert truncated(7, new + 5) == {log.tp: None}, "an epoch that never was"
        log.expire(4)
        assert truncated(5, old) == {log.tp: 4}
        log.expire(6)
        assert truncated(5, old) == {}, "no record is left that the truncation could hide"


def test_a_partition_without_leader_does_not_pass(brokers: Brokers) -> None:
    log = OnBrokers(brokers)
    log.produce(1)
    log.lag()
    brokers.nodes[2].kill()
    brokers.await_leader(log.tp.topic, None)
    config = client_config({"bootstrap.servers": brokers.bootstrap})
    with pytest.raises(TransientError, match=log.tp.topic):
        truncated_logs(config, {log.tp: (1, 0)}, timeout=1)
