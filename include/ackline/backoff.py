"""When a failed record is due again: Storm's KafkaSpoutRetryExponentialBackoff without its overflow.

`due = handled_at + delay(attempts)`; whether there is another attempt at all is `max_retries`' word.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The `retry:` block of a pipeline file. `max_retries` 3 means at most 4 attempts."""

    initial_delay: timedelta = timedelta(0)
    period: timedelta = timedelta(minutes=1)
    multiplier: float = 2.0
    max_delay: timedelta = timedelta(hours=1)
    max_retries: int = 5

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
