"""Records of which calls are under way, and those calls, as `ackline.worker.under_way` keeps them.

A portion is kept whole until its last call has ended. Then it holds what the outcomes of its records need, and no
payload.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ackline.handler import Handler, Record
from ackline.ledger.order import NO_KEY
from ackline.worker.gate import Gate
from ackline.worker.outcomes import Clock, Outcomes, PayloadOf, RowOutcome
from ackline.worker.records import Int64s, Records

Choose = Callable[[Record], tuple[Handler, Record]]
"""Returns the handler that takes a record, and the record as that handler gets it. What it raises is the outcome of the
record, but for TaskFailure."""


@dataclass(slots=True, eq=False)
class Portion:
    """Some records of one topic-partition, with what is known of their outcomes."""

    records: Records
    first: int
    """The number of its first row among the records that the task has given at once."""
    handled_at: Int64s
    choose: Choose
    payload_of: PayloadOf
    gate: Gate | None = None
    left: int = 0
    """Calls that have not ended."""
    calls: int = 0
    not_acked: list[RowOutcome] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes the records have that wait here."""
        headers = self.records.headers or ()
        of_headers = sum(len(name) + len(value or b"") for row in headers for name, value in row)
        return int(self.records.keys.nbytes + self.records.values.nbytes) + of_headers

    def without_payload(self) -> None:
        """Forgets the values: the outcome of each record is known, and its key alone is still needed for its hash.
        Copies the rest, which is a view of the whole batch that Spark has sent."""
        records, count = self.records, len(self.records)
        self.payload_of = _nothing
        self.records = Records(
            records.tp,
            records.offsets.copy(),
            records.timestamps.copy(),
            records.keys.take(pa.array(np.arange(count))),
            pa.nulls(count, pa.binary()),
            None,
            records.attempts.copy(),
            None if records.order_keys is None else records.order_keys.copy(),
        )

    def chain(self, row: int, key: int) -> None:
        """Has a row wait for the calls of its key that are under way or wait already."""
        assert self.gate is not None
        if (chain := self.gate.chains[key]) is None:
            chain = self.gate.chains[key] = deque()
        chain.append((self, row))
        self.left += 1

    def holds_back(self, row: int, key: int, now: Clock) -> bool:
        """Returns whether a lower offset of its key holds a row back: then this is its outcome."""
        assert self.gate is not None
        if key not in self.gate.behind:
            return False
        time = now()
        outcome = self.gate.held_back(row, key, int(self.records.offsets[row]), time)
        if outcome is not None:
            self.handled_at[row] = time
            self.not_acked.append(outcome)
        return outcome is not None

    def outcomes(self) -> Outcomes:
        """Returns the outcomes, once each call has ended."""
        self.not_acked.sort(key=lambda outcome: outcome.row)
        return Outcomes(self.handled_at, self.not_acked, self.calls)


def _nothing(_: int) -> Sequence[bytes]:
    return ()


@dataclass(slots=True, eq=False)
class Call:
    portion: Portion
    row: int
    handler: Handler
    record: Record
    context: contextvars.Context
    key: int = NO_KEY
    """What it must not overtake; NO_KEY without an `order`."""
    cancelled: int = 0
    """How often the call was cancelled because it took longer than the time limit."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class WaitingHandlers:
    """How the handlers of a task are called, of which several calls may be under way."""

    handlers: Sequence[Handler]
    choose: Callable[[Records], tuple[Choose, PayloadOf]]
    """Returns for records how a handler is chosen for each, and what an error message must not repeat of a row."""
    limit: int
    """Calls under way at once, at most."""
    threads: int
    """Of these, calls of plain functions."""
    deliver_tombstones: bool
    timeout: float | None
    """Seconds that an asynchronous call may take."""
    rated: bool = False
    """The task keeps a rate limit, so no call waits here for one under way to end: it would add to a later second."""
    failures_hold: bool = True
    """Whether a failure holds back what comes behind it in the `order`."""
    registry: Any = None
    """The schema registry that decoders ask, if there is one: its time counts for no call."""
