"""What a cluster's list of topics leaves out.

What the brokers answer about topics and logs, and what is raised when they do not answer.
"""

import json
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.kafka import cluster as kafka_cluster
from ackline.kafka.cluster import READ_UNCOMMITTED, Cluster
from ackline.kafka.config import client_config
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.pipeline.warnings import TopicPolicy
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.kafka.kafka_log import aborted, config, delete_before, fill, producer, put


def test_the_internal_topics_of_kafka_match_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ["orders", "__orders", *(f"__{of}" for of in ("consumer_offsets", "transaction_state"))]
    topics += ["__share_group_state", "__remote_log_metadata"]
    listed = SimpleNamespace(topics=dict.fromkeys(topics))
    cluster = Cluster(client_config({"bootstrap.servers": "127.0.0.1:1"}), "read_committed")
    monkeypatch.setattr(cluster, "_admin", SimpleNamespace(list_topics=lambda timeout: listed))
    assert cluster.names() == ["__orders", "orders"]


NOON = datetime(2024, 5, 1, 12, 0, 0, 7_000, tzinfo=UTC)


@pytest.fixture
def stamped(broker: Broker, topic: MakeTopic) -> TopicPartition:
    """A partition whose three records are stamped 10, 20 and 30 seconds after `NOON`; partition 1 is empty."""
    name, client = topic(2, {"retention.ms": "-1"}), producer(broker)
    for second in (10, 20, 30):
        client.produce(name, b"x", partition=0, timestamp=round(NOON.timestamp() * 1000) + second * 1000)
    assert client.flush(30) == 0
    return TopicPartition(name, 0)


def test_topics_that_are_missing_are_missing_from_the_answer_s32(cluster: Cluster, topic: MakeTopic) -> None:
    name = topic(partitions=3)
    found = cluster.topics([name, "nowhere", name])
    assert list(found) == [name]
    assert found[name].partitions == {0: True, 1: True, 2: True}
    assert cluster.topics([]) == {}
    assert name in cluster.names()
    assert "__consumer_offsets" not in cluster.names()


def test_retention_and_compaction_of_topics_are_read_in_one_request(cluster: Cluster, topic: MakeTopic) -> None:
    policies = {
        topic(): TopicPolicy(timedelta(days=7)),
        topic(config={"retention.ms": "60000", "cleanup.policy": "compact,delete"}):
            TopicPolicy(timedelta(minutes=1), compacted=True),
        topic(config={"retention.ms": "60000", "cleanup.policy": "compact"}): TopicPolicy(None, compacted=True),
        topic(config={"retention.ms": "-1"}): TopicPolicy(None),
    }  # fmt: skip
    assert cluster.policies([*policies, "nowhere"]) == policies
    assert cluster.policies([]) == {}


def test_a_topic_created_again_has_another_id_s42(broker: Broker, cluster: Cluster, topic: MakeTopic) -> None:
    name, admin = topic(), AdminClient({"bootstrap.servers": broker.bootstrap})
    before = cluster.topics([name])[name].topic_id
    assert cluster.topics([name])[name].topic_id == before
    admin.delete_topics([name])[name].result(30)
    assert wait_until(lambda: name not in cluster.topics([name]), 30)
    broker.create_topic(name)
    assert wait_until(lambda: name in cluster.topics([name]), 30)
    assert cluster.topics([name])[name].topic_id != before


def test_a_name_that_kafka_refuses_is_a_configuration_error(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="not a name!"):
        cluster.topics(["not a name!"])


def test_bounds_are_the_log_start_and_the_last_stable_offset_s43(
    broker: Broker, cluster: Cluster, topic: MakeTopic
) -> None:
    name = topic(partitions=2)
    fill(broker, name, 100)
    delete_before(broker, name, 30)
    aborted(broker, name, [b"x"])  # with its marker, the log ends at 102
    tp, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    with Cluster(config(broker), "read_uncommitted") as uncommitted:
        client = wire.open_transaction(broker.bootstrap, name, [wire.Write(b"y")])
        put(broker, name, [(None, b"z")])
        assert cluster.bounds([tp, empty]) == {tp: LogBounds(30, 102, 0, 2), empty: LogBounds(0, 0, 0)}
        assert uncommitted.bounds([tp, tp]) == {tp: LogBounds(30, 104, 0)}
        assert cluster.record_times({tp: 102}, timeout=1.0) == {}
        assert list(cluster.record_times({tp: 102}, READ_UNCOMMITTED)) == [tp]
        client.commit_transaction(30)
        assert wait_until(lambda: cluster.bounds([tp])[tp].end == 105, 30)
        assert cluster.bounds([]) == {}


def test_bounds_of_many_partitions_take_about_as_many_requests_as_of_few(broker: Broker, topic: MakeTopic) -> None:
    """The client counts its own requests, and repeats them on a busy machine. So the test judges their growth."""
    name, statistics = topic(partitions=60), list[str]()
    watched = {**config(broker), "stats_cb": statistics.append, "statistics.interval.ms": 20}
    with Cluster(watched, "read_committed") as cluster:

        def requests_so_far() -> int:
            statistics.clear()
            assert wait_until(lambda: cluster._admin.poll(0.05) >= 0 and len(statistics) >= 2, 30)
            brokers = json.loads(statistics[-1])["brokers"].values()
            return sum(int(broker["req"].get("ListOffsets", 0)) for broker in brokers)

        def requests_for(partitions: int) -> int:
            before = requests_so_far()
            assert len(cluster.bounds(TopicPartition(name, p) for p in range(partitions))) == partitions
            return requests_so_far() - before

        requests_for(1)  # connects
        assert requests_for(60) <= requests_for(2) + 20


