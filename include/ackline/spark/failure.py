"""What Spark reports, as an `AcklineError`; never its text, which may quote a payload."""

import re
from typing import Any

from ackline import errors
from ackline.errors import AcklineError, FatalError, RangeGone, TransientError

_LOST = ("Some data may have been lost", "OffsetOutOfRangeException", "_START_OFFSET_GREATER_THAN_END_OFFSET")
_TRANSIENT = (
    "Cannot fetch record for offset",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "org.apache.kafka.common.errors.LeaderNotAvailableException",
    "org.apache.kafka.common.errors.NotLeaderOrFollowerException",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    "cancelled because SparkContext was shut down",
    "java.lang.OutOfMemoryError",
)
# The last line of a worker's traceback, for errors of ours; their texts hold no payload.
_OURS = re.compile(r"^ackline\.errors\.(\w+): (.*)$", re.MULTILINE)
_PLACE = re.compile(r"\b([A-Za-z0-9._-]+)-(\d+)\b.*?offset:? (\d+)|offset:? (\d+)[^\n]*?\b([A-Za-z0-9._-]+)-(\d+)\b")
_CLASSES = re.compile(r"\b((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)|[A-Z]\w*(?:Exception|Error))(?=:|\b)")


def of_spark(error: Exception) -> AcklineError:
    """The error to raise for a Spark job that failed with `error`."""
    text = _text(error)
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind: Any = getattr(errors, name, FatalError)
        if isinstance(kind, type) and issubclass(kind, AcklineError):
            return kind(message.strip())
    if any(word in text for word in _LOST):
        return RangeGone("the log no longer holds the planned range: retention or deletion was faster; plan again")
    classes = ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in _CLASSES.findall(text)[:40])) or "no reason"
    if any(word in text for word in _TRANSIENT):
        return TransientError(f"Spark did not get through ({classes}); the same step may succeed later")
    return FatalError(f"the Spark job failed ({classes}); the log of its executors has the stack trace")


def _text(error: Exception) -> str:
    """All that the error and its causes say, for matching only."""
    parts = [str(error)]
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(10):
        if cause is None or not hasattr(cause, "toString"):
            break
        parts.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(parts)
