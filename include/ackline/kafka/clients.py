"""Creates Kafka clients, and turns their errors into an `AcklineError`: transient if another try may help, else fatal.

Each kind of client gets only the properties that it takes, and logs into Python's logging. Every client reads or
commits by explicit partition; none ever joins a group. `KafkaError.retriable()` does not decide what is transient: it
is False for NOT_COORDINATOR, and for each request without an answer.
"""

import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from ackline.errors import SETTINGS_PAGE, AcklineError, ConfigError, FatalError, MissingRights, TransientError
from ackline.kafka.config import CONSUMER_ONLY, brokers, login_text, mask_secrets
from ackline.kafka.login_failures import login_failure, refuses_certificate
from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.properties import PRODUCER_ONLY

_TRANSIENT = frozenset({
    "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD",
    "_WAIT_CACHE", "_IN_PROGRESS", "_PREV_IN_PROGRESS", "_RETRY", "_DESTROY_BROKER", "_PURGE_QUEUE",
    "_PURGE_INFLIGHT", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS",
    "BROKER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "PREFERRED_LEADER_NOT_AVAILABLE",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
    "KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "NOT_CONTROLLER",
    "REBALANCE_IN_PROGRESS", "THROTTLING_QUOTA_EXCEEDED", "UNSTABLE_OFFSET_COMMIT", "STALE_BROKER_EPOCH",
    "STALE_CTRL_EPOCH", "REBOOTSTRAP_REQUIRED", "_ISR_INSUFF", "_QUEUE_FULL",
})  # fmt: skip
COORDINATOR_NOT_READY = frozenset({
    "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD", "_TIMED_OUT",
    "_TRANSPORT", "UNSTABLE_OFFSET_COMMIT", "REQUEST_TIMED_OUT", "_ALL_BROKERS_DOWN", "NETWORK_EXCEPTION",
})  # fmt: skip
"""Errors of requests to a group coordinator that is starting, moving or briefly unreachable."""
NOT_FOUND = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT", "UNKNOWN_TOPIC_ID"})
"""Errors of requests about a topic or partition that does not exist."""
DAMAGED = frozenset({"_BAD_MSG", "_BAD_COMPRESSION", "INVALID_MSG"})
"""Errors of a batch whose checksum does not match, or that can't be decoded."""
_LOGIN = frozenset({"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM",
                    "ILLEGAL_SASL_STATE"})  # fmt: skip
