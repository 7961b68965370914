"""A handler in a process of its own, so that what kills or hangs that process is the outcome of its record alone.

What is answered, is answered by the same `answer` as in the task itself. Only where the process does not come back with
an answer it is found here who did it. A record handler is given one record at a time: the one under way did it, those
before it keep what became of them, and the rest goes to a new process; no record is handed out twice. An Arrow handler
is given a batch: it is cut in halves until the culprit is alone, but where nothing may be handed out twice, then the
whole batch has failed.

A death with no call begun (at import, or by a thread of the handler's between two batches) is nobody's doing: another
process is given the same rows. What dies so three times in a row would do so for ever, and fails the task.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ackline.errors import FatalError
from ackline.outcome import ErrorClass, Outcome
from ackline.spark.handlers.answering import Work
from ackline.spark.handlers.call import Answers, Clock, Unacked
from ackline.spark.isolation.handler_process import Death, HandlerProcess
from ackline.spark.records import Int64s, Records

Places = npt.NDArray[np.int64]
"""Places of rows in their `Records`."""

DEATHS = 3
"""Deaths in a row, none of them in a call, after which a handler is given up."""
_CAREFULLY = 100
"""Rows that the next process is given after a death: where many kill, the rest is not sent again for each of them."""


class Isolated:
    """Answers rows as `answer` does. `work` is what its process has to know; `now` stamps what a death leaves open."""

    def __init__(self, work: Work, now: Clock) -> None:
        self._once, self._limit = work.once, work.record_timeout
        self._now = now
        self._process = HandlerProcess(work, work.record_timeout)
        self._deaths = 0

    def __call__(self, rows: Records) -> Answers:
        """What the handler makes of `rows`. Raises what `HandlerProcess.ask` raises, and FatalError for a process that
        dies before it is given a record."""
        left = [np.arange(len(rows))]
        found: list[tuple[Places, Answers]] = []
        while left:
            places = left.pop()
            part = rows if len(places) == len(rows) else rows.where(np.isin(np.arange(len(rows)), places))
            came = self._process.ask(part)
            if isinstance(came, Death):
                known, again = self._after(part, came)
                if len(known):
                    found.append((places[known], self._left_behind(part, known, came)))
                left += [places[one] for one in again if len(one)]
            else:
                self._deaths = 0
                found.append((places, came))
        return _together(len(rows), found)

    def _after(self, part: Records, death: Death) -> tuple[Places, list[Places]]:
        """The places in `part` whose outcome is known now, and those to be asked again, last ones first."""
        begun = np.flatnonzero(np.isin(part.offsets, death.begun))
        rest = np.flatnonzero(~np.isin(part.offsets, death.begun))
        if not len(begun):
            self._deaths += 1
            if self._deaths >= DEATHS:
                raise FatalError(f"the handler's process {death.how}, {DEATHS} times before it was given a record")
            return begun, [rest]
        self._deaths = 0
        if not death.batch:
            return begun, [rest[_CAREFULLY:], rest[:_CAREFULLY]]
        if self._once or len(begun) == 1:
            return begun, [rest]
        half = len(begun) // 2
        return begun[:0], [rest, begun[half:], begun[:half]]

    def _left_behind(self, part: Records, known: Places, death: Death) -> Answers:
        """The answers about rows that the handler was given before its process died."""
        at = self._now()
        if not death.batch:
            culprit = int(death.begun[-1]) if death.under_way else None
            unacked = list(_told(part.offsets[known], death, culprit, self._lost(0, death, at)))
        else:
            unacked = [self._lost(row, death, at, len(known)) for row in range(len(known))]
        return Answers(np.full(len(known), at, dtype=np.int64), unacked, len(known))

    def _lost(self, row: int, death: Death, at: int, rows: int = 1) -> Unacked:
        of = "" if rows == 1 else f" in a batch of {rows} records"
        if death.late:
            text = f"the handler did not return within {self._limit:g} s{of}"
            return Unacked(row, Outcome.FAILED, ErrorClass.TIMEOUT, text, at)
        text = f"the handler's process {death.how}{of}"
        return Unacked(row, Outcome.FAILED, ErrorClass.WORKER_LOST, text, at)

    def close(self) -> None:
        """End the process."""
        self._process.close()


def _told(offsets: Int64s, death: Death, culprit: int | None, lost: Unacked) -> Iterator[Unacked]:
    """What was said of records before the process died, and the one that did it."""
    for row, offset in enumerate(offsets.tolist()):
        if offset in death.told:
            yield replace(death.told[offset], row=row)
        elif offset == culprit:
            yield replace(lost, row=row)


def _together(count: int, found: list[tuple[Places, Answers]]) -> Answers:
    """The answers about parts of the rows as answers about all of them."""
    if len(found) == 1:
        return found[0][1]
    handled_at = np.empty(count, dtype=np.int64)
    unacked: list[Unacked] = []
    for places, one in found:
        handled_at[places] = one.handled_at
        unacked += [replace(other, row=int(places[other.row])) for other in one.unacked]
    return Answers(handled_at, sorted(unacked, key=lambda one: one.row), sum(one.calls for _, one in found))
