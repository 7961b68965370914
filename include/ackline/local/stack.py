"""What stays up on this machine: the broker of `ackline dev`, and the demo that was left running.

Each has a folder below `.ackline`, which says itself what runs in it, so that any later command finds it again.
"""

import shutil
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from ackline.errors import ConfigError
from ackline.local import airflow_stack, broker, order_events
from ackline.local.broker import Broker
from ackline.paths import project_root

PARTITIONS = 4


def dev_folder() -> Path:
    """The folder of the broker of `ackline dev`. It keeps its topics when it is stopped."""
    return project_root() / ".ackline" / "dev"


def demo_folder() -> Path:
    """The folder of a demo that was left running: `broker`, `airflow` and `audit`."""
    return project_root() / ".ackline" / "demo"


def dev_bootstrap() -> str | None:
    """The address of the broker that is up: that of `ackline dev`, or else the demo's; None where neither is."""
    up = _broker_that_is_up()
    return up.bootstrap if up else None


def dev_up(port: int | None = None) -> str:
    """Start the broker of `ackline dev`, unless it runs; its address. It outlives this process.

    Raises ConfigError where it runs already on another port than the one wanted.
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
    """Stop the broker of `ackline dev` and a demo that was left running; whether there was any."""
    stopped = stop_demo()
    return broker.stop_running(dev_folder()) or stopped


def stop_demo() -> bool:
    """Stop a demo that was left running, and remove its folder; whether there was one."""
    stopped = [airflow_stack.stop_running(demo_folder() / "airflow"), broker.stop_running(demo_folder() / "broker")]
    shutil.rmtree(demo_folder(), ignore_errors=True)
    return any(stopped)


def dev_status() -> dict[str, Any]:
    """What is up, by name, with its address; empty where nothing is."""
    found: dict[str, Any] = {}
    if dev := broker.running(dev_folder()):
        found["broker"] = dev.bootstrap
    if demo := broker.running(demo_folder() / "broker"):
        found["demo_broker"] = demo.bootstrap
    if airflow := airflow_stack.running(demo_folder() / "airflow"):
        found["demo_airflow"] = airflow.url
    return found


def dev_produce(topic: str, count: int) -> str:
    """Produce orders to the broker that is up, making the topic and its dead-letter topic; says what was produced.

    Raises ConfigError where no broker is up.
    """
    up = _broker_that_is_up()
    if up is None:
        raise ConfigError("no broker is up: start one with `ackline dev up`")
    there = AdminClient({"bootstrap.servers": up.bootstrap}).list_topics(timeout=30).topics
    for name, partitions in ((topic, PARTITIONS), (f"{topic}.dead", 1)):
        if name not in there:
            up.create_topic(name, partitions)
    # Other orders each time: the seed is how many records there are.
    seed = sum(log_ends(up.bootstrap, topic).values())
    # Quiet: that the broker's coordinator is still loading is no news, the client tries again.
    client = {"bootstrap.servers": up.bootstrap, "log_level": 3}
    counts = order_events.produce(client, topic, order_events.orders(count, seed))
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in counts.by_kind.items() if number)
    return f"produced {counts.records:,} records to {topic} at {up.bootstrap}: {kinds}"


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The end of each partition of a topic, as the broker says now; of topics without transactions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ackline-looks"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return {one: consumer.get_watermark_offsets(TopicPartition(topic, one), timeout=30)[1] for one in partitions}
    finally:
        consumer.close()


def _broker_that_is_up() -> Broker | None:
    for folder in (dev_folder(), demo_folder() / "broker"):
        if broker.running(folder):
            return Broker(folder)
    return None
