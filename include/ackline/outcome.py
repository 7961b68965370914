"""Outcomes: what became of one attempt at a record, or of the record itself."""

from enum import StrEnum


class Outcome(StrEnum):
    """The words of the column `outcome` of the audit table."""

    ACKED = "acked"
    FAILED = "failed"
    SKIPPED = "skipped"
    DROPPED = "dropped"
    IN_FLIGHT = "in_flight"
    DEAD = "dead"
    EXPIRED = "expired"
    COMPACTED = "compacted"
    LOST = "lost"

    @property
    def terminal(self) -> bool:
        """Whether the record needs nothing more; every record gets exactly one such outcome a lane and epoch."""
        return self not in (Outcome.FAILED, Outcome.IN_FLIGHT)


class ErrorClass(StrEnum):
    """Values of `error_class` that Ackline itself gives a meaning to; a handler's exceptions keep their own names."""

    SKIP = "Skip"
    DEAD = "Dead"
    TOMBSTONE = "Tombstone"
    INVALID_OUTCOME = "InvalidOutcome"
    TIMEOUT = "Timeout"
    WORKER_LOST = "WorkerLost"
    UNDECODABLE = "Undecodable"
    UNMATCHED = "Unmatched"


MESSAGE_LIMIT = 200
"""Characters of `error_message` kept, at most."""
