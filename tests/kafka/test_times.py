"""A choice by time on a real log: its records are out of order, the broker has stamped them, or it is long."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ackline.kafka.cluster import Cluster
from ackline.kafka.exact import ExactReader
from ackline.lane import times
from ackline.lane.adapters import Adapters
from ackline.lane.times import OfTimes, of_times
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.local.broker import Broker
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import config, producer

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
Times = tuple[datetime | None, datetime | None]


def put(broker: Broker, topic: str, *hours: float, partition: int = 0) -> None:
    """Produces records that are stamped so many hours after now, each in a batch of its own."""
    client = producer(broker, **{"linger.ms": 0, "batch.num.messages": 1})
    errors: set[object] = set()
    for hour in hours:
        stamp = int((NOW + hour * HOUR).timestamp() * 1000)
        client.produce(topic, b"x", None, partition, lambda error, _: errors.add(error), timestamp=stamp)
        assert client.flush(60) == 0
    assert errors <= {None}, "a broker refuses a record that is stamped more than an hour ahead"


@pytest.fixture
def choose(broker: Broker) -> Callable[..., Mapping[TopicPartition, OfTimes]]:
    """What a time from `since` to `until`, in hours after now, chooses of so many partitions of a topic."""

    def chosen(topic: str, since: float | None, until: float | None, partitions: int = 1) -> Mapping[Any, OfTimes]:
        with Cluster(config(broker), "read_committed") as cluster:
            reader = lambda: ExactReader(config(broker), "read_committed")  # noqa: E731
            adapters = cast(Adapters, SimpleNamespace(cluster=cluster, reader=reader))
            logs = cluster.bounds(TopicPartition(topic, number) for number in range(partitions))
            at = [None if hour is None else NOW + hour * HOUR for hour in (since, until)]
            return of_times(adapters, {tp: [OffsetRange(log.start, log.end)] for tp, log in logs.items()}, *at)

    return chosen


def test_one_record_ahead_of_its_time_hides_none_and_partitions_are_looked_at_together(
    broker: Broker, topic: MakeTopic, choose: Callable[..., Mapping[TopicPartition, OfTimes]]
) -> None:
    name = topic(partitions=3)
    put(broker, name, 0, *range(-22, -10))
    put(broker, name, *range(-22, -10), partition=1)
    found = choose(name, -16, -12, partitions=3)
    assert found[TopicPartition(name, 0)] == OfTimes((OffsetRange(7, 11),), 4, (), False)
    assert found[TopicPartition(name, 1)] == OfTimes((OffsetRange(6, 10),), 0, (), False)
    assert found[TopicPartition(name, 2)] == OfTimes((), 0, (), True)
    assert choose(name, -16, None)[TopicPartition(name, 0)].chosen == (OffsetRange(0, 1), OffsetRange(7, 13))


def test_a_log_that_the_broker_stamps_is_not_looked_at_past_one_record_also_after_older_ones_of_producers(
    broker: Broker, topic: MakeTopic, choose: Callable[..., Mapping[TopicPartition, OfTimes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(times, "MOST_LOOKED_AT", 3)
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    put(broker, name, *[-9] * 40)
    assert choose(name, -1, None)[TopicPartition(name, 0)] == OfTimes((OffsetRange(0, 40),), 0, (), False)
    assert choose(name, None, -1)[TopicPartition(name, 0)] == OfTimes((), 0, (), False)


def test_a_long_log_is_looked_at_within_the_limits(
    broker: Broker, topic: MakeTopic, choose: Callable[..., Mapping[TopicPartition, OfTimes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(times, "MOST_LOOKED_AT", 10_000)
    name, count = topic(), 20_000
    client = producer(broker)
    first = int((NOW - 9 * HOUR).timestamp() * 1000)
    for number in range(count):
        client.produce(name, b"x", partition=0, timestamp=first + number)
    assert client.flush(60) == 0
    found = choose(name, -9, -9 + 5 / 3600)[TopicPartition(name, 0)]
    assert found == OfTimes((OffsetRange(0, 5_000),), 0, (OffsetRange(15_000, 20_000),), False)
