"""Starts, stops and shows what stays up on this machine, and reads and prints its records as lines of JSON.

What stays up is the broker of `ackline dev`, its Spark Connect server, and a demo that was kept. Each has a folder
below `.ackline`, and saves there what runs, so that a later command finds it.

`ackline dev produce --file` reads a line of JSON for each record, and `ackline dev consume` prints such lines. A line
is an object with `value` and, if there are any, `key`, `headers` (a list of pairs, or an object) and `partition`. Text
stands for itself, null for no value or no key, any other JSON for its text. Bytes that are not UTF-8 are
`{"base64": "…"}`. A line without the field `value` is the value of a record as it is.
"""

import base64
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from ackline.errors import ConfigError, TransientError, counted
from ackline.local import airflow_servers, broker, events, spark_server
from ackline.local.broker import Broker
from ackline.local.connection import SAVED, demo_folder, dev_folder
from ackline.local.events import RecordLine
from ackline.spark.master import dev_spark_folder

Headers = tuple[tuple[str, bytes | None], ...]


def read_records(path: Path) -> Iterator[RecordLine]:
    """Yields the record of each line in a file, but blank ones. Raises ConfigError with the line that is no record."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from parse_records(file, path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: can't be read: {reason}", file=path, key="--file") from None


def parse_records(lines: Iterable[str], path: Path) -> Iterator[RecordLine]:
    """Yields the record of each line that is not blank. Raises ConfigError with the line that is no record."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            yield _record(json.loads(text), text)
        except (ValueError, RecursionError) as error:
            reason = "not JSON" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)
            raise ConfigError(f"{path}:{number}: {reason}; write one JSON value on each line", file=path) from None


def _record(content: Any, text: str) -> RecordLine:
    if not isinstance(content, dict) or "value" not in content:
        return RecordLine(text.encode())
    partition = content.get("partition")
    if partition is not None and (type(partition) is not int or partition < 0):
        raise ValueError("partition is not a number")
    return RecordLine(_bytes(content["value"]), _bytes(content.get("key")), _headers(content.get("headers")), partition)


def _headers(content: Any) -> Headers:
    pairs = list(content.items()) if isinstance(content, dict) else content or []
    if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise ValueError("headers are not pairs")
    if not all(isinstance(name, str) for name, _ in pairs):
        raise ValueError("the name of a header is not text")
    return tuple((name, _bytes(value)) for name, value in pairs)


def _bytes(content: Any) -> bytes | None:
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict) and content.keys() == {"base64"} and isinstance(content["base64"], str):
        return base64.b64decode(content["base64"], validate=True)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def record_json(
    partition: int, offset: int, timestamp: str | None, key: bytes | None, value: bytes | None, headers: Headers
) -> Mapping[str, Any]:
    """Returns a record of the log as a line for a program; `read_records` reads it again."""
    shown = {"partition": partition, "offset": offset, "timestamp": timestamp, "key": _text(key), "value": _text(value)}
    return {**shown, "headers": [[name, _text(header)] for name, header in headers]}


def _text(content: bytes | None) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


PARTITIONS = 4
CONSUME_SECONDS = 30.0


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
    """Stops broker and Spark of `ackline dev` and a demo that was kept; returns whether any of them was running."""
    stopped = [stop_demo(), spark_server.stop_running(dev_spark_folder()), broker.stop_running(dev_folder())]
    return any(stopped)


def stop_demo() -> bool:
    """Stops a demo that was kept and removes its folder; returns whether it was running."""
    stopped = [
        airflow_servers.stop_running(demo_folder() / "airflow"),
        broker.stop_running(demo_folder() / "broker"),
    ]
    shutil.rmtree(demo_folder(), ignore_errors=True)
    return any(stopped)


def dev_status() -> dict[str, Any]:
    """Returns the address of each server that runs, by name: `broker`, `spark`, `demo_broker`, `demo_airflow`."""
    addresses: dict[str, Any] = {}
    if dev := broker.running(dev_folder()):
        addresses["broker"] = dev.bootstrap
    if spark := spark_server.running(dev_spark_folder()):
        addresses["spark"] = spark.address
    if demo := broker.running(demo_folder() / "broker"):
        addresses["demo_broker"] = demo.bootstrap
    if airflow := airflow_servers.running(demo_folder() / "airflow"):
        addresses["demo_airflow"] = airflow.url
    return addresses


