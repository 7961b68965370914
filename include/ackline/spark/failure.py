"""Turns an error of Spark into an `AcklineError`. Never keeps Spark's text, which may quote a payload."""

import re
from collections.abc import Mapping
from typing import Any

from ackline import errors
from ackline.errors import AcklineError, ConfigError, FatalError, RangeGone, TransientError
from ackline.kafka.clients import damaged_batch_error
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.spark.master import is_local

_DATA_LOSS = ("Some data may have been lost", "OffsetOutOfRangeException", "_START_OFFSET_GREATER_THAN_END_OFFSET")
_TRANSIENT = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "org.apache.kafka.common.errors.LeaderNotAvailableException",
    "org.apache.kafka.common.errors.NotLeaderOrFollowerException",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    # A shuffle was lost between two steps (`REQUIRED_SETTINGS` of the session).
    "has failed the maximum allowable number of times",
    "has been resubmitted for the maximum allowable number of times",
    "cancelled because SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "java.lang.OutOfMemoryError",
)
_LOST_SESSION = ("INVALID_HANDLE.", "NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED")
"""Beginnings of the error conditions of a Spark Connect server that has restarted, and so has lost the session."""
_FULL = "No space left on device"
_SECRET = "spark.authenticate.secret"
_LOGIN = ("LoginException", "SaslAuthenticationException", "SslAuthenticationException")
# The last line of a Python worker's traceback for an AcklineError. These texts hold no payload, so they are kept.
_OWN_ERROR = re.compile(r"^ackline\.errors\.(\w+): (.*)$", re.MULTILINE)
_PLACE = re.compile(r"(?P<topic>\S+)\[(?P<partition>\d+)\]: .*?\boffset (?P<offset>\d+)")
"""The topic-partition with which an error of a task begins, and the first offset that it names."""
_NO_RECORD = re.compile(r"Cannot fetch record for offset (\d+) in (\d+) milliseconds")
_OVERFLOW = re.compile(r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value -?\d+ that overflows")
_DAMAGED = (
    re.compile(r"Record batch for partition (?P<topic>\S+)-(?P<partition>\d+) at offset (?P<offset>\d+) is invalid"),
    re.compile(r"Record for partition (?P<topic>\S+)-(?P<partition>\d+) at offset (?P<offset>\d+) is invalid"),
    re.compile(r"when fetching offset (?P<offset>\d+) for topic-partition (?P<topic>\S+)-(?P<partition>\d+)"),
)
"""Texts of Java's client about a batch whose checksum does not match."""
_CLASSES = re.compile(r"\b((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)|[A-Z]\w*(?:Exception|Error))(?=:|\b)")


def error_of_spark(error: Exception, ranges: Mapping[TopicPartition, OffsetRange] | None = None) -> AcklineError:
    """Returns the error to raise for a Spark job that failed with `error`: the AcklineError of a task where there is
    one, else RangeGone, TransientError or FatalError. `ranges` are those that Spark's source read."""
    text = text_of(error)
    if own := _error_of_task(text):
        return own
    if overflow := _OVERFLOW.search(text):
        topic, partition, offset = overflow.groups()  # only under at most once: else the job has started again
        return FatalError(
            f"{topic}[{partition}]: Spark can't convert the timestamp of the record at offset {offset}, which is too "
            f"far before 1970. At most once starts no turn again: the next run stores what is left of it as `lost`; "
            f"let the producer write milliseconds since 1970",
            tp=(topic, int(partition)), offset=int(offset),
        )  # fmt: skip
    for pattern in _DAMAGED:
        if damaged := pattern.search(text):
            tp = TopicPartition(damaged["topic"], int(damaged["partition"]))
            return damaged_batch_error(tp, int(damaged["offset"]), "its checksum does not match")
    if waited := _NO_RECORD.search(text):
        return _no_record_error(int(waited[1]), int(waited[2]), ranges or {})
    if any(sign in text for sign in _DATA_LOSS):
        return RangeGone("the log no longer holds the planned range: retention or deletion was faster; plan again")
    if _FULL in text:
        return full_disk()
    classes = classes_in(text)
    if any(sign in text for sign in _LOGIN):
        return TransientError(
            f"the Kafka client of Spark could not log in ({classes}), and that of the driver could: check that the "
            f"executors reach the brokers and the token endpoint, and that no login or certificate has just ended; "
            f"then run this again"
        )
    if _server_is_lost(error):
        return TransientError(
            "the Spark Connect server was lost while it ran the job: check that it runs and that its log shows no "
            "error; then run this again"
        )
    if any(sign in text for sign in _TRANSIENT):
        return TransientError(f"the Spark job failed for now ({classes}); the same step may succeed later")
    return FatalError(f"the Spark job failed ({classes}); the log of its executors has the stack trace")


def _error_of_task(text: str) -> AcklineError | None:
    """Returns the AcklineError that a task has raised, with the place that its message names; None if it is another."""
    for name, message in _OWN_ERROR.findall(text)[-1:]:
        kind: Any = getattr(errors, name, FatalError)
        if isinstance(kind, type) and issubclass(kind, AcklineError):
            raised = kind(message.strip())
            if place := _PLACE.match(message):
                raised.topic, raised.partition = place["topic"], int(place["partition"])
                raised.offset = int(place["offset"])
            return raised
    return None


def classes_in(text: str) -> str:
    """Returns the names of the exceptions in a text of Spark, without their modules."""
    return ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in _CLASSES.findall(text)[:40])) or "no reason"


