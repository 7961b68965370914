"""Starts, stops and shows what stays up on this machine: the broker of `ackline dev`, and a demo that was kept.

Each has a folder below `.ackline`, and saves there what runs, so that a later command finds it.
"""

import shutil
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ackline.errors import ConfigError
from ackline.local import airflow_servers, broker, order_events
from ackline.local.broker import Broker
from ackline.local.saved_broker import demo_folder, dev_folder

PARTITIONS = 4


def dev_up(port: int | None = None) -> str:
    """Starts the broker of `ackline dev` unless it runs, and returns its address. The broker outlives this process.

    Raises ConfigError if it runs on another port already.
    """
    running = broker.running(dev_folder())
    if running is None:
        dev_folder().mkdir(parents=True, exist_ok=True)
        started = Broker(dev_folder(), port=port, detached=True)
        started.start()
        return started.bootstrap
    if port not in (None, running.port):
        raise ConfigError(
            f"a broker is up already, at {running.bootstrap}; stop it with `ackline dev down`", key="--port"
        )
    return running.bootstrap


def dev_down() -> bool:
    """Stops the broker of `ackline dev` and a demo that was kept; returns whether any of them was running."""
    demo_was_running = stop_demo()
    return broker.stop_running(dev_folder()) or demo_was_running


def stop_demo() -> bool:
    """Stops a demo that was kept and removes its folder; returns whether it was running."""
    stopped = [
        airflow_servers.stop_running(demo_folder() / "airflow"),
        broker.stop_running(demo_folder() / "broker"),
    ]
    shutil.rmtree(demo_folder(), ignore_errors=True)
    return any(stopped)


def dev_status() -> dict[str, Any]:
    """Returns the address of each server that runs, by name: `broker`, `demo_broker`, `demo_airflow`."""
    addresses: dict[str, Any] = {}
    if dev := broker.running(dev_folder()):
        addresses["broker"] = dev.bootstrap
    if demo := broker.running(demo_folder() / "broker"):
        addresses["demo_broker"] = demo.bootstrap
    if airflow := airflow_servers.running(demo_folder() / "airflow"):
        addresses["demo_airflow"] = airflow.url
    return addresses


def dev_produce(topic: str, count: int) -> str:
    """Produces orders to the broker that is up, and returns a sentence about them.

    Creates the topic and its dead-letter topic if they do not exist. Raises ConfigError if no broker is up.
    """
    up = _broker_that_is_up()
    if up is None:
        raise ConfigError("no broker is up: start one with `ackline dev up`")
    existing = AdminClient({"bootstrap.servers": up.bootstrap}).list_topics(timeout=30).topics
    for name, partitions in ((topic, PARTITIONS), (f"{topic}.dead", 1)):
        if name not in existing:
            up.create_topic(name, partitions)
    # The number of records is the seed, so each call produces other orders.
    seed = sum(log_ends(up.bootstrap, topic).values())
    counts = order_events.produce(up.bootstrap, topic, order_events.orders(count, seed))
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in counts.by_kind.items() if number)
    return f"produced {counts.records:,} records to {topic} at {up.bootstrap}: {kinds}"


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Returns the high watermark of each partition of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ackline-dev"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
    finally:
        consumer.close()


def _broker_that_is_up() -> Broker | None:
    for folder in (dev_folder(), demo_folder() / "broker"):
        if broker.running(folder):
            return Broker(folder)
    return None
