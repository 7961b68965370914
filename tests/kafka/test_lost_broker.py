"""A broker that bounces or dies under its clients: no answer changes, nothing is lost, and the error is transient."""

import uuid
from collections.abc import Iterator

import pytest

from ackline.errors import TransientError
from ackline.kafka import cluster as kafka_cluster
from ackline.kafka.cluster import Cluster
from ackline.kafka.dead_letters import DeadLetters, Letter
from ackline.kafka.exact import ExactReader
from ackline.ledger.offsets import TopicPartition
from ackline.local.broker import Broker
from tests.kafka.kafka_log import config, fill, messages
from tests.kafka.test_dead_letters import REASON, sources
from tests.kafka.test_exact import answers, read, values


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The time-outs of requests to a cluster, shortened to a second."""
    with monkeypatch.context() as patch:
        patch.setattr(kafka_cluster, "ADMIN_TIMEOUT", 1.0)
        patch.setattr(kafka_cluster, "CONNECT_TIMEOUT", 1.0)
        yield patch


def test_a_broker_that_dies_later_is_transient_too_not_a_missing_topic(
    fragile: Broker, impatient: pytest.MonkeyPatch
) -> None:
    """The client then reports of every partition that it has no leader, as it does for a topic that never existed."""
    tp = TopicPartition(f"here-{uuid.uuid4().hex[:8]}", 0)
    fragile.create_topic(tp.topic)
    with Cluster(config(fragile), "read_committed") as cluster:
        assert cluster.bounds([tp])[tp].end == 0
        fragile.kill()
        for _ in range(2):
            with pytest.raises(TransientError, match=fragile.bootstrap):
                cluster.bounds([tp])
        impatient.undo()
        fragile.start()
        assert cluster.bounds([tp])[tp].end == 0


def test_a_bounce_while_sending_loses_and_repeats_nothing(fragile: Broker) -> None:
    source, dead = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("source", "dead"))
    for name in (source, dead):
        fragile.create_topic(name)
    found = sources(fragile, source, *((b"%d" % i, b"v") for i in range(3000)))
    with DeadLetters(config(fragile), dead, timeout=60) as dead_letters:
        sending = dead_letters.send(Letter(record, REASON) for record in found)
        deliveries = [next(sending) for _ in range(100)]
        fragile.bounce()
        deliveries += list(sending)
    assert all(delivery.confirmed for delivery in deliveries)
    assert [m.key() for m in messages(fragile, dead)] == [record.message.key() for record in found]


def test_a_broker_that_bounces_in_the_middle_changes_no_answer(fragile: Broker) -> None:
    name = f"bounced-{uuid.uuid4().hex[:8]}"
    fragile.create_topic(name, 2)
    for partition in range(2):
        fill(fragile, name, 100_000, partition)
    sparse, dense = list(range(0, 100_000, 997)), list(range(0, 100_000, 2))
    with ExactReader(config(fragile), "read_committed", timeout=60) as reader:
        results = reader.read({TopicPartition(name, 0): sparse, TopicPartition(name, 1): dense})
        found = [next(results) for _ in range(20)]
        fragile.bounce()
        found += list(results)
    for partition, wanted in enumerate((sparse, dense)):
        assert answers(r for r in found if r.topic_partition.partition == partition) == values(wanted)


def test_a_broker_that_stays_down_ends_the_read_with_a_transient_error(
    fragile: Broker, impatient: pytest.MonkeyPatch
) -> None:
    name = f"down-{uuid.uuid4().hex[:8]}"
    fragile.create_topic(name)
    fill(fragile, name, 50_000)
    with ExactReader(config(fragile), "read_committed", timeout=2) as reader:
        results = reader.read({TopicPartition(name, 0): [0, 20_000, 40_000]})
        next(results)
        fragile.kill()
        with pytest.raises(TransientError, match=rf"{fragile.bootstrap}.*run this again"):
            list(results)
    impatient.undo()
    fragile.start()
    assert read(fragile, name, [20_000]) == values([20_000])
