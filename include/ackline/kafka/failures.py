"""Turns errors of Kafka's client into an `AcklineError`: transient where another try may help, else fatal.

`KafkaError.retriable()` is not enough: it is False for NOT_COORDINATOR, and for each request without an answer.
"""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.kafka.config import brokers, mask_secrets
from ackline.offsets import TopicPartition

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
_UNANSWERED = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"})


def kafka_error(raised: BaseException) -> KafkaError | None:
    """Returns the KafkaError inside an exception of the client; `_TIMED_OUT` for a future that got no answer; or
    None."""
    if isinstance(raised, TimeoutError):
        return KafkaError(KafkaError._TIMED_OUT)
    error = raised.args[0] if isinstance(raised, KafkaException) and raised.args else None
    return error if isinstance(error, KafkaError) else None


def is_transient(error: KafkaError) -> bool:
    """Whether the same request may succeed later."""
    return error.name() in _TRANSIENT or (error.retriable() and error.name() not in NOT_FOUND)


def is_login_failure(error: KafkaError) -> bool:
    """Whether the broker refused the login, or the client refused the broker's certificate."""
    return error.name() in _LOGIN


class LastError:
    """An `error_cb` that keeps a client's newest connection error, because a time-out does not name why no broker
    answered."""

    def __init__(self) -> None:
        self._login: KafkaError | None = None
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if is_login_failure(error):
            self._login = error
        if error.name() != "_ALL_BROKERS_DOWN":
            self._last = error

    def cause(self, error: KafkaError) -> KafkaError:
        """Returns the login failure behind `error`, or `error` itself."""
        return self._login if self._login is not None and error.name() in _UNANSWERED else error

    def detail(self, error: KafkaError) -> str:
        """Returns the newest connection error as an addition to the message of `error`, or an empty text."""
        return f"; {self._last.str()}" if self._last is not None and error.name() in _UNANSWERED else ""


def damaged_batch_error(tp: TopicPartition, offset: int, reason: str) -> FatalError:
    """Returns the error for a batch of records whose checksum does not match; it holds `offset`, or is next to it."""
    return FatalError(
        f"{tp}: the batch of records at offset {offset} is damaged on the broker ({reason}); nothing of this turn was "
        f"stored. Let a replica that is intact lead the partition, then run this again. Without one, delete the "
        f"records up to the end of the batch (kafka-delete-records): the next run records them as `expired`",
        topic=tp.topic, partition=tp.partition, offset=offset,
    )  # fmt: skip


def ackline_error(
    error: KafkaError,
    doing: str,
    config: Mapping[str, object],
    tp: TopicPartition | None = None,
    offset: int | None = None,
    last: LastError | None = None,
) -> AcklineError:
    """Returns the AcklineError to raise for `error`. `doing` begins its message, as in "reading the log bounds"."""
    cause = last.cause(error) if last is not None else error
    detail = last.detail(error) if last is not None and cause is error else ""
    kind: type[AcklineError] = FatalError
    if is_login_failure(cause):
        advice = "check security.protocol, the login and the certificates of the connection"
    elif cause.name().endswith("AUTHORIZATION_FAILED"):
        advice = "ask for the right to do this for the connection's user"
    elif is_transient(cause):
        kind, advice = TransientError, "check that the broker is up and can be reached from here; then run this again"
    elif cause.name() in NOT_FOUND:
        advice = "check the topic's name and its partitions, or create it"
    else:
        advice = "trying again will not help; the broker's log may say more"
    reason = mask_secrets(f"{cause.str()}{detail}", config)
    subject = f"{doing} of {tp}" if tp is not None else doing
    message = f"{subject}: {cause.name()}: {reason} (at {brokers(config)}); {advice}"
    topic, partition = (tp.topic, tp.partition) if tp is not None else (None, None)
    return kind(message, topic=topic, partition=partition, offset=offset)
