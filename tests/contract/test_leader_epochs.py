"""Where a log was cut: what leaders say of epochs that are over, in memory and on three brokers (fault 16)."""

import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from ackline.errors import TransientError
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.kafka.truncation import cut_logs
from ackline.offsets import TopicPartition
from ackline.testing.brokers import Brokers
from ackline.testing.memory import World
from ackline.testing.memory_kafka import MemoryCluster
from tests.e2e import wire
from tests.unit.strategies import NOON


class Replicated(Protocol):
    """A partition with a replica beside its leader, of either kind."""

    tp: TopicPartition

    def cluster(self) -> AbstractContextManager[Cluster]: ...
    def produce(self, count: int) -> None: ...
    def expire(self, before: int) -> None: ...
    def hand_over(self) -> None: ...
    def lag(self) -> None: ...
    def elect_who_lags(self) -> None: ...


class InMemory:
    """A world's."""

    def __init__(self) -> None:
        self.tp = TopicPartition("orders", 0)
        self._world = World(NOON)
        self._log = self._world.create_topic("orders").logs[0]
        self._lags_at = 0

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
        self._lags_at = self._log.end

    def elect_who_lags(self) -> None:
        self._log.elect(self._lags_at)


class OnBrokers:
    """On nodes 2 and 3; node 2 leads."""

    def __init__(self, brokers: Brokers) -> None:
        self.tp = TopicPartition(f"topic-{uuid.uuid4().hex[:10]}", 0)
        self._brokers = brokers
        brokers.create_topic(self.tp.topic, config={"unclean.leader.election.enable": "true"}, replicas=[(2, 3)])

    def cluster(self) -> AbstractContextManager[Cluster]:
        return Cluster(client_config({"bootstrap.servers": self._brokers.bootstrap}), "read_committed")

    def produce(self, count: int) -> None:
        wire.produce(self._brokers.bootstrap, self.tp.topic, [wire.Write(b"{}")] * count)

    def expire(self, before: int) -> None:
        admin = AdminClient({"bootstrap.servers": self._brokers.bootstrap})
        for done in admin.delete_records([ClientPartition(*self.tp, before)]).values():
            done.result(30)

    def hand_over(self) -> None:
        self._brokers.await_in_sync(self.tp.topic, {2, 3})
        self._brokers.nodes[2].stop()
        self._brokers.await_leader(self.tp.topic, 3)

    def lag(self) -> None:
        self._brokers.nodes[3].stop()
        self._brokers.await_in_sync(self.tp.topic, {2})

    def elect_who_lags(self) -> None:
        self._brokers.nodes[2].kill()
        self._brokers.nodes[3].start()
        self._brokers.await_leader(self.tp.topic, 3)


@pytest.fixture(params=["memory", "brokers"])
def log(request: pytest.FixtureRequest) -> Replicated:
    """A log without records."""
    return InMemory() if request.param == "memory" else OnBrokers(request.getfixturevalue("brokers"))


def test_a_leader_that_hands_over_cuts_nothing(log: Replicated) -> None:
    """Asked by one client throughout: it learns of the new leader by itself."""
    log.produce(4)
    with log.cluster() as cluster:
        before = cluster.bounds([log.tp])[log.tp]
        assert (before.start, before.end, before.leader_epoch) == (0, 4, 0)
        assert cluster.cut({log.tp: (4, 0)}) == {}
        log.hand_over()
        now = cluster.bounds([log.tp])[log.tp]
        assert (now.start, now.end, now.leader_epoch) == (0, 4, 1)
        assert cluster.cut({log.tp: (4, 0)}) == {}
        log.produce(2)
        assert cluster.cut({log.tp: (4, 0)}) == cluster.cut({log.tp: (6, 1)}) == {}
        assert cluster.cut({log.tp: (5, 0)}) == {log.tp: 4}, "the older leader never had a fifth record"
        log.expire(5)
        assert cluster.cut({log.tp: (4, 0)}) == {}, "what retention took was not cut"
        log.expire(6)
        assert cluster.cut({log.tp: (4, 0)}) == cluster.cut({log.tp: (6, 1)}) == {}
        assert cluster.cut({}) == {}


def test_s42_a_log_that_was_cut_says_so_also_when_it_has_grown_again(log: Replicated) -> None:
    log.produce(3)
    log.lag()
    log.produce(2)
    with log.cluster() as cluster:
        before = cluster.bounds([log.tp])[log.tp]
        log.elect_who_lags()
        short = cluster.bounds([log.tp])[log.tp]
        assert before.leader_epoch is not None
        assert short.leader_epoch is not None
        assert (before.end, short.end) == (5, 3)
        assert short.leader_epoch > before.leader_epoch
        known = before.leader_epoch
        assert cluster.cut({log.tp: (5, known)}) == {log.tp: 3}
        log.produce(4)
        assert cluster.bounds([log.tp])[log.tp].end == 7
        assert cluster.cut({log.tp: (5, known)}) == cluster.cut({log.tp: (4, known)}) == {log.tp: 3}
        assert cluster.cut({log.tp: (3, known)}) == cluster.cut({log.tp: (7, short.leader_epoch)}) == {}
        assert cluster.cut({log.tp: (7, short.leader_epoch + 5)}) == {log.tp: None}, "an epoch that never was"
        log.expire(4)
        assert cluster.cut({log.tp: (5, known)}) == {log.tp: 4}
        log.expire(6)
        assert cluster.cut({log.tp: (5, known)}) == {}, "nothing is left of what the cut could hide"


def test_a_partition_without_leader_does_not_pass(brokers: Brokers) -> None:
    log = OnBrokers(brokers)
    log.produce(1)
    log.lag()
    brokers.nodes[2].kill()
    brokers.await_leader(log.tp.topic, None)
    config = client_config({"bootstrap.servers": brokers.bootstrap})
    with pytest.raises(TransientError, match=log.tp.topic):
        cut_logs(config, {log.tp: (1, 0)}, timeout=1)
