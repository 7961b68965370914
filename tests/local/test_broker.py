"""The broker of the tests and the demo: a real one, which can crash and leaves no process behind."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ackline.errors import FatalError
from ackline.local import processes
from ackline.local.broker import Broker, identity_of, running, stop_running
from ackline.local.processes import wait_until
from ackline.tables.lease import ProcessIdentity
from tests.conftest import MakeTopic

pytestmark = pytest.mark.real

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


def produce(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def values_of(broker: Broker, topic: str, count: int) -> list[str | bytes | None]:
    with client(broker, "reader") as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=30)]


def start_and_die(folder: Path, mode: str) -> None:
    """Starts a broker in a process that dies without stopping it."""
    command = [sys.executable, "-c", START, str(folder), mode]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 1


def test_records_and_group_offsets_survive_a_crash(tmp_path: Path, group: Callable[[], str]) -> None:
    reader = group()
    with Broker(tmp_path, heap_mb=256) as broker:
        bootstrap, process = broker.bootstrap, broker.pid
        broker.create_topic("kept", partitions=2)
        produce(broker, "kept", b"1", b"2")
        with client(broker, reader) as consumer:
            consumer.commit(offsets=[TopicPartition("kept", 0, 1)], asynchronous=False)
        broker.bounce()
        assert broker.bootstrap == bootstrap
        assert broker.pid != process
        assert values_of(broker, "kept", 2) == [b"1", b"2"]
        with client(broker, reader) as consumer:
            assert consumer.committed([TopicPartition("kept", 0)], timeout=30)[0].offset == 1


def test_stopping_leaves_no_process_and_a_second_start_finds_the_data(tmp_path: Path) -> None:
    with Broker(tmp_path, heap_mb=256) as broker:
        broker.create_topic("kept")
        produce(broker, "kept", b"1")
        process = running(tmp_path)
    assert process is not None
    assert not identity_of(process).alive()
    assert running(tmp_path) is None
    with Broker(tmp_path, heap_mb=256) as again:
        assert again.bootstrap == broker.bootstrap
        assert values_of(again, "kept", 1) == [b"1"]


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    start_and_die(tmp_path, "attached")
    assert wait_until(lambda: running(tmp_path) is None, 20)


def test_a_detached_broker_outlives_its_starter_and_is_stopped_from_its_folder(tmp_path: Path) -> None:
    start_and_die(tmp_path, "detached")
    saved = running(tmp_path)
    if saved is None:
        pytest.fail("the broker did not outlive the process that started it")
    try:
        with pytest.raises(FatalError, match=r"runs in .* already"):
            Broker(tmp_path).start()
    finally:
        stopped = stop_running(tmp_path)
    assert stopped
    assert not identity_of(saved).alive()
    assert not stop_running(tmp_path)


def test_a_process_that_has_the_same_number_later_has_another_identity() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = ProcessIdentity.of(other.pid)
        assert now is not None
        assert now.alive()
        assert not ProcessIdentity(now.pid, now.started - 1).alive()
        other.kill()


def test_no_topic_is_created_by_itself(broker: Broker, topic: MakeTopic) -> None:
    name = topic(partitions=3, config={"retention.ms": "1000"})
    with client(broker, "reader") as consumer:
        assert len(consumer.list_topics(name, timeout=30).topics[name].partitions) == 3
        assert consumer.list_topics("not-created", timeout=30).topics["not-created"].error is not None
    with pytest.raises(KafkaException, match="already exists"):
        broker.create_topic(name)


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_given", set())
    monkeypatch.setattr(processes, "_first_outgoing", lambda: processes.LOWEST + 21)
    monkeypatch.setattr(processes, "is_free", lambda port: port != processes.LOWEST + 7)
    given = [port for _ in range(10) for port in processes.free_ports(2)]
    assert sorted(given) == [
        port for port in range(processes.LOWEST, processes.LOWEST + 21) if port != processes.LOWEST + 7
    ]
    with pytest.raises(OSError, match="no 1 free ports"):
        processes.free_ports(1)