def error_of_start(error: Exception, master: str) -> AcklineError:
    """Returns the error to raise for a Spark that did not start on a master with `error`."""
    text = str(error)
    if _SECRET in text:
        return ConfigError(
            f"the master {master} needs `{_SECRET}` in spark-defaults.conf, with the value that its master and workers "
            f"have: the Kafka password travels in the tasks. To go without, write `spark: {{encryption: none}}` into "
            f"the pipeline file",
            key="spark.encryption",
        )
    if _FULL in text:
        return full_disk()
    if "JAVA_GATEWAY_EXITED" in text:
        return TransientError("Java ended before Spark was there: what Java has printed above says why")
    if is_local(master):
        return TransientError(f"Spark did not start on {master} ({classes_in(text)})")
    return TransientError(
        f"Spark did not start on {master}: check that the master runs, and that it has the same "
        f"`spark.authenticate` settings as the driver"
    )


def full_disk() -> FatalError:
    """Returns the error to raise if Spark can't write its temporary files."""
    return FatalError(
        "the disk of Spark's temporary files is full, on the driver or on an executor: free some space in the folder "
        "that SPARK_LOCAL_DIRS or `spark.local.dir` names, by default /tmp"
    )


def _no_record_error(offset: int, milliseconds: int, ranges: Mapping[TopicPartition, OffsetRange]) -> TransientError:
    """Returns the error of a record that did not come in time. Spark names its offset alone."""
    of = [tp for tp, fresh in sorted(ranges.items()) if fresh.start <= offset < fresh.end]
    named = " or ".join(map(str, of)) if 0 < len(of) < 5 else f"one of {len(ranges)} partitions"
    return TransientError(
        f"{named}: no record came to Spark's Kafka source for "
        f"{milliseconds / 1000:g} s from offset {offset} on. Check that the partition has a leader, and that no quota "
        f"(consumer_byte_rate) makes it wait longer, or raise the limit with `spark: {{conf: {{spark.network.timeout: "
        f"600s}}}}`; then run this again",
        tp=of[0] if len(of) == 1 else None, offset=offset,
    )  # fmt: skip


def _server_is_lost(error: Exception) -> bool:
    """Returns whether no request reaches the server of a client of Spark Connect, or the server has started again and
    so lost the session and its jobs, also if another client has made the session anew."""
    status = getattr(error, "getGrpcStatusCode", lambda: None)()
    condition = getattr(error, "getCondition", lambda: None)() or ""
    return getattr(status, "name", "") == "UNAVAILABLE" or condition.startswith(_LOST_SESSION)


def is_timestamp_overflow(error: Exception) -> bool:
    """Returns whether Spark's Kafka source could not convert a record's timestamp."""
    return _OVERFLOW.search(text_of(error)) is not None


def text_of(error: Exception) -> str:
    """Returns the texts of the error and its causes, for matching only: they may quote a payload."""
    parts = [str(error)]
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(10):
        if cause is None or not hasattr(cause, "toString"):
            break
        parts.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(parts)
