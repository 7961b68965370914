"""The broker that tests and the demo rely on: a real one, which can crash and leaves nothing behind."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ackline.errors import FatalError
from ackline.local.broker import Broker, running, stop_running
from ackline.local.processes import Identity, wait_until
from tests.conftest import MakeTopic

START = """
import os, sys
from pathlib import Path
from ackline.local.broker import Broker
Broker(Path(sys.argv[1]), heap_mb=256, detached=sys.argv[2] == "detached").start()
os._exit(1)
"""


@contextmanager
def client(broker: Broker, group: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        yield consumer
    finally:
        consumer.close()


def produce(broker: Broker, topic: str, *values: bytes, transactional_id: str | None = None) -> None:
    settings = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, **settings})
    if transactional_id:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    if transactional_id:
        producer.commit_transaction(30)


def values_of(broker: Broker, topic: str, count: int) -> list[str | bytes | None]:
    with client(broker, "reader") as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=30)]


def started_by_another_process(folder: Path, how: str) -> Identity:
    """The broker of a process that died without stopping it."""
    folder.mkdir()
    command = [sys.executable, "-c", START, str(folder), how]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 1
    identity = running(folder)
    if identity is None:
        pytest.fail("the broker did not outlive the process that started it")
    return identity.identity


def test_records_and_group_offsets_survive_a_crash(tmp_path: Path, group: Callable[[], str]) -> None:
    reader = group()
    with Broker(tmp_path, heap_mb=256) as broker:
        bootstrap, process = broker.bootstrap, broker.pid
        broker.create_topic("kept", partitions=2)
        produce(broker, "kept", b"one", b"two")
        with client(broker, reader) as consumer:
            consumer.commit(offsets=[TopicPartition("kept", 0, 1)], asynchronous=False)

        broker.bounce()

        assert broker.bootstrap == bootstrap
        assert broker.pid != process
        assert values_of(broker, "kept", 2) == [b"one", b"two"]
        with client(broker, reader) as consumer:
            assert consumer.committed([TopicPartition("kept", 0)], timeout=30)[0].offset == 1


def test_stopping_leaves_no_process_and_a_second_start_finds_the_data(tmp_path: Path) -> None:
    with Broker(tmp_path, heap_mb=256) as broker:
        broker.create_topic("kept")
        produce(broker, "kept", b"one")
        process = running(tmp_path)
    assert process is not None
    assert not process.identity.alive()
    assert running(tmp_path) is None

    with Broker(tmp_path, heap_mb=256) as again:
        assert again.bootstrap == broker.bootstrap
        assert values_of(again, "kept", 1) == [b"one"]


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    command = [sys.executable, "-c", START, str(folder), "attached"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 1
    assert wait_until(lambda: running(folder) is None, 20)


def test_a_detached_broker_outlives_its_starter_and_is_stopped_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    identity = started_by_another_process(folder, "detached")
    try:
        assert identity.alive()
        with pytest.raises(FatalError, match=r"runs in .* already"):
            Broker(folder).start()
    finally:
        stopped = stop_running(folder)
    assert stopped
    assert not identity.alive()
    assert not stop_running(folder)


def test_a_process_that_was_given_the_number_since_is_not_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = Identity.of(other.pid)
        assert now is not None
        assert now.alive()
        assert not Identity(now.pid, now.started - 1).alive()
        other.kill()


def test_topics_are_made_by_hand_only(broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=3, config={"retention.ms": "1000"})
    with client(broker, "reader") as consumer:
        assert len(consumer.list_topics(name, timeout=30).topics[name].partitions) == 3
        assert consumer.list_topics("nobody-made-this", timeout=30).topics["nobody-made-this"].error is not None
    with pytest.raises(KafkaException, match="already exists"):
        broker.create_topic(name)


def test_transactions_work(broker: Broker, topic: MakeTopic) -> None:
    name = topic()
    produce(broker, name, b"one", b"two", transactional_id=f"writer-of-{name}")
    assert values_of(broker, name, 2) == [b"one", b"two"]


def test_a_compacted_topic_is_compacted_soon(broker: Broker, topic: MakeTopic) -> None:
    name = topic(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        }
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def only_the_last_of_a_key_is_left() -> bool:
        producer.produce(name, key=b"key", value=b"value")
        assert producer.flush(30) == 0
        with client(broker, "reader") as consumer:
            consumer.assign([TopicPartition(name, 0, 0)])
            first = consumer.poll(30)
            return first is not None and (first.offset() or 0) > 0

    assert wait_until(only_the_last_of_a_key_is_left, 30)
