"""A lane in memory whose handler returns InFlight, and the answers for its records."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ackline import InFlight, Record
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Settlement
from tests.support.memory import handle_by_orders
from tests.support.memory_lane import NOON, OK, TP, MemoryLane

ACKS = TopicPartition("acks", 0)
WAITS = b'{"wait": true}'
"""A record for which the handler returns InFlight."""


class AnsweredLane(MemoryLane):
    """A lane with the ack topic `acks`. `tokens` has the token of each attempt that is in flight or was."""

    def __init__(self, *values: bytes | None, timeout: str = "10s", partitions: int = 1, **settings: Any) -> None:
        retry = {"initial_delay": "0s", "period": "0s", "max_retries": 1}
        block = {"timeout": timeout} | settings.pop("in_flight", {})
        super().__init__(
            *values, partitions=partitions, **{"ack_topic": "acks", "in_flight": block, "retry": retry, **settings}
        )
        self.create("acks")
        self.tokens: dict[tuple[int, int], str] = {}
        self.world.handle = self.hand_on
        self.early: Callable[[Record], None] = lambda record: None
        """Called by the handler before it returns InFlight."""

    def hand_on(self, record: Record) -> InFlight | None:
        if record.value != WAITS:
            handle_by_orders(record)
            return None
        self.tokens[record.offset, record.attempt] = record.token
        self.early(record)
        return InFlight()

    def answer(self, offset: int, value: str = "ack", attempt: int = 1, times: int = 1) -> None:
        """Writes an answer for an attempt to the ack topic."""
        for _ in range(times):
            self.answer_with(self.tokens[offset, attempt], value)

    def answer_with(self, token: str | bytes | None, value: str | bytes | None) -> None:
        """Writes a record to the ack topic: the token is its key."""
        key, content = (text.encode() if isinstance(text, str) else text for text in (token, value))
        self.log(ACKS).append(content, self.world.now, key=key)

    def spare(self) -> None:
        """Removes all strikes that have not come yet."""
        self._strikes.clear()

    def at(self, seconds: float) -> "AnsweredLane":
        """Sets the clock to so many seconds after noon, and returns the lane."""
        self.world.now = NOON + timedelta(seconds=seconds)
        return self

    def outcomes(self, tp: TopicPartition = TP) -> list[tuple[int, int, str]]:
        """(offset, attempt, outcome) of each effective row, in order."""
        tables = self.world.tables
        settled = {turn for turn, settlement in tables.settlements.items() if settlement.kind != "void"}
        rows = [
            (row.offset, row.attempt, row.outcome.value)
            for turn, files in sorted(tables.outcomes.items())
            if turn in settled
            for file in files
            for row in file.rows.get(tp, ())
        ]
        return sorted(rows, key=lambda row: row[:2])

    def answered(self) -> Counter[str]:
        """Returns how many answers of the lane were counted as what."""
        counts: Counter[str] = Counter()
        for settlement in self.world.tables.settlements.values():
            counts.update(_counts(settlement))
        return counts

    def next_answer(self) -> int:
        """Returns the offset of the ack topic up to which the lane has read."""
        answers = self.newest().answers
        assert answers is not None
        return answers.position.next[0]


def in_flight(lane: AnsweredLane) -> int:
    """Returns how many records of the lane are in flight."""
    return lane.state().pending_by_kind()[PendingKind.IN_FLIGHT]


def _counts(settlement: Settlement) -> Counter[str]:
    return Counter(settlement.answers.counts) if settlement.answers else Counter()


__all__ = ["ACKS", "NOON", "OK", "TP", "WAITS", "AnsweredLane", "in_flight"]
