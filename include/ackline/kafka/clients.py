"""Creates Kafka clients. Each kind of client gets only the properties that it takes, and logs into Python's logging.

Every client reads or commits by explicit partition; none ever joins a group.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ackline.errors import AcklineError, ConfigError
from ackline.kafka.config import CONSUMER_ONLY, brokers, mask_secrets
from ackline.kafka.failures import LastError, ackline_error, kafka_error
from ackline.properties import PRODUCER_ONLY

log = logging.getLogger("ackline.kafka.client")

SPARSE_FETCH: Mapping[str, object] = {
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 50,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 1,  # a seek waits so long, as its queue is empty then; at 0, librdkafka spins
    "fetch.message.max.bytes": 1024,
    # Limits the fetch size. librdkafka doubles that of a partition permanently after each fetch without a record
    # (aborted, compacted).
    "fetch.max.bytes": 1024,
    "message.max.bytes": 1000,  # librdkafka raises fetch.max.bytes to this; larger records are read all the same
}
"""Fetch settings for offsets far apart: one producer batch a fetch."""
DENSE_FETCH: Mapping[str, object] = {
    "queued.min.messages": 2000,
    "fetch.wait.max.ms": 50,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 512 * 1024,
    "fetch.max.bytes": 4 * 1024 * 1024,
}
"""Fetch settings for offsets close together: throughput, without running far ahead of the reader."""

_QUICK_RECONNECT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}


class _ClientLog:
    """Passes librdkafka's log lines on to Python's logging.

    librdkafka repeats a line at each try to connect. The first line of a kind is a warning, the others are debug lines.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._warned: set[str] = set()

    def log(self, level: int, form: str, *args: object) -> None:
        """confluent-kafka calls this for each line."""
        line = mask_secrets(form % args, self._config)
        kind = re.sub(r"\d+", "", line)
        if level >= logging.WARNING and kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", line)
        else:
            log.debug("%s", line)


def consumer(config: Mapping[str, object], group_id: str, isolation: str, **settings: object) -> Consumer:
    """Returns a consumer that never commits by itself. `settings` override `config`.

    It verifies the checksum of each batch, unless `config` has `check.crcs: false`: librdkafka does not by default.
    """
    properties = {name: value for name, value in config.items() if name not in PRODUCER_ONLY}
    explicit = {"group.id": group_id, "isolation.level": isolation, **settings}
    client: Consumer = _create(Consumer, {**_QUICK_RECONNECT, "check.crcs": True, **properties, **explicit}, config)
    return client


def admin(config: Mapping[str, object], **settings: object) -> AdminClient:
    """Returns an admin client. `settings` override `config`."""
    client: AdminClient = _create(AdminClient, {**_QUICK_RECONNECT, **_shared_properties(config), **settings}, config)
    return client


def producer(config: Mapping[str, object], **settings: object) -> Producer:
    """Returns a producer. `settings` override `config`."""
    client: Producer = _create(Producer, {**_QUICK_RECONNECT, **_shared_properties(config), **settings}, config)
    return client


def _shared_properties(config: Mapping[str, object]) -> dict[str, object]:
    """The properties that every kind of client takes: neither a producer's alone, nor a consumer's alone."""
    return {name: value for name, value in config.items() if name not in PRODUCER_ONLY | CONSUMER_ONLY}


def _create(kind: Callable[..., Any], properties: dict[str, object], config: Mapping[str, object]) -> Any:
    try:
        return kind(properties, logger=_ClientLog(config))
    except (KafkaException, TypeError, ValueError) as raised:
        error = kafka_error(raised)
        reason = mask_secrets(error.str() if error is not None else str(raised), config)
        raise ConfigError(f"Kafka's client refuses its configuration for {brokers(config)}: {reason}") from raised


@contextlib.contextmanager
def as_ackline_errors(doing: str, config: Mapping[str, object], last: LastError | None = None) -> Iterator[None]:
    """Raises an AcklineError for each error that Kafka's client raises inside. `doing` begins its message, as in
    "listing the topics"."""
    try:
        yield
    except KafkaException as raised:
        error = kafka_error(raised)
        if error is None:
            raise AcklineError(f"{doing}: {mask_secrets(str(raised), config)}") from raised
        raise ackline_error(error, doing, config, last=last) from raised