@pytest.mark.parametrize("partition", [0, 7])
def test_bounds_of_what_does_not_exist_are_a_fatal_error(cluster: Cluster, topic: MakeTopic, partition: int) -> None:
    tp = TopicPartition(topic() if partition else "nowhere", partition)
    with pytest.raises(FatalError, match="does not exist") as raised:
        cluster.bounds([tp])
    assert (raised.value.topic, raised.value.partition) == tp


def test_an_unreachable_broker_is_a_transient_error_within_seconds(
    unreachable: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = unreachable["bootstrap.servers"]
    with Cluster(unreachable, "read_committed") as cluster:
        started = time.monotonic()
        refused = (
            rf"no broker answers at {address}: Connect to .*{address} failed: Connection refused; .*run this again"
        )
        with pytest.raises(TransientError, match=refused) as raised:
            cluster.reachable()
        assert type(raised.value) is TransientError
        assert time.monotonic() - started < 20
        monkeypatch.setattr(kafka_cluster, "CONNECT_TIMEOUT", 0.5)
        with pytest.raises(TransientError, match=str(address)):
            cluster.bounds([TopicPartition("any", 0)])


def test_a_refused_login_is_fatal_and_shows_no_secret(kafka: dict[str, object]) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    with (
        Cluster({**kafka, **login, "sasl.password": "hunter2"}, "read_committed") as cluster,
        pytest.raises(FatalError, match=r"_AUTHENTICATION.*check security\.protocol") as raised,
    ):
        cluster.reachable()
    assert "hunter2" not in str(raised.value)


def test_an_unknown_client_property_is_a_configuration_error(kafka: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"max\.poll\.interval"):
        Cluster({**kafka, "max.poll.interval": 5}, "read_committed")


def test_each_connection_reads_the_same_cluster_id(kafka: dict[str, object], cluster: Cluster) -> None:
    with Cluster(kafka, "read_uncommitted") as other:
        assert cluster.reachable() == other.reachable() != ""


def test_the_time_of_a_record_is_that_of_the_first_at_or_after_the_offset(
    broker: Broker, cluster: Cluster, stamped: TopicPartition
) -> None:
    delete_before(broker, stamped.topic, 1)
    empty = TopicPartition(stamped.topic, 1)
    second = NOON + timedelta(seconds=20)
    assert cluster.record_times({stamped: 2}, timeout=30) == {stamped: NOON + timedelta(seconds=30)}
    for offset in (3, 0, 99):  # at the end, below the log start, beyond the end
        assert cluster.record_times({stamped: offset}, timeout=30) == {}
    started = time.monotonic()
    assert cluster.record_times({stamped: 1, empty: 0}, timeout=60) == {stamped: second}
    assert time.monotonic() - started < 30, "an empty partition costs no waiting"


def test_the_offset_at_a_time_is_that_of_the_first_record_stamped_then_or_later_s34(
    cluster: Cluster, stamped: TopicPartition
) -> None:
    empty = TopicPartition(stamped.topic, 1)

    def offset_at(seconds: float) -> int | None:
        return cluster.offsets_at([stamped], NOON + timedelta(seconds=seconds))[stamped]

    assert [offset_at(at) for at in (0, 10, 10.0005, 15, 20, 29.9999, 30)] == [0, 0, 1, 1, 1, 2, 2]
    assert offset_at(30.0001) is None
    assert cluster.offsets_at([stamped, empty], datetime(1960, 1, 1, tzinfo=UTC)) == {stamped: 0, empty: None}
    assert cluster.offsets_at([], NOON) == {}


def test_a_timestamp_that_is_no_time_gives_no_time_of_a_record_and_can_be_looked_up(
    broker: Broker, cluster: Cluster, topic: MakeTopic
) -> None:
    """Nanoseconds and microseconds where Kafka means milliseconds, the year 1, and none."""
    tp = TopicPartition(topic(1, {"message.timestamp.after.max.ms": str(2**63 - 1)}), 0)
    client = producer(broker)
    times = [1_700_000_000_000, 1_700_000_000_000_000, 1_700_000_000_000_000_000, -62_135_596_800_000, -1]
    for milliseconds in times:
        client.produce(tp.topic, b"v", partition=0, timestamp=milliseconds)
    assert client.flush(30) == 0
    assert cluster.record_times({tp: 0}, timeout=30) == {tp: datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}
    assert [cluster.record_times({tp: offset}, timeout=30) for offset in (1, 2, 3, 4)] == [{}] * 4
    assert [cluster.offsets_since([tp], number)[tp] for number in (0, 10**15, 10**16, 2**63 - 1)] == [0, 1, 2, None]
    assert cluster.offsets_since([], 0) == {}
