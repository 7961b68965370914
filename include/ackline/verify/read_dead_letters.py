"""Reads the dead letters of a pipeline."""

from typing import Any

from confluent_kafka import Message

from ackline.verify.evidence import DeadLetter, Unreadable
from ackline.verify.read_kafka import Config, digest, read_log_bounds, read_topic

PREFIX = "ackline."
HEADERS = {
    f"{PREFIX}{name}" for name in ("pipeline", "lane", "epoch", "topic", "partition", "offset", "timestamp",
                                   "attempts", "error_class", "turn")
}  # fmt: skip
"""The headers of every dead letter. One without the record's value has another one, which gives the reason."""


def read_dead_letters(config: Config, topic: str, pipeline: str) -> list[DeadLetter]:
    """Return the dead letters of `pipeline` on `topic`; those of other pipelines on the same topic are left out.

    Raises Unreadable if the topic cannot be read, or if the headers of a dead letter do not name its origin.
    """
    letters: list[DeadLetter] = []

    def take_letter(message: Message) -> None:
        letter = parse_dead_letter(message, pipeline)
        if letter:
            letters.append(letter)

    read_topic(config, topic, "read_committed", read_log_bounds(config, topic, "read_committed"), take_letter)
    return letters


def parse_dead_letter(message: Message, pipeline: str) -> DeadLetter | None:
    """Return the dead letter in `message`; None if it is not one of `pipeline`.

    The record itself may have such headers, if it was a dead letter before. Kafka keeps the order of headers, and
    those of this dead letter come after those of the record, so the last one of each name counts.
    """
    all_headers: Any = message.headers() or ()
    headers = {name: value for name, value in all_headers if name.startswith(PREFIX)}
    if headers.get(f"{PREFIX}pipeline") != pipeline.encode():
        return None
    try:
        lane, epoch, topic, partition, offset = (
            headers[f"{PREFIX}{name}"].decode() for name in ("lane", "epoch", "topic", "partition", "offset")
        )
        # A dead letter that the broker refuses for good is sent without the value, and a header of its own marks it.
        without_value = message.value() is None and headers.keys() > HEADERS
        content = None if without_value else digest(message)
        turn = headers.get(f"{PREFIX}turn")
        return DeadLetter(
            lane, int(epoch), topic, int(partition), int(offset), content, None if turn is None else int(turn)
        )
    except (KeyError, ValueError, AttributeError) as error:
        where = f"{message.topic()}[{message.partition()}] offset {message.offset()}"
        raise Unreadable(f"dead letter {where}: a header of its origin is missing or invalid: {error!r}") from error
