"""Durations as text, and when a failed record is due again: Storm's exponential backoff without its overflow. Pure.

The fold (`ackline.ledger.fold`) stores the due time of each failed attempt with the pending offset. The due time is
`handled_at + delay(attempts)`, plus jitter. `RetryPolicy.due_time` computes it for one attempt; without jitter the fold
adds the delays of many attempts at once. A retry class of the user gives it by its own `next_attempt`.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

FOREVER = 2**31 - 2
"""The `max_retries` of a record that is retried until it succeeds: as many retries as the 32-bit columns of attempts
hold, so that no attempt overflows. With a retry each second they take 68 years."""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_PARTS = re.compile(rf"(?:{_PART.pattern})+")
_LONGEST = 64
"""Characters that a duration may have. Any client may write one into an ack topic, so a longer text is not parsed."""


def parse_duration(text: object) -> timedelta:
    """A duration such as `90s`, `1h30m`, `250ms` or `0s`. Raises ValueError for anything else, as a bare number."""
    if isinstance(text, timedelta):
        return text
    if isinstance(text, str) and len(text) > _LONGEST:
        raise ValueError(
            f"write a duration with its unit, such as 500ms, 30s, 5m or 1h30m, not a text of {len(text)} characters"
        )
    if not isinstance(text, str) or not _PARTS.fullmatch(text):
        raise ValueError(f"write a duration with its unit, such as 500ms, 30s, 5m or 1h30m, not {text!r}")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
    except OverflowError:
        raise ValueError(f"{text} is too long: a duration has at most 999999999 days") from None


def duration_text(duration: timedelta) -> str:
    """Returns a duration as a file writes it, in whole milliseconds or seconds."""
    milliseconds = duration // timedelta(milliseconds=1)
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


class Backoff(Protocol):
    """What decides on retries: `RetryPolicy`, or a class of the user (`retry.class`), made without arguments."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        """The earliest time of the next attempt, aware; None if the record gets no further attempt.

        Attempt number `attempts` failed at `handled_at` with `error_class`. The same arguments must give the same
        answer, because settle may compute it again in another process (I9). `seed` names the attempt; a policy that
        wants random numbers seeds them with it.
        """


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The numbers of the `retry:` block of a pipeline file; see `ackline.pipeline.blocks`."""

    initial_delay: timedelta = timedelta(0)
    """The wait after the first attempt."""
    period: timedelta = timedelta(minutes=1)
    """The wait after attempt n > 1 is `period * multiplier ** (n - 1)`."""
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    """The longest wait, without its jitter."""
    max_retries: int = 5
    """Attempts after the first: 3 means at most 4 attempts. At most FOREVER."""
    jitter: float = 0.0
    """The share of a wait, 0 to 1, by which chance may lengthen it."""
    by_error: "Mapping[str, RetryPolicy | None]" = field(default_factory=dict)
    """The policy of an error class that has its own; None: never retried."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        """The due time of the next attempt by the policy of `error_class`, or None if no attempt is left."""
        policy = self._policy_of(error_class)
        if policy is None or policy.exhausted(attempts):
            return None
        return policy.due_time(handled_at, attempts, seed)

    def wait(self, attempts: int, error_class: str | None) -> timedelta | None:
        """The wait before the next attempt by the policy of `error_class`, without jitter; None if none is left."""
        policy = self._policy_of(error_class)
        return None if policy is None or policy.exhausted(attempts) else policy.delay(attempts)

    def _policy_of(self, error_class: str | None) -> "RetryPolicy | None":
        return self.by_error.get(error_class or "", self)

    @property
    def uses_seed(self) -> bool:
        """Whether chance lengthens any wait, so that due times differ by their seed."""
        return bool(self.jitter) or any(policy is not None and policy.uses_seed for policy in self.by_error.values())

    def due_time(self, handled_at: datetime, attempts: int, seed: str = "") -> datetime:
        """The earliest time of the attempt after number `attempts`, which failed at `handled_at`.

        Jitter only adds to the wait, so no attempt comes before its time (I5). The last moment of the calendar, if the
        due time would be beyond it.
        """
        delay = self.delay(attempts)
        try:
            due = handled_at + delay
        except OverflowError:
            return datetime.max.replace(tzinfo=handled_at.tzinfo)
        if not self.jitter:
            return due
        try:
            return due + delay * self.jitter * random.Random(seed).random()
        except OverflowError:
            return due

    def delay(self, attempts: int) -> timedelta:
        """The wait after attempt number `attempts` (1-based), without jitter. No number of attempts overflows (S11).

        Raises ValueError for an attempt below 1.
        """
        if attempts < 1:
            raise ValueError(f"attempts count from 1, not {attempts}")
        if attempts == 1 or not self.period:
            return min(self.initial_delay if attempts == 1 else self.period, self.max_delay)
        try:
            seconds = self.period.total_seconds() * float(self.multiplier) ** (attempts - 1)
        except OverflowError:  # a float ends near 2 ** 1024, and max_retries may be higher than that exponent
            return self.max_delay
        return self.max_delay if seconds >= self.max_delay.total_seconds() else timedelta(seconds=seconds)

    def exhausted(self, attempts: int) -> bool:
        """Whether a record that failed this often gets no further attempt (S13)."""
        return attempts > self.max_retries
