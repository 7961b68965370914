"""What Kafka's client reports, as an `AcklineError`: transient where trying again may help, fatal where it
won't.

`KafkaError.retriable()` is not enough: it says False for NOT_COORDINATOR, and for everything the broker never
answered.
"""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException

from ackline.errors import AcklineError, FatalError, TransientError
from ackline.kafka.config import brokers, masked
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
COORDINATOR = frozenset({
    "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD", "_TIMED_OUT",
    "_TRANSPORT", "UNSTABLE_OFFSET_COMMIT", "REQUEST_TIMED_OUT", "_ALL_BROKERS_DOWN", "NETWORK_EXCEPTION",
})  # fmt: skip
"""What a group coordinator that is starting, moving or briefly away answers."""
MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT", "UNKNOWN_TOPIC_ID"})
"""What is said of a topic or partition that is not there."""
_LOGIN = frozenset({"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM",
                    "ILLEGAL_SASL_STATE"})  # fmt: skip
_UNANSWERED = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"})


def error_of(raised: BaseException) -> KafkaError | None:
    """The KafkaError inside an exception of the client, if there is one."""
    held = raised.args[0] if isinstance(raised, KafkaException) and raised.args else None
    return held if isinstance(held, KafkaError) else None


def transient(error: KafkaError) -> bool:
    """Whether the same request may be answered later."""
    return error.name() in _TRANSIENT or (error.retriable() and error.name() not in MISSING)


def refuses_login(error: KafkaError) -> bool:
    """Whether the broker refused who we are, or we refused the broker's certificate."""
    return error.name() in _LOGIN


class LastError:
    """What a client last said about its connections (its error_cb); a time-out does not say why nobody answered."""

    def __init__(self) -> None:
        self._login: KafkaError | None = None
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if refuses_login(error):
            self._login = error
        if error.name() != "_ALL_BROKERS_DOWN":
            self._last = error

    def cause(self, error: KafkaError) -> KafkaError:
        """`error`, or the refused login behind it."""
        return self._login if self._login is not None and error.name() in _UNANSWERED else error

    def detail(self, error: KafkaError) -> str:
        """What else was said, for the message; empty where it is nothing new."""
        told = self._last is not None and error.name() in _UNANSWERED
        return f"; {self._last.str()}" if told and self._last is not None else ""


def failure(
    error: KafkaError,
    doing: str,
    config: Mapping[str, object],
    tp: TopicPartition | None = None,
    offset: int | None = None,
    last: LastError | None = None,
) -> AcklineError:
    """The error to raise for `error`, met while `doing` something ("reading the log bounds")."""
    cause = last.cause(error) if last is not None else error
    detail = last.detail(error) if last is not None and cause is error else ""
    kind: type[AcklineError] = FatalError
    if refuses_login(cause):
        advice = "check security.protocol, the login and the certificates of the connection"
    elif cause.name().endswith("AUTHORIZATION_FAILED"):
        advice = "ask for the right to do this for the connection's user"
    elif transient(cause):
        kind, advice = TransientError, "check that the broker is up and can be reached from here; then run this again"
    elif cause.name() in MISSING:
        advice = "check the topic's name and its partitions, or create it"
    else:
        advice = "trying again will not help; the broker's log may say more"
    place = f" of {tp}" if tp is not None else ""
    said = masked(f"{cause.str()}{detail}", config)
    message = f"{doing}{place}: {cause.name()}: {said} (at {brokers(config)}); {advice}"
    topic, partition = (tp.topic, tp.partition) if tp is not None else (None, None)
    return kind(message, topic=topic, partition=partition, offset=offset)
