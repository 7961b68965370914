"""What the brokers say of topics and logs, and what is said when they say nothing."""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import AdminClient

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.kafka import cluster as kafka_cluster
from ackline.kafka.cluster import Cluster
from ackline.kafka.config import client_config
from ackline.local.broker import Broker
from ackline.local.ports import free_ports
from ackline.local.processes import wait_until
from ackline.offsets import LogBounds, TopicPartition
from ackline.setting_warnings import TopicPolicy
from tests.conftest import MakeTopic
from tests.contract.kafka_log import aborted, config, delete_before, fill, producer, put, transaction


def test_topics_that_are_missing_are_missing_from_the_answer_s32(broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=3)
    with Cluster(config(broker), "read_committed") as cluster:
        found = cluster.topics([name, "nowhere", name])
        assert cluster.topics([]) == {}
        assert name in cluster.names()
        assert "__consumer_offsets" not in cluster.names()
    assert list(found) == [name]
    assert found[name].partitions == {0: True, 1: True, 2: True}


def test_how_topics_forget_is_asked_in_one_request(broker: Broker, topic: MakeTopic) -> None:
    minute = {"retention.ms": "60000"}
    both, compact = {**minute, "cleanup.policy": "compact,delete"}, {**minute, "cleanup.policy": "compact"}
    names = [topic(), topic(config=both), topic(config=compact), topic(config={"retention.ms": "-1"})]
    with Cluster(config(broker), "read_committed") as cluster:
        found = cluster.policies([*names, "nowhere"])
        assert cluster.policies([]) == {}
    assert found == {
        names[0]: TopicPolicy(timedelta(days=7)),
        names[1]: TopicPolicy(timedelta(minutes=1), compacted=True),
        names[2]: TopicPolicy(None, compacted=True),
        names[3]: TopicPolicy(None),
    }


def test_a_topic_created_again_has_another_id_s42(broker: Broker, topic: MakeTopic) -> None:
    name, admin = topic(), AdminClient({"bootstrap.servers": broker.bootstrap})
    with Cluster(config(broker), "read_committed") as cluster:
        before = cluster.topics([name])[name].topic_id
        assert cluster.topics([name])[name].topic_id == before
        admin.delete_topics([name])[name].result(30)
        assert wait_until(lambda: name not in cluster.topics([name]), 30)
        broker.create_topic(name)
        assert wait_until(lambda: name in cluster.topics([name]), 30)
        assert cluster.topics([name])[name].topic_id != before


def test_a_name_that_kafka_refuses_is_a_configuration_error(broker: Broker) -> None:
    with Cluster(config(broker), "read_committed") as cluster, pytest.raises(ConfigError, match="not a name!"):
        cluster.topics(["not a name!"])


def test_bounds_are_the_log_start_and_the_last_stable_offset_s43(broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=2)
    fill(broker, name, 100)
    delete_before(broker, name, 30)
    aborted(broker, name, [b"x"])  # and a marker: 102
    tp, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    with (
        transaction(broker, f"open-{uuid.uuid4()}") as client,
        Cluster(config(broker), "read_committed") as committed,
        Cluster(config(broker), "read_uncommitted") as uncommitted,
    ):
        client.produce(name, b"y", partition=0)
        assert client.flush(30) == 0
        put(broker, name, [(None, b"z")])
        assert committed.bounds([tp, empty]) == {tp: LogBounds(30, 102, 0), empty: LogBounds(0, 0, 0)}
        assert uncommitted.bounds([tp, tp]) == {tp: LogBounds(30, 104, 0)}
        assert committed.written_ends([tp, empty]) == {tp: 104, empty: 0}
        client.commit_transaction(30)
        assert wait_until(lambda: committed.bounds([tp])[tp].end == 105, 30)
        assert committed.bounds([]) == {}


def test_bounds_of_many_partitions_take_as_many_requests_as_of_one(broker: Broker, topic: MakeTopic) -> None:
    """As the client itself counts them: one for the starts, one for the ends."""
    name = topic(partitions=60)
    statistics: list[str] = []
    watched = {**config(broker), "stats_cb": statistics.append, "statistics.interval.ms": 20}
    with Cluster(watched, "read_committed") as cluster:

        def asked() -> int:
            statistics.clear()
            assert wait_until(lambda: cluster._admin.poll(0.05) >= 0 and len(statistics) >= 2, 30)
            brokers = json.loads(statistics[-1])["brokers"].values()
            return sum(int(broker["req"].get("ListOffsets", 0)) for broker in brokers)

        cluster.bounds([TopicPartition(name, 0)])
        one = asked()
        cluster.bounds([TopicPartition(name, 0)])
        each = asked() - one
        assert len(cluster.bounds(TopicPartition(name, p) for p in range(60))) == 60
        assert (each, asked() - one) == (2, 4)


