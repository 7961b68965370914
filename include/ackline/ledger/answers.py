"""Answers from outside: what a record of the ack topic means, and what settle has made of the answers of a turn. Pure.

An answer is a record whose key is a token and whose value is `ack`, `fail [reason]` or `renew DURATION`. It counts
unless a stored settlement has ended its attempt. Any client with write access to the ack topic can write any bytes:
settle counts an invalid answer and ignores it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from ackline.ledger.backoff import parse_duration
from ackline.ledger.outcomes import AnswerKind

SKIPPED_IN_TREE = "acked from outside, but a step has skipped a tuple of the record"
"""The message of a record whose answer is `ack` and whose own tree was skipped: the worse of both counts."""


class Applied(StrEnum):
    """What an answer that counts, or the lack of one, does to an attempt in flight."""

    ACKED = "acked"
    FAILED = "failed"
    RENEWED = "renewed"
    TIMED_OUT = "timed_out"


class Ignored(StrEnum):
    """Why an answer is ignored."""

    FOREIGN = "foreign"
    """Its token is of another pipeline, lane or topic."""
    MALFORMED = "malformed"
    """Its key is no token, or its value is no answer."""
    UNSIGNED = "unsigned"
    """No key has signed its token for this ledger and topic."""
    STALE = "stale"
    """A stored settlement has ended the attempt, or the attempt was never in flight."""
    REPEATED = "repeated"
    """Another answer has ended the attempt in the same turn."""


class Answer(NamedTuple):
    """The parsed value of an answer. `reason` is set for `fail`, `renewal` for `renew`."""

    kind: AnswerKind
    reason: str = ""
    renewal: timedelta = timedelta()


def parse_answer(value: bytes | str | None) -> Answer | None:
    """Returns the answer that a value holds; None if it holds none."""
    try:
        text = value.decode() if isinstance(value, bytes) else value or ""
    except UnicodeDecodeError:
        return None
    word, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    if word == AnswerKind.ACK and not rest:
        return Answer(AnswerKind.ACK)
    if word == AnswerKind.FAIL:
        return Answer(AnswerKind.FAIL, rest)
    if word == AnswerKind.RENEW:
        try:
            renewal = parse_duration(rest)
        except ValueError:
            return None
        return Answer(AnswerKind.RENEW, "", renewal) if renewal > timedelta() else None
    return None


@dataclass(frozen=True, slots=True)
class AckPosition:
    """How far a lane has read its ack topic. Offsets of another topic of the same name mean nothing."""

    topic: str
    topic_id: str
    next: Mapping[int, int] = field(default_factory=dict)
    """By partition, the first offset that is not read yet. A partition that is missing here is read from its start."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """By partition, the leader epoch under which everything below `next` was read; not where the broker gives none."""

    def as_json(self) -> dict[str, Any]:
        """Returns the position for the tables."""
        numbers = {str(partition): offset for partition, offset in sorted(self.next.items())}
        epochs = {str(partition): epoch for partition, epoch in sorted(self.leader_epochs.items())}
        return {"topic": self.topic, "topic_id": self.topic_id, "next": numbers, "leader_epochs": epochs}

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "AckPosition":
        """Returns the position that the tables hold."""
        numbers = {int(partition): int(offset) for partition, offset in stored["next"].items()}
        # Positions of an earlier version have no leader epochs.
        epochs = {int(partition): int(epoch) for partition, epoch in stored.get("leader_epochs", {}).items()}
        return cls(str(stored["topic"]), str(stored["topic_id"]), numbers, epochs)


@dataclass(frozen=True, slots=True)
class AnswerReport:
    """What settle has made of the answers of a turn, and where the next turn reads on."""

    position: AckPosition
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many answers were applied or ignored, by `Applied` and `Ignored`; zeros are left out."""
    warnings: tuple[str, ...] = ()
    """Answers that the ack topic has lost or hides, in words."""

    def after_turn_without_answers(self) -> "AnswerReport":
        """Returns the report of a next turn that reads no answers."""
        return AnswerReport(self.position)

    def encode(self) -> str:
        """Returns the report as the text that the tables hold."""
        stored = {**self.position.as_json(), "counts": dict(self.counts), "warnings": list(self.warnings)}
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> "AnswerReport | None":
        """Returns the report in a text of the tables; None if there is none."""
        if not text:
            return None
        stored = json.loads(text)
        return cls(AckPosition.of_json(stored), dict(stored["counts"]), tuple(stored["warnings"]))


def counts_text(counts: Mapping[str, int]) -> str:
    """Returns the counts in words, such as `3 acked, 1 timed out; ignored: 2 stale`; empty without any."""
    applied = [f"{counts[word]:,} {word.value.replace('_', ' ')}" for word in Applied if counts.get(word)]
    ignored = [f"{counts[word]:,} {word.value}" for word in Ignored if counts.get(word)]
    texts = [", ".join(applied), f"ignored: {', '.join(ignored)}" if ignored else ""]
    return "; ".join(filter(None, texts))
