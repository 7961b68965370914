"""Making clients: each kind gets only the properties it takes, logs into Python's logging, and notes its last
error.

Every client here reads or commits by explicit partition; none ever joins a group.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ackline.errors import AcklineError, ConfigError
from ackline.kafka.config import CONSUMER_ONLY, brokers, masked
from ackline.kafka.failures import LastError, error_of, failure
from ackline.properties import PRODUCER_ONLY

log = logging.getLogger("ackline.kafka.client")

SPARSE: Mapping[str, object] = {
    "queued.min.messages": 1,
    "fetch.wait.max.ms": 50,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 1,  # a seek waits for the backoff of the queue it has emptied; with 0 a thread spins
    "fetch.message.max.bytes": 1024,
    # librdkafka doubles a partition's fetch, for good, whenever one held no record (aborted, compacted): up to this.
    "fetch.max.bytes": 1024,
    "message.max.bytes": 1000,  # fetch.max.bytes is raised to this; records that are read may be larger
}
"""One producer batch a fetch."""
DENSE: Mapping[str, object] = {
    "queued.min.messages": 2000,
    "fetch.wait.max.ms": 50,
    "fetch.min.bytes": 1,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 512 * 1024,
    "fetch.max.bytes": 4 * 1024 * 1024,
}
"""Throughput, without running far ahead."""

_QUICK_RECONNECT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}


class _ClientLog:
    """librdkafka's log lines, as ours. It repeats itself at each try to connect; the first of a kind is a warning."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._said: set[str] = set()

    def log(self, level: int, form: str, *args: object) -> None:
        """What confluent-kafka calls for each line."""
        line = masked(form % args, self._config)
        kind = re.sub(r"\d+", "", line)
        if level >= logging.WARNING and kind not in self._said:
            self._said.add(kind)
            log.warning("%s", line)
        else:
            log.debug("%s", line)


def consumer(config: Mapping[str, object], group_id: str, isolation: str, **settings: object) -> Consumer:
    """A consumer that never commits by itself. `settings` win over `config`."""
    kept = {name: value for name, value in config.items() if name not in PRODUCER_ONLY}
    wanted = {**_QUICK_RECONNECT, **kept, "group.id": group_id, "isolation.level": isolation, **settings}
    made: Consumer = _made(Consumer, wanted, config)
    return made


def admin(config: Mapping[str, object], **settings: object) -> AdminClient:
    """An admin client."""
    kept = {name: value for name, value in config.items() if name not in PRODUCER_ONLY | CONSUMER_ONLY}
    made: AdminClient = _made(AdminClient, {**_QUICK_RECONNECT, **kept, **settings}, config)
    return made


def producer(config: Mapping[str, object], **settings: object) -> Producer:
    """A producer."""
    kept = {name: value for name, value in config.items() if name not in PRODUCER_ONLY | CONSUMER_ONLY}
    made: Producer = _made(Producer, {**_QUICK_RECONNECT, **kept, **settings}, config)
    return made


def _made(kind: Callable[..., Any], wanted: dict[str, object], config: Mapping[str, object]) -> Any:
    try:
        return kind(wanted, logger=_ClientLog(config))
    except (KafkaException, TypeError, ValueError) as error:
        held = error_of(error)
        reason = held.str() if held is not None else str(error)
        raise ConfigError(
            f"Kafka's client refuses its configuration for {brokers(config)}: {masked(reason, config)}"
        ) from error


@contextlib.contextmanager
def mapped(doing: str, config: Mapping[str, object], last: LastError | None = None) -> Iterator[None]:
    """Turns what the client raises inside into an AcklineError that says what was being done."""
    try:
        yield
    except KafkaException as raised:
        error = error_of(raised)
        if error is None:
            raise AcklineError(f"{doing}: {masked(str(raised), config)}") from raised
        raise failure(error, doing, config, last=last) from raised
