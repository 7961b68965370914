"""The one tree of errors. The class decides who tries again; the message names the cause and what to do.

A `ConfigError` needs a change of the user's settings (exit status 2). After a `TransientError` the same step may
succeed, and every step may be run again (exit status 1; Airflow retries it). A `FatalError` comes again until an
operator acts (exit status 1; Airflow does not retry it).
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

_COMMAND = re.compile(r"`(ackline [^`]+)`")
SETTINGS_PAGE = "https://github.com/ackline/ackline/blob/main/docs/settings.md"
"""The page to which errors lead. A package has no documents beside it."""


class AcklineError(Exception):
    """The base of all errors of Ackline. Carries topic, partition and offset if it has to do with one.

    `tp` is the topic-partition.
    """

    exit_status = 1

    def __init__(self, message: str, *, tp: tuple[str, int] | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.topic = tp[0] if tp else None
        self.partition = tp[1] if tp else None
        self.offset = offset

    @property
    def kind(self) -> str:
        """The name of the error's class, as messages and JSON show it; that of its public base for a private class."""
        return next(found.__name__ for found in type(self).__mro__ if not found.__name__.startswith("_"))

    def add_advice(self, sentence: str) -> None:
        """Add a sentence to the message that names what to do next."""
        self.args = (f"{str(self).rstrip('.')}. {sentence}",)


class ConfigError(AcklineError):
    """A pipeline file, a setting or an argument is refused before anything is written. The user changes it.

    `file` and `key` name the place, if the setting is in a file.
    """

    exit_status = 2

    def __init__(self, message: str, *, file: Path | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.key = key


class TransientError(AcklineError):
    """A broker is away, a leader is moving or a call timed out. Retryable: the same step may succeed later."""


class FatalError(AcklineError):
    """Not retryable; needs an operator. The message names the cause."""


class RangeGone(FatalError):
    """Retention or a deletion has taken a planned range from the log. The turn is closed as void; the next run plans
    again."""


class TopicChanged(FatalError):
    """A topic was deleted, recreated or truncated since the lane read it. The operator begins a new epoch with
    `ackline reset` (S42)."""


class TurnVoided(FatalError):
    """An operator has closed the turn of this run with `ackline void`. The next run plans its offsets again, or goes on
    after it if the turn was lost."""


class NoProof(FatalError):
    """settle found no stored outcomes of the turn, so nothing proves that its range was handled. The operator runs
    replay again (S8)."""


class TooManyFailures(FatalError):
    """More of a turn's fresh records failed than `breaker` allows. The turn is void and nothing of it counts; the
    operator mends the handler and runs again (S46)."""


class TooFarBehind(FatalError):
    """A partition is further behind than `max_offset_behind` allows, and its policy is `fail`. The operator raises the
    limit or skips (S45)."""


class RetentionPassed(FatalError):
    """Retention has taken records that were not settled, and `on_expired` is `fail`. The operator skips them, or sets
    `on_expired: record`."""


class CopyGone(FatalError):
    """A pending record is gone from its topic, and so is the copy that `rescue` has made of it. The operator brings the
    rescue topic back, or skips the record (S88)."""


class MissingRights(FatalError):
    """The connection's login lacks a right on a topic or on the group. The operator grants it."""


class GroupBusy(FatalError):
    """The consumer group has live members, so Kafka accepts no commit from outside. The operator stops them (S37).

    `members` names them.
    """

    def __init__(self, message: str, members: str = "") -> None:
        super().__init__(message)
        self.members = members


class GroupTaken(GroupBusy):
    """The id of the consumer group belongs to a group of another type, such as a share group. The operator gives the
    pipeline another `group_id` (S37)."""


class OffsetsPending(TransientError):
    """A transaction that has not ended holds offsets of the consumer group, so what the group has committed is not
    known. It passes by itself, unless the transaction hangs: then the operator ends it with Kafka's tools."""


class HandedOut(TransientError):
    """Another process works on the turn, or has begun it and may still report. It passes when that process ends or
    `lost_after` is over."""


class GroupMoved(FatalError):
    """Another client has moved the consumer group. The operator sets `on_external_reset` to `follow` or `restore`
    (S36)."""


class NewerCommit(FatalError):
    """Kafka holds a commit of this pipeline from another ledger, or from a newer turn than this ledger has. The
    operator points ACKLINE_AUDIT at the right ledger (S36)."""


class LedgerError(FatalError):
    """The stored tables contradict each other or the rules of the ledger. Nothing was stored; the operator looks at the
    tables."""


REFUSALS = (LedgerError, NoProof, GroupBusy, GroupMoved, NewerCommit)
"""The errors by which the ledger or the group takes nothing more of a lane."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean KNOWN?`, to end a message about a name that is not known; empty if no known one is like
    it."""
    names = list(known)
    near = [] if name in names else get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 record`, `1,312 records`, `2 retries`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{number:,} {plural}"


def command_of(error: AcklineError, pipeline: str) -> str:
    """Returns the command that ends what an error is about: the first one in its message that names the pipeline, and
    `ackline doctor NAME` without one."""
    # The whole command line: a message may also name a command in passing.
    commands = [command for command in _COMMAND.findall(str(error)) if pipeline in command.split()]
    return commands[0] if commands else f"ackline doctor {pipeline}"
