"""Calls a handler in a process of its own, so that a crash or a hang is the outcome of the record that caused it.

The process calls the handler with the same `call_handler` as a Spark task does. This module finds the culprit if the
process dies before it answers:
- A record handler gets one record at a time. The record of the last call caused the death, and fails. Records before it
  keep the outcomes that they had. A new process gets the rest; no record is given to the handler twice.
- An Arrow handler gets a batch. The batch is halved and tried again until the culprit is alone. At most once allows no
  second call, so there the whole batch fails.

If no call had begun, no record caused the death: the handler died at its import, or in a thread of its own between two
batches. Another process gets the same records. After three such deaths in a row the Spark task fails, because a fourth
process would die, too.
"""

from collections.abc import Iterator

import numpy as np

from ackline.handler import Tier
from ackline.worker.isolation.handler_process import Death, HandlerProcess
from ackline.worker.outcomes import Clock, Outcomes, RowOutcome
from ackline.worker.records import Int64s, Records
from ackline.worker.settings import ReplaySettings

RECORDS_PROGRAM = "ackline.worker.isolation.serving"
_ROWS_AFTER_DEATH = 100
"""The next process after a death first gets this many rows. If many records kill their process, the large rest of the
batch is not sent again for each of them."""


class IsolatedHandler:
    """Calls a handler in a process of its own: in `process`, or in one that it starts. `now` gives the time of the
    outcome of a call in which the process died."""

    def __init__(self, settings: ReplaySettings, tier: Tier, now: Clock, process: HandlerProcess | None = None) -> None:
        self._once, self._limit = settings.once, settings.record_timeout
        self._now = now
        self._process = process or HandlerProcess(RECORDS_PROGRAM, (settings, tier), settings.record_timeout)

    def __call__(self, records: Records) -> Outcomes:
        """Returns the outcome of each record. Raises what `HandlerProcess.request` raises."""
        remaining = [np.arange(len(records))]
        parts: list[tuple[Int64s, Outcomes]] = []
        while remaining:
            rows = remaining.pop()
            part = records if len(rows) == len(records) else records.take(rows)
            result = self._process.request(part, len(part))
            if isinstance(result, Death):
                decided, again = self._split(part, result)
                if len(decided):
                    parts.append((rows[decided], self._outcomes_after_death(part, decided, result)))
                remaining += [rows[indexes] for indexes in again if len(indexes)]
            else:
                assert isinstance(result, Outcomes)
                parts.append((rows, result))
        return _merge(len(records), parts)

    def _split(self, part: Records, death: Death) -> tuple[Int64s, list[Int64s]]:
        """Returns the rows of `part` whose outcome the death decides, and those to try again: the last list first."""
        given = np.isin(part.offsets, death.given)
        begun, rest = np.flatnonzero(given), np.flatnonzero(~given)
        if not len(begun):
            return begun, [rest]
        if not death.as_batch:
            return begun, [rest[_ROWS_AFTER_DEATH:], rest[:_ROWS_AFTER_DEATH]]
        if self._once or len(begun) == 1:
            return begun, [rest]
        half = len(begun) // 2
        return begun[:0], [rest, begun[half:], begun[:half]]

    def _outcomes_after_death(self, part: Records, decided: Int64s, death: Death) -> Outcomes:
        """Returns the outcomes of rows that the handler was given before its process died."""
        time = self._now()
        if death.as_batch:
            not_acked = [self._failure(row, death, time, len(decided)) for row in range(len(decided))]
        else:
            # A process that dies between the two writes of the log leaves a call without a row.
            culprit = int(death.given[-1]) if death.in_call and len(death.given) else None
            not_acked = list(_outcomes_of_calls(part.offsets[decided], death, culprit, self._failure(0, death, time)))
        return Outcomes(np.full(len(decided), time, dtype=np.int64), not_acked, len(decided))

    def _failure(self, row: int, death: Death, time: int, rows: int = 1) -> RowOutcome:
        return death.failure(row, self._limit, time, "" if rows == 1 else f" in a batch of {rows} records")

    def start(self) -> None:
        """Starts the process, which imports the handler. Raises what the import raises."""
        self._process.start()

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def _outcomes_of_calls(offsets: Int64s, death: Death, culprit: int | None, failure: RowOutcome) -> Iterator[RowOutcome]:
    """Yields the outcomes that the process reported before it died, and `failure` for the culprit."""
    for row, offset in enumerate(offsets.tolist()):
        if offset in death.reported:
            outcome = death.reported[offset]
            if outcome is not None:
                yield outcome.at_row(row)
        elif offset == culprit:
            yield failure.at_row(row)


def _merge(count: int, parts: list[tuple[Int64s, Outcomes]]) -> Outcomes:
    """Joins the outcomes of parts into those of all `count` rows. Each part has the indexes of its rows."""
    if len(parts) == 1:
        return parts[0][1]
    handled_at = np.empty(count, dtype=np.int64)
    not_acked: list[RowOutcome] = []
    for rows, outcomes in parts:
        handled_at[rows] = outcomes.handled_at
        not_acked += [outcome.at_row(int(rows[outcome.row])) for outcome in outcomes.not_acked]
    calls = sum(outcomes.calls for _, outcomes in parts)
    return Outcomes(handled_at, sorted(not_acked, key=lambda outcome: outcome.row), calls)