@pytest.mark.parametrize("partition", [0, 7])
def test_bounds_of_what_does_not_exist_are_a_fatal_error(broker: Broker, topic: MakeTopic, partition: int) -> None:
    name = topic() if partition else "nowhere"
    cluster = Cluster(config(broker), "read_committed")
    with cluster, pytest.raises(FatalError, match="does not exist") as raised:
        cluster.bounds([TopicPartition(name, partition)])
    assert (raised.value.topic, raised.value.partition) == (name, partition)


def test_a_broker_that_is_away_is_a_transient_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    away = f"127.0.0.1:{free_ports(1)[0]}"
    with Cluster(client_config({"bootstrap.servers": away}), "read_committed") as cluster:
        started = time.monotonic()
        with pytest.raises(TransientError, match=rf"Connection refused.*{away}.*run this again"):
            cluster.reachable()
        assert time.monotonic() - started < 20
        monkeypatch.setattr(kafka_cluster, "REACHABLE", 0.5)
        with pytest.raises(TransientError, match=away):
            cluster.bounds([TopicPartition("any", 0)])


def test_a_broker_that_goes_away_later_is_transient_too_not_a_missing_topic(
    fragile: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client then says of every partition that it has no leader, as it does of a topic that never was."""
    tp = TopicPartition(f"here-{uuid.uuid4().hex[:8]}", 0)
    fragile.create_topic(tp.topic)
    with Cluster(config(fragile), "read_committed") as cluster:
        assert cluster.bounds([tp])[tp].end == 0
        fragile.kill()
        with monkeypatch.context() as hurried:
            hurried.setattr(kafka_cluster, "LISTING", 1.0)
            hurried.setattr(kafka_cluster, "REACHABLE", 1.0)
            for _ in range(2):
                with pytest.raises(TransientError, match=fragile.bootstrap):
                    cluster.bounds([tp])
        fragile.start()
        assert cluster.bounds([tp])[tp].end == 0


def test_a_login_that_is_refused_is_fatal_and_says_nothing_secret(broker: Broker) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    with (
        Cluster({**config(broker), **login, "sasl.password": "hunter2"}, "read_committed") as cluster,
        pytest.raises(FatalError, match=r"_AUTHENTICATION.*check security\.protocol") as raised,
    ):
        cluster.reachable()
    assert "hunter2" not in str(raised.value)


def test_a_property_that_the_client_does_not_know_is_a_configuration_error(broker: Broker) -> None:
    with pytest.raises(ConfigError, match=r"max\.poll\.interval"):
        Cluster({**config(broker), "max.poll.interval": 5}, "read_committed")


def test_a_cluster_is_known_by_its_id(broker: Broker) -> None:
    with Cluster(config(broker), "read_committed") as one, Cluster(config(broker), "read_committed") as other:
        assert one.reachable() == other.reachable() != ""


def test_the_time_of_a_record_is_that_of_the_first_at_or_after_the_offset(broker: Broker, topic: MakeTopic) -> None:
    name = topic(2, {"retention.ms": "-1"})
    client = producer(broker)
    for second in (10, 20, 30):
        client.produce(name, b"x", partition=0, timestamp=1_700_000_000_000 + second * 1000 + 7)
    assert client.flush(30) == 0
    delete_before(broker, name, 1)
    tp, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    with Cluster(config(broker), "read_committed") as cluster:
        at = datetime.fromtimestamp(1_700_000_020.007, UTC)
        assert cluster.record_time(tp, 1, timeout=30) == at
        assert cluster.record_time(tp, 2, timeout=30) == datetime.fromtimestamp(1_700_000_030.007, UTC)
        assert cluster.record_time(tp, 3, timeout=30) is None
        assert cluster.record_time(tp, 0, timeout=30) is None  # expired: nothing is known of its time
        assert cluster.record_time(tp, 99, timeout=30) is None
        started = time.monotonic()
        assert cluster.record_times({tp: 1, empty: 0}, timeout=60) == {tp: tp}
        assert time.monotonic() - started < 30, "nothing is waited for where there is none"


def test_the_offset_at_a_time_is_that_of_the_first_record_stamped_then_or_later_s34(
    broker: Broker, topic: MakeTopic
) -> None:
    name = topic(2, {"retention.ms": "-1"})
    client, start = producer(broker), datetime(2024, 5, 1, tzinfo=UTC)
    for second in (10, 20, 30):
        client.produce(name, b"x", partition=0, timestamp=int(start.timestamp() * 1000) + second * 1000)
    assert client.flush(30) == 0
    tp, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    with Cluster(config(broker), "read_committed") as cluster:

        def offset_at(seconds: float) -> int | None:
            return cluster.offsets_at([tp], start + timedelta(seconds=seconds))[tp]

        assert [offset_at(at) for at in (0, 10, 10.0005, 15, 20, 29.9999, 30)] == [0, 0, 1, 1, 1, 2, 2]
        assert offset_at(30.0001) is None
        assert cluster.offsets_at([tp, empty], datetime(1960, 1, 1, tzinfo=UTC)) == {tp: 0, empty: None}
        assert cluster.offsets_at([], start) == {}
