"""The rate limit (`max_rate`) of a run, as its Spark tasks keep it. Pure: clock and sleep are passed in.

Spark tasks do not communicate. Each gets the run's rate divided by the number of tasks that may run at the same time,
and never exceeds that. A task that a slow handler or broker has delayed catches up by at most one second's worth.
"""

import time
from collections.abc import Callable, Iterator

from ackline.handler import Tier
from ackline.spark.records import Records

_CATCH_UP_SECONDS = 1.0
_PORTION_SECONDS = 0.1
"""A record handler gets this many seconds' worth of records at a time, so that the records come evenly."""
_MAX_PORTION = 1000
"""Records that a record handler gets at a time, at most."""


class RateLimit:
    """One Spark task's share of `max_rate`, in records a second, from now on."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._used_until = clock()

    def wait(self, records: int) -> None:
        """Waits until this many more records may be handled. At any time since the start, the records handled are at
        most rate · seconds."""
        now = self._clock()
        self._used_until = max(self._used_until, now - _CATCH_UP_SECONDS) + records / self._rate
        while (left := self._used_until - self._clock()) > 0:
            self._sleep(left)

    def portions(self, records: Records, tier: Tier, deliver_tombstones: bool) -> Iterator[Records]:
        """Yields `records` in parts, each when it may be handled. A part is at most a second's worth; a record handler
        gets smaller ones. Tombstones that the handler does not get are free."""
        size = int(self._rate) if tier is Tier.ARROW else min(_MAX_PORTION, int(self._rate * _PORTION_SECONDS))
        for start in range(0, len(records), max(1, size)):
            part = records.slice(start, max(1, size))
            self.wait(len(part) if deliver_tombstones else len(part) - int(part.values.null_count))
            yield part


def rate_per_task(max_rate: int, tasks: int, cores: int | None) -> float:
    """Returns the records a second that each task may handle. With `cores` None all tasks may run at the same time."""
    return max_rate / max(1, tasks if cores is None else min(tasks, cores))
