"""`max_rate`: how a task keeps its share of a run's records a second. Pure: clock and sleep are passed in.

Tasks do not talk to one another: each is given the rate divided by the number of tasks that may run at once, and is
never ahead of it. Time lost to a slow handler or broker may be caught up by a second's worth at most.
"""

import time
from collections.abc import Callable, Iterator

from ackline.handler import Tier
from ackline.spark.records import Records

_CREDIT = 1.0
"""Seconds' worth that may be caught up at once."""
_STEP = 0.1
"""Seconds' worth of records that the record tier is given at a time, so that they come evenly."""
_MOST = 1000


class RateLimit:
    """One task's share of `max_rate`, in records a second, from now on."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._paid_at = clock()

    def take(self, records: int) -> None:
        """Wait until so many more may be handled: by any time, no more than rate · seconds since the start were."""
        now = self._clock()
        self._paid_at = max(self._paid_at, now - _CREDIT) + records / self._rate
        while (left := self._paid_at - self._clock()) > 0:
            self._sleep(left)

    def portions(self, rows: Records, tier: Tier, deliver_tombstones: bool) -> Iterator[Records]:
        """`rows` in parts of at most a second's worth (of less in the record tier), each when its time has come.

        Tombstones that the handler does not see cost nothing.
        """
        size = int(self._rate) if tier is Tier.ARROW else min(_MOST, int(self._rate * _STEP))
        for start in range(0, len(rows), max(1, size)):
            part = rows.slice(start, max(1, size))
            self.take(len(part) if deliver_tombstones else len(part) - int(part.values.null_count))
            yield part


def share(max_rate: int, tasks: int, cores: int | None) -> float:
    """What each of so many tasks may do a second, when so many cores run them; all at once where that is unknown."""
    return max_rate / max(1, tasks if cores is None else min(tasks, cores))
