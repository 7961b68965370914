"""Holds back what must not overtake, in a task of a pipeline with an `order`.

Each record then has an order key (`Records.order_keys`). Records of one key must not overtake each other; a record with
NO_KEY waits for none. The gate of a topic-partition holds what keeps a key back: what the ledger names when the turn
begins, and each call of the key that fails from then on. A record behind that gets no call, and uses no attempt.

Three callers ask the gate. Calls that follow each other ask it before each of them. Calls that are under way at once
have chains here: the rows of a key that wait for its call under way. A handler that gets batches is called in waves: no
wave has two records of one key.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ackline.ledger.order import NO_KEY, WHOLE_PARTITION
from ackline.ledger.outcomes import Outcome
from ackline.worker.outcomes import Clock, HeldBack, Outcomes, RowOutcome, held_back_outcome
from ackline.worker.records import Int64s, Records


@dataclass(slots=True, eq=False)
class Gate:
    """What holds back the records of one topic-partition."""

    behind: dict[int, int] = field(default_factory=dict)
    """The lowest offset of each key that holds its later ones back."""
    failures_hold: bool = True
    """Whether a failure holds back: not where nothing is tried again. A record in flight always does."""
    chains: dict[int, deque[tuple[Any, int]] | None] = field(default_factory=dict)
    """The keys of which a call is under way, each with the portions and rows that wait for it, if there are any."""

    def holder(self, key: int, offset: int) -> int | None:
        """Returns the offset that holds back the record of this key at `offset`; None if none does."""
        first = self.behind.get(key)
        return first if first is not None and first < offset else None

    def refuse(self, key: int, offset: int) -> None:
        """Raises HeldBack if a lower offset holds back the record of this key at `offset`."""
        if (first := self.holder(key, offset)) is not None:
            raise HeldBack(_words(first, key))

    def held_back(self, row: int, key: int, offset: int, time: int) -> RowOutcome | None:
        """Returns the outcome of a row that is held back at `time`, in microseconds since 1970; None if it is not."""
        first = self.holder(key, offset)
        return None if first is None else held_back_outcome(row, _words(first, key), time)

    def note(self, key: int, offset: int, outcome: RowOutcome | None) -> None:
        """Notes the outcome of the record of this key at `offset`, None if it is acked: it may hold later ones back."""
        if key == NO_KEY or outcome is None:
            return
        if outcome.outcome is Outcome.IN_FLIGHT or (outcome.outcome is Outcome.FAILED and self.failures_hold):
            self.behind[key] = min(offset, self.behind.get(key, offset))

    def note_all(self, records: Records, outcomes: Iterable[RowOutcome]) -> None:
        """Notes the outcomes of those of the records that are not acked."""
        assert records.order_keys is not None
        for outcome in outcomes:
            self.note(int(records.order_keys[outcome.row]), int(records.offsets[outcome.row]), outcome)

    def all_held_back(self, records: Records, time: int) -> list[RowOutcome]:
        """Returns the outcomes of the rows that are held back already, whatever becomes of the others."""
        if not self.behind:
            return []
        assert records.order_keys is not None
        rows = enumerate(zip(records.order_keys.tolist(), records.offsets.tolist(), strict=True))
        found = (self.held_back(row, key, offset, time) for row, (key, offset) in rows if key in self.behind)
        return [each for each in found if each is not None]

    def call(self, call: Callable[[Records], Outcomes], records: Records, now: Clock) -> Outcomes:
        """Returns the outcome of each record. `call` gets the ones that nothing holds back yet, and may return the
        outcomes of the first of them alone."""
        held = self.all_held_back(records, now())
        if not held:
            outcomes = call(records)
        else:
            free = np.ones(len(records), dtype=np.bool_)
            free[[each.row for each in held]] = False
            rows = np.flatnonzero(free)
            outcomes = (call(records.filter(free)) if len(rows) else Outcomes(np.empty(0, np.int64))).among(
                len(records), rows, held, now()
            )
        self.note_all(records, outcomes.not_acked)
        return outcomes

    def call_in_waves(self, call: Callable[[Records], Outcomes], records: Records, now: Clock) -> Outcomes:
        """Returns the outcome of each record. `call` gets the first record of each key together, then the second of
        each key that the first has not held back, and so on; records without an order are in the first wave."""
        assert records.order_keys is not None
        waves = _places(records.order_keys)
        by_wave = np.argsort(waves, kind="stable")
        parts = [
            (rows, self.call(call, records.take(rows), now))
            for rows in np.split(by_wave, np.flatnonzero(np.diff(waves[by_wave])) + 1)
        ]
        whole = Outcomes(np.empty(len(records), np.int64), calls=sum(outcomes.calls for _, outcomes in parts))
        whole.insert(parts)
        return whole


def _words(first: int, key: int) -> str:
    return f"behind offset {first} of the {'partition' if key == WHOLE_PARTITION else 'same key'}"


def _places(keys: Int64s) -> Int64s:
    """Returns how many rows before each row have its key; 0 for rows without an order."""
    by_key = np.argsort(keys, kind="stable")
    in_order, count = keys[by_key], np.arange(len(keys))
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = in_order[1:] != in_order[:-1]
    places = np.empty(len(keys), np.int64)
    places[by_key] = count - np.maximum.accumulate(np.where(is_first, count, 0))
    return np.where(keys == NO_KEY, 0, places)
