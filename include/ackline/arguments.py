"""The values of arguments that commands and trigger forms share: offsets, times and partitions. Pure.

Each `parse_` function takes the text of one argument and raises ValueError, with what to write instead, for any other
text. The caller adds the name of the argument.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ackline.blocks import parse_duration
from ackline.errors import ConfigError
from ackline.field_types import parse_time, topic_name
from ackline.offsets import OffsetRange, TopicPartition

LAST = 2**63 - 1
"""The exclusive upper bound of offsets."""

_AGO = re.compile(r"(.*\S)\s+ago")


def parse_offset(text: str) -> int:
    """Returns an offset. Raises ValueError if Kafka can have no such offset."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LAST)) and int(text) < LAST):
        raise ValueError(f"{text[:30]} is not an offset")
    return int(text)


def parse_offsets(text: str) -> OffsetRange:
    """Returns `A:B` (B exclusive), `A:`, `:B` or a single offset `A` as a range. Raises ValueError for another text."""
    start, colon, end = text.partition(":")
    if not start and not end:
        raise ValueError("empty")
    first = parse_offset(start or "0")
    return OffsetRange(first, parse_offset(end) if end else first + 1 if not colon else LAST)


def parse_moment(text: str, now: datetime) -> datetime:
    """Returns a time in UTC: ISO 8601 with a zone, or a duration before `now`, such as `2h ago`.

    Raises ValueError for another text.
    """
    ago = _AGO.fullmatch(text.strip())
    if ago is None:
        return parse_time(text)
    try:
        return now - parse_duration(ago[1].replace(" ", ""))
    except OverflowError:
        raise ValueError(f"{text} is before the first year of the calendar") from None


WORDS = ("earliest", "latest", "committed", "floor")
"""The words that name an offset of each partition: log start, log end, the group's commit, the lane's floor."""

Destination = str | int | datetime
"""Where an operator moves partitions: one of WORDS, an offset, or a time (its first record at or after it)."""


def parse_destination(text: str, now: datetime) -> Destination:
    """Returns one of WORDS, an offset, or a time as `parse_moment` does. Raises ValueError for another text."""
    if text in WORDS:
        return text
    try:
        return parse_offset(text)
    except ValueError:
        pass
    try:
        return parse_moment(text, now)
    except ValueError:
        words = ", ".join(WORDS)
        raise ValueError(f"give an offset, one of {words}, a time such as 2026-01-31T12:00:00Z, or `2h ago`") from None


_DISTANCE = re.compile(r"[+-][0-9]{1,18}")


def parse_distance(text: str) -> int:
    """Returns a signed number of offsets, such as `-100` or `+5`. Raises ValueError for another text."""
    if not _DISTANCE.fullmatch(text):
        raise ValueError("give a number of offsets with its sign, such as -100 or +5")
    return int(text)


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The partitions that `--topic` and `--partition` name; each may be given several times.

    An option that was not given excludes no partition. Raises ValueError for a text that is no name of a topic.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for topic in self.topics:
            topic_name(topic)

    def includes(self, tp: TopicPartition) -> bool:
        """Returns whether a partition is one of the chosen ones."""
        return (not self.topics or tp.topic in self.topics) and (not self.partitions or tp.partition in self.partitions)

    def chosen(self, lane: Iterable[TopicPartition], name: str) -> list[TopicPartition]:
        """Returns the chosen partitions of a lane, sorted. `name` is the pipeline's.

        Raises ConfigError for an option that names nothing of the lane, and if the lane has no partition.
        """
        every = sorted(lane)
        if not every:
            raise ConfigError(f"{name} has no partition yet")
        chosen = [tp for tp in every if self.includes(tp)]
        idle = [f"--topic {topic}" for topic in self.topics if topic not in {tp.topic for tp in chosen}]
        idle += [f"--partition {number}" for number in self.partitions if number not in {tp[1] for tp in chosen}]
        if idle:
            raise ConfigError(f"{name} has no partition with {' and '.join(idle)}", key=idle[0].split()[0])
        return chosen
