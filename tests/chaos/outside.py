"""The services outside of a world: the tokens that its handler has handed on, and the answers that come for them.

What counts is judged by identity, not by the token: a token is the text that a handler call got, and the call names its
turn and its attempt. Nothing here reads a token or calls the steps.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zlib import crc32

from ackline import InFlight, Record
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from tests.support.memory import HandlerCall, MemoryLog, World

ACKS = "acks"
"""The ack topic of a world."""
TIMEOUT = "2m"
"""`in_flight.timeout` of the pipeline file."""
MEANINGS: dict[str, tuple[str, timedelta | None]] = {
    "ack": ("ack", None),
    "fail": ("fail", None),
    "fail for a reason": ("fail", None),
    "renew 30s": ("renew", timedelta(seconds=30)),
    "renew 5m": ("renew", timedelta(minutes=5)),
}
"""What the values mean that are answers."""
VALUES = (*("ack",) * 3, *MEANINGS, "renew", "acked", "")
TIMEOUTS: dict[str, timedelta | None] = {"": None, "30s": timedelta(seconds=30), "4m": timedelta(minutes=4)}
"""The timeouts that a record may order for its attempt."""


@dataclass(frozen=True, slots=True)
class Issued:
    """The attempt that a token is of, and the ledger that has signed it."""

    call: HandlerCall
    ledger: str


@dataclass(slots=True)
class Written:
    """A record of the ack topic. `index` is the length of the history when it was written."""

    topic_id: str
    tp: TopicPartition
    offset: int
    token: str
    value: str
    index: int
    truncated: bool = False


class Outside:
    """All tokens and answers of a world, in their order."""

    def __init__(self, world: World, partitions: int) -> None:
        self.world = world
        self.issued: dict[str, Issued] = {}
        self.written: list[Written] = []
        self.truncations: list[tuple[int, str, TopicPartition, int]] = []
        """The length of the history when a log was truncated, its topic id, its partition, and its end then."""
        world.create_topic(ACKS, partitions)

    def logs(self) -> dict[TopicPartition, MemoryLog]:
        return {TopicPartition(ACKS, number): log for number, log in self.world.topics[ACKS].logs.items()}

    def hand_on(self, record: Record) -> InFlight | None:
        """Takes the token of a record that orders to wait. Some answers are there before its outcome is stored."""
        orders: dict[str, Any] = json.loads(record.value) if record.value is not None else {}
        if "wait" not in orders:
            return None
        call = self.world.history[-1]
        assert isinstance(call, HandlerCall)
        token = record.token
        self.issued[token] = Issued(call, self.world.tables.ids.get("settlements", ""))
        if "early" in orders:
            self.answer(token, orders["early"])
        return InFlight(timeout=TIMEOUTS[orders["wait"]])

    def answer(self, token: str, value: str, open_: bool = False) -> None:
        """Writes an answer. All answers for one token are in one partition."""
        logs = self.logs()
        tp = TopicPartition(ACKS, crc32(token.encode()) % len(logs))
        offset = logs[tp].append(value.encode(), self.world.now, key=token.encode(), open_=open_)
        topic_id = self.world.topics[ACKS].topic_id
        self.written.append(Written(topic_id, tp, offset, token, value, len(self.world.history)))

    def live_tokens(self) -> list[str]:
        """Returns the tokens of the live lane, the newest first."""
        return [token for token, issued in reversed(self.issued.items()) if issued.call.lane == LIVE]

    def truncate(self, tp: TopicPartition, lost: int) -> None:
        """Elects a leader of a partition whose log lacks the last `lost` offsets."""
        log = self.logs()[tp]
        log.end_transaction(commit=False)
        end = max(log.start, log.end - lost)
        log.elect(end)
        self.truncations.append((len(self.world.history), self.world.topics[ACKS].topic_id, tp, end))
        for answer in self.written:
            same = (answer.topic_id, answer.tp) == (self.world.topics[ACKS].topic_id, tp)
            answer.truncated |= same and answer.offset >= end

    def create_again(self) -> None:
        self.world.create_topic(ACKS, len(self.logs()))

    def mend(self) -> None:
        """Returns all leaders and commits what is open."""
        for log in self.logs().values():
            log.has_leader = True
            log.end_transaction(commit=True)