def dev_produce(topic: str, count: int) -> str:
    """Produces orders to the broker that is up, and returns a sentence about them.

    Creates the topic and its dead-letter topic if they do not exist. Raises ConfigError if no broker is up.
    """
    up = _broker_with_topics(topic)
    # The number of records is the seed, so each call produces other orders.
    seed = sum(log_ends(up.bootstrap, topic).values())
    counts = events.produce_orders(up.bootstrap, topic, events.orders(count, seed))
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in counts.by_kind.items() if number)
    return f"produced {counted(counts.records, 'record')} to {topic} at {up.bootstrap}: {kinds}"


def dev_produce_file(topic: str, path: Path) -> str:
    """Produces the records of a file to the broker that is up, and returns a sentence about them.

    Creates topic and dead-letter topic where they are missing. The file is read first: if a line is no record, nothing
    is produced. Raises ConfigError for such a file and if no broker is up, FatalError if records are refused.
    """
    records = list(read_records(path))
    up = _broker_with_topics(topic)
    produced = events.produce(up.bootstrap, topic, records)
    return f"produced {counted(produced, 'record')} to {topic} at {up.bootstrap}"


def dev_consume(topic: str, limit: int | None = None) -> Iterator[Mapping[str, Any]]:
    """Yields the records of a topic on the broker that is up, from the start of the log to its present end, at most
    `limit`. Joins no group and commits nothing. Raises ConfigError if no broker is up or the topic does not exist."""
    up = _broker_that_is_up()
    consumer = Consumer({"bootstrap.servers": up.bootstrap, "group.id": "ackline-dev", "enable.partition.eof": True,
                         "auto.offset.reset": "earliest", "enable.auto.commit": False})  # fmt: skip
    try:
        found = consumer.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise ConfigError(
                f"the topic {topic} does not exist at {up.bootstrap}; `ackline dev produce {topic}` creates it",
                key="TOPIC",
            )
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions])
        reading, count = set(found.partitions), 0
        while reading and (limit is None or count < limit):
            message = consumer.poll(CONSUME_SECONDS)
            if message is None:
                raise TransientError(f"{topic} at {up.bootstrap}: no record came for {CONSUME_SECONDS:g} s")
            partition, error = int(message.partition() or 0), message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                reading.discard(partition)
            elif error is not None:
                raise TransientError(f"{topic}[{partition}] at {up.bootstrap}: {error.str()}")
            elif partition in reading:  # a record after the end was written after the command began
                count += 1
                yield _line_of(message)
    finally:
        consumer.close()


def _line_of(message: Message) -> Mapping[str, Any]:
    kind, milliseconds = message.timestamp()
    time = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat() if kind else None
    given: Any = message.headers() or ()
    headers = tuple((str(name), value) for name, value in given)
    return record_json(
        int(message.partition() or 0), int(message.offset() or 0), time, message.key(), message.value(), headers
    )


def dev_wipe() -> bool:
    """Stops the broker of `ackline dev` and removes its folder, with all topics; returns whether there was one.

    It removes nothing else: the tables of pipelines, and a broker that dev has not started, stay. Raises ConfigError if
    the folder holds no broker of dev.
    """
    folder = dev_folder()
    if not folder.exists():
        return False
    if folder.is_symlink() or (any(folder.iterdir()) and not (folder / SAVED).is_file()):
        raise ConfigError(f"{folder} was not made by `ackline dev up`, so it is left as it is", file=folder)
    broker.stop_running(folder)
    shutil.rmtree(folder)
    return True


def _broker_with_topics(topic: str) -> Broker:
    """Returns the broker that is up, after it has the topic and its dead-letter topic."""
    up = _broker_that_is_up()
    existing = AdminClient({"bootstrap.servers": up.bootstrap}).list_topics(timeout=30).topics
    for name, partitions in ((topic, PARTITIONS), (f"{topic}.dead", 1)):
        if name not in existing:
            up.create_topic(name, partitions)
    return up


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Returns the high watermark of each partition of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ackline-dev"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
    finally:
        consumer.close()


def _broker_that_is_up() -> Broker:
    """Returns the broker of `ackline dev`, else that of a demo. Raises ConfigError if neither runs."""
    for folder in (dev_folder(), demo_folder() / "broker"):
        if broker.running(folder):
            return Broker(folder)
    raise ConfigError("no broker is up: start one with `ackline dev up`")