_UNANSWERED = frozenset({"_TIMED_OUT", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_FATAL"})
"""Errors that name no cause. After a fatal error a producer gives each message the error `_FATAL`."""


def kafka_error(raised: BaseException) -> KafkaError | None:
    """Returns the KafkaError inside an exception of the client, `_TIMED_OUT` for a future without an answer, or
    None."""
    if isinstance(raised, TimeoutError):
        return KafkaError(KafkaError._TIMED_OUT)
    error = raised.args[0] if isinstance(raised, KafkaException) and raised.args else None
    return error if isinstance(error, KafkaError) else None


def is_transient(error: KafkaError) -> bool:
    """Returns whether the same request may succeed later."""
    return error.name() in _TRANSIENT or (error.retriable() and error.name() not in NOT_FOUND)


def is_login_failure(error: KafkaError) -> bool:
    """Returns whether a login failed: the broker refused it or the client's certificate, the client refused the
    broker's certificate, or there is no token."""
    return error.name() in _LOGIN or refuses_certificate(error.str())


def is_denial(name: str) -> bool:
    """Returns whether an error of this name means that the login lacks a right."""
    return name.endswith("AUTHORIZATION_FAILED")


def operations_of(described: Any) -> frozenset[str] | None:
    """Returns what the login may do with a described topic or group, such as `READ`; None if the broker does not return
    it: one without an authorizer allows everything, and an old one has no such answer."""
    found = getattr(described, "authorized_operations", None)
    return frozenset(operation.name for operation in found) if found else None


_CLIENT = re.compile(r"^\S+/\S+: | \(after \d+ms in state \w+.*\)$")
"""What librdkafka puts around the reason of a connection error: its name for the broker, and its own state."""


class LastError:
    """An `error_cb` that keeps a client's newest connection error, because a time-out does not name why no broker
    answered."""

    def __init__(self) -> None:
        self._refusal: KafkaError | None = None
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if is_login_failure(error) or is_denial(error.name()):
            self._refusal = error
        if error.name() != "_ALL_BROKERS_DOWN":
            self._last = error

    @property
    def denied(self) -> bool:
        """Whether the broker has refused a request because the login lacks a right."""
        return self._refusal is not None and is_denial(self._refusal.name())

    @property
    def connection(self) -> str:
        """Why the client's newest try to connect has failed, without the client's own name for it; empty if none
        has."""
        text = self._last.str() if self._last is not None else ""
        return _CLIENT.sub("", text)

    def cause(self, error: KafkaError) -> KafkaError:
        """Returns the refusal of a login, or of a right, behind `error`, or `error` itself."""
        return self._refusal if self._refusal is not None and error.name() in _UNANSWERED else error

    def detail(self, error: KafkaError) -> str:
        """Returns the newest connection error as an addition to the message of `error`, or an empty text."""
        return f"; {self._last.str()}" if self._last is not None and error.name() in _UNANSWERED else ""


def damaged_batch_error(tp: TopicPartition, offset: int, reason: str) -> FatalError:
    """Returns the error for a batch of records whose checksum does not match; it holds `offset`, or is next to it."""
    return FatalError(
        f"{tp}: the batch of records at offset {offset} is damaged on the broker ({reason}); nothing of this turn was "
        f"stored. Let a replica that is intact lead the partition, then run this again. Without one, delete the "
        f"records up to the end of the batch (kafka-delete-records): the next run records them as `expired`",
        tp=tp, offset=offset,
    )  # fmt: skip


def ackline_error(
    error: KafkaError,
    doing: str,
    config: Mapping[str, object],
    tp: TopicPartition | None = None,
    offset: int | None = None,
    last: LastError | None = None,
    right: str | None = None,
) -> AcklineError:
    """Returns the AcklineError to raise for `error`. `doing` begins its message, as in "reading the log bounds".

    `right` names what is missing where the broker denies the request, as in "Write on topic orders.dead"; by default
    Read on the topic of `tp`.
    """
    cause = last.cause(error) if last is not None else error
    detail = last.detail(error) if last is not None and cause is error else ""
    kind: type[AcklineError] = FatalError
    reason = f"{cause.str()}{detail}"
    if is_login_failure(cause):
        advice = "check security.protocol, the login and the certificates of the connection"
        if failure := login_failure(reason, config):
            reason, advice, transient = failure
            kind = TransientError if transient else FatalError
    elif is_denial(cause.name()):
        right = right or (f"Read on topic {tp.topic}" if tp is not None else "a right")
        kind, advice = MissingRights, f"{login_text(config)} lacks {right}: grant it; {SETTINGS_PAGE} lists the rights"
    elif is_transient(cause):
        kind, advice = TransientError, "check that the broker is up and can be reached from here; then run this again"
    elif cause.name() in NOT_FOUND:
        advice = "check the topic's name and its partitions, or create it"
    else:
        advice = "trying again will not help; the broker's log may say more"
    subject = f"{doing} of {tp}" if tp is not None else doing
    message = f"{subject}: {cause.name()}: {mask_secrets(reason, config)} (at {brokers(config)}); {advice}"
    return kind(message, tp=tp, offset=offset)


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


class Closing(ABC):
    """Has connections, which `close` closes, as the end of a `with` block does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the connections. May be called repeatedly."""


_NO_GROUP = "ackline"
"""The group of a consumer without a pipeline."""
_QUICK_RECONNECT = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000}


class _ClientLog:
    """Passes librdkafka's log lines on to Python's logging.

    librdkafka repeats a line at each try to connect. The first line of a kind is a warning, the others are debug lines.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._warned: set[str] = set()

    def log(self, level: int, form: str, *args: object) -> None:
        """Logs one line of the client, without secrets. confluent-kafka calls this for each line."""
        line = mask_secrets(form % args, self._config)
        kind = re.sub(r"\d+", "", line)
        if level >= logging.WARNING and kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", line)
        else:
            log.debug("%s", line)


def consumer(config: Mapping[str, object], isolation: str, **settings: object) -> Consumer:
    """Returns a consumer that never commits by itself. `settings` override `config`.

    Its group is `group.id` of `config`, the pipeline's own, which it neither joins nor commits to. The client requests
    the coordinator of its group all the same, and the broker would log a request for another group as denied.

    It verifies the checksum of each batch, unless `config` has `check.crcs: false`: librdkafka does not by default.
    """
    properties = {name: value for name, value in config.items() if name not in PRODUCER_ONLY}
    defaults = {**_QUICK_RECONNECT, "check.crcs": True, "group.id": _NO_GROUP}
    explicit = {"isolation.level": isolation, **settings}
    client: Consumer = _create(Consumer, {**defaults, **properties, **explicit}, config)
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
    """Turns each error of Kafka's client in the block into an AcklineError. `doing` begins its message, as in "listing
    the topics"."""
    try:
        yield
    except KafkaException as raised:
        error = kafka_error(raised)
        if error is None:
            raise AcklineError(f"{doing}: {mask_secrets(str(raised), config)}") from raised
        raise ackline_error(error, doing, config, last=last) from raised
