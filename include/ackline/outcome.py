"""Outcomes: the result of one attempt at a record, or of the record itself. Pure."""

from enum import StrEnum


class Outcome(StrEnum):
    """The values of the column `outcome` of the table `outcomes`."""

    ACKED = "acked"
    """The handler returned."""
    FAILED = "failed"
    """The attempt failed; the record may get another one."""
    SKIPPED = "skipped"
    """The handler skipped the record, it is a tombstone or unwanted, or an operator or a setting skipped it."""
    DROPPED = "dropped"
    """The attempt failed under a guarantee that never retries."""
    IN_FLIGHT = "in_flight"
    """The handler has handed the record on; the answer is not there yet."""
    DEAD = "dead"
    """No attempt is left, or the handler declared the record dead; its dead letter, if any, was acknowledged."""
    EXPIRED = "expired"
    """Retention took the record before it was read or retried."""
    COMPACTED = "compacted"
    """Compaction took the record before its retry."""
    LOST = "lost"
    """At most once: the record was handed out, and no outcome was ever stored."""

    @property
    def terminal(self) -> bool:
        """Whether the record needs nothing more. Each record gets exactly one terminal outcome in a lane and epoch."""
        return self not in (Outcome.FAILED, Outcome.IN_FLIGHT)


class ErrorClass(StrEnum):
    """The values of `error_class` that Ackline itself writes; exceptions of a handler keep their own class names."""

    SKIP = "Skip"
    DEAD = "Dead"
    TOMBSTONE = "Tombstone"
    INVALID_OUTCOME = "InvalidOutcome"
    TIMEOUT = "Timeout"
    WORKER_LOST = "WorkerLost"
    UNDECODABLE = "Undecodable"
    UNMATCHED = "Unmatched"
    UNACKED = "Unacked"
    UNKNOWN_STREAM = "UnknownStream"
    BAD_OUTPUT = "BadOutput"
    FAIL = "Fail"
    ACK_TIMEOUT = "AckTimeout"
    ACK_FAILED = "AckFailed"


class AnswerKind(StrEnum):
    """The values of the column `answer`: what has ended or renewed an attempt in flight, beside its own row."""

    ACK = "ack"
    FAIL = "fail"
    RENEW = "renew"
    TIMEOUT = "timeout"
    """No answer: the deadline has passed."""


MESSAGE_LIMIT = 200
"""The most characters of an `error_message` that are stored."""
