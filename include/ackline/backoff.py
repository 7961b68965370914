"""When a failed record is due again: Storm's KafkaSpoutRetryExponentialBackoff without its overflow.

`due = handled_at + delay(attempts)`; whether there is another attempt at all is `max_retries`' word.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol


class Backoff(Protocol):
    """What decides on retries: `RetryPolicy`, or a class of the user's own, made without arguments."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        """The earliest time of the attempt after number `attempts`, which failed at `handled_at` with `error_class`;
        None for none.

        The same arguments give the same answer, whoever asks and however often: settle may run again. `seed` names the
        attempt, for whoever wants chance.
        """


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The `retry:` block of a pipeline file. `max_retries` 3 means at most 4 attempts."""

    initial_delay: timedelta = timedelta(0)
    period: timedelta = timedelta(minutes=1)
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    max_retries: int = 5
    jitter: float = 0.0
    by_error: "Mapping[str, RetryPolicy | None]" = field(default_factory=dict)

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        """As `Backoff` says: by the policy of `error_class` where it has its own (None there: never again).

        `jitter` lengthens each delay by up to that share of it, so that no retry comes before its time.
        """
        policy = self.by_error.get(error_class or "", self)
        if policy is None or policy.exhausted(attempts):
            return None
        if not policy.jitter:
            return policy.due(handled_at, attempts)
        chance = random.Random(seed).random()
        try:
            return policy.due(handled_at, attempts) + policy.delay(attempts) * policy.jitter * chance
        except OverflowError:
            return policy.due(handled_at, attempts)

    def delay(self, attempts: int) -> timedelta:
        """How long to wait after attempt number `attempts` (1-based) failed; capped, and no number overflows (S11).

        Raises ValueError for an attempt below 1.
        """
        if attempts < 1:
            raise ValueError(f"attempts count from 1, not {attempts}")
        if attempts == 1 or not self.period:
            return min(self.initial_delay if attempts == 1 else self.period, self.max_delay)
        try:
            seconds = self.period.total_seconds() * float(self.multiplier) ** (attempts - 1)
        except OverflowError:  # a float ends near 2 ** 1024, retries may not
            return self.max_delay
        return self.max_delay if seconds >= self.max_delay.total_seconds() else timedelta(seconds=seconds)

    def due(self, handled_at: datetime, attempts: int) -> datetime:
        """The earliest time of the next attempt; the end of time where the calendar ends first."""
        try:
            return handled_at + self.delay(attempts)
        except OverflowError:
            return datetime.max.replace(tzinfo=handled_at.tzinfo)

    def exhausted(self, attempts: int) -> bool:
        """Whether a record that failed this often gets no further attempt (S13)."""
        return attempts > self.max_retries
