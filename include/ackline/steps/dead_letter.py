"""One dead record: what the tables hold of it, and its letter in the dead-letter topic."""

from collections.abc import Mapping
from dataclasses import dataclass

from ackline.errors import ConfigError
from ackline.kafka.letter_search import FoundLetter, LetterId
from ackline.offset_explanation import Event, OffsetExplanation
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.steps.explain import explain_record
from ackline.steps.parts import Parts
from ackline.turns import TurnId

__all__ = ["DeadRecord", "FoundLetter", "dead_record"]


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A dead record. `letter_topic` is None if its turn was planned under `dead_letter: none`, and `letter` is None
    then, too, and if the topic does not hold the letter any more."""

    tp: TopicPartition
    offset: int
    given_up: Event
    """The decision that the record is dead."""
    explanation: OffsetExplanation
    letter_topic: str | None
    letter: FoundLetter | None

    @property
    def failure(self) -> Event | None:
        """The last failed attempt of the epoch; None if maintenance has removed its row."""
        failed = [event for event in self.explanation.events if event.outcome is Outcome.FAILED]
        return next((event for event in reversed(failed) if event.epoch == self.given_up.epoch), None)


def dead_record(parts: Parts, tp: TopicPartition, offset: int) -> DeadRecord:
    """Returns a dead record of the lane with its letter.

    Raises ConfigError if the record is not dead in the lane, and what `find_letter` raises.
    """
    explanation = explain_record(parts, tp, offset)
    name, lane = parts.pipeline.name, parts.store.lane
    decisions = [event for event in explanation.events if event.outcome is Outcome.DEAD]
    if explanation.state != Outcome.DEAD.value or not decisions:
        raise ConfigError(
            f"{tp}: offset {offset} is not dead in the lane {lane}: {explanation.sentence} `ackline dead {name}` lists "
            f"dead records by error class",
            key="OFFSET",
        )
    given_up = decisions[-1]
    topic = _letter_topic(parts, given_up)
    letter = None
    if topic is not None and given_up.at is not None:
        letter = parts.find_letter(topic, LetterId(name, lane, given_up.epoch, tp, offset), given_up.at)
    return DeadRecord(tp, offset, given_up, explanation, topic, letter)


def _letter_topic(parts: Parts, given_up: Event) -> str | None:
    """Returns the topic of the turn's plan, whatever the file names by now."""
    turn = TurnId(parts.pipeline.name, parts.store.lane, given_up.epoch, given_up.turn)
    block = parts.store.plan(turn).settings.get("dead_letter")
    return str(block["topic"]) if isinstance(block, Mapping) else None
