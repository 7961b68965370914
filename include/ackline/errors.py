"""The one tree of errors. Each says what to do next; what kind it is decides who tries again.

A `ConfigError` is the user's to mend (exit status 2). A `TransientError` is worth another try of the same step: every
step may be run again (exit status 1, Airflow retries it). A `FatalError` will be the same next time, until somebody
acts (exit status 1, Airflow does not retry it).
"""

from pathlib import Path


class AcklineError(Exception):
    """Anything that Ackline itself has to say; carries the place in the log where it has one."""

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class ConfigError(AcklineError):
    """A pipeline file, a setting or an argument that is refused before anything is touched."""

    exit_status = 2

    def __init__(self, message: str, *, file: Path | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.key = key


class TransientError(AcklineError):
    """The world was not ready (a broker away, a leader moving, a time-out); the same step may succeed later."""


class FatalError(AcklineError):
    """Trying again changes nothing: somebody has to look. The message says at what."""


class RangeGone(FatalError):
    """A planned range is no longer in the log, by retention or deletion: its turn is void and is planned again."""


class TopicChanged(FatalError):
    """A topic is not the one that the lane has read so far: deleted, recreated or truncated (S42)."""


class NoProof(FatalError):
    """A turn is to be settled whose outcomes are not stored: nothing proves that its range was handled (S8)."""


class TooManyFailures(FatalError):
    """More of a turn's new records failed than the breaker allows; the turn is void, nothing of it counts (S46)."""


class TooFarBehind(FatalError):
    """A partition is further behind than `max_offset_behind` allows, and the policy is to fail (S45)."""


class RetentionPassed(FatalError):
    """Retention took records that were not settled, and `on_expired` is `fail`."""


class GroupBusy(FatalError):
    """The consumer group has live members, so Kafka accepts no commit from outside (S37)."""


class GroupMoved(FatalError):
    """Kafka holds a commit that is neither ours nor answered: somebody moved the group (S36)."""


class NewerCommit(FatalError):
    """Kafka holds a commit of ours from another ledger, or from a newer turn than this ledger knows."""


class LedgerError(FatalError):
    """The tables contradict themselves or the rules of the ledger; nothing was stored."""
