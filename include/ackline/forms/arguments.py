"""The arguments of operator actions and backfills, as commands and trigger forms take them. Pure.

Each `parse_` function takes the text of one argument and raises ValueError, with what to write instead, for any other
text. The caller adds the name of the argument. A lane stores the arguments of its backfill once, as an operator wrote
them: its id, its ranges, times and filters. A resume with arguments compares them with the stored ones.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ackline.errors import ConfigError, did_you_mean
from ackline.ledger.backoff import parse_duration
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import BACKFILL, LIVE
from ackline.pipeline.field_types import TIME_FORMS, is_code_path, parse_time, topic_name
from ackline.stored import Stored

LAST = 2**63 - 1
"""The exclusive upper bound of offsets."""

_AGO = re.compile(r"(.*\S)\s+ago")
_FORMS = f"; write {TIME_FORMS}, or a time ago such as `2h ago`"


def parse_offset(text: str) -> int:
    """Returns the offset that a text of digits names. Raises ValueError for a text that names no offset of Kafka."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LAST)) and int(text) < LAST):
        raise ValueError(f"{text[:30]} is not an offset")
    return int(text)


_DASHED = re.compile(r"([0-9]+)-([0-9]+)")


def parse_offsets(text: str) -> OffsetRange:
    """Returns `A:B` or `A-B` (B exclusive), `A:`, `:B` or a single offset `A` as a range.

    Raises ValueError for another text. `-B` would look like a number below 0.
    """
    dashed = _DASHED.fullmatch(text)
    start, colon, end = (dashed[1], "-", dashed[2]) if dashed else text.partition(":")
    if not start and not end:
        raise ValueError("empty")
    first = parse_offset(start or "0")
    return OffsetRange(first, parse_offset(end) if end else first + 1 if not colon else LAST)


def parse_moment(text: str, now: datetime) -> datetime:
    """Returns a time in UTC: ISO 8601 with a zone, or a duration before `now`, such as `2h ago`.

    Raises ValueError for another text.
    """
    ago = _AGO.fullmatch(text.strip())
    if text.strip().isdecimal():
        raise ValueError(f"{text[:30]} is a number, and not a time{_FORMS}. Offsets are chosen by --offsets A:B")
    try:
        if ago is None:
            return parse_time(text)
        return now - parse_duration(ago[1].replace(" ", ""))
    except ValueError as error:
        raise ValueError(
            f"{error}{_FORMS}" if ago is not None else f"{error}, or a time ago such as `2h ago`"
        ) from None
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
            topics = {tp.topic for tp in every}
            near = "".join(did_you_mean(topic, topics) for topic in self.topics if topic not in topics)
            raise ConfigError(f"{name} has no partition with {' and '.join(idle)}{near}", key=idle[0].split()[0])
        return chosen


MOST_CHARACTERS = 100
"""Characters of the id of a backfill."""
_ID = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{MOST_CHARACTERS - 1}}}")
_LAST_PARTITION = 2**31 - 1

OPTIONS = {
    "ranges": "RANGE",
    "everything": "--all",
    "since": "--from",
    "until": "--to",
    "outcome": "--outcome",
    "error_class": "--error-class",
    "run": "--run",
    "code": "--code",
    "of": "--of",
    "where": "--where",
    "handler": "--handler",
    "dead_letter": "--dead-letter",
    "with_related": "--with-related",
    "shadow": "--shadow",
    "promotes": "--promote",
}
"""The option of each field of `BackfillArguments`, for messages."""


def lane_of(backfill_id: str) -> str:
    """Returns the name of a backfill's lane, `backfill-ID`. Raises ConfigError for a text that is no id."""
    if not _ID.fullmatch(backfill_id):
        raise ConfigError(
            f"--id {backfill_id[:120]}: write 1 to 100 of the characters a-z 0-9 -, a letter or digit first", key="--id"
        )
    return f"{BACKFILL}{backfill_id}"


def promotion_of(backfill_id: str) -> str:
    """Returns the id of the backfill that promotes a shadow: always the same one, so that it begins once."""
    return f"{backfill_id}-promoted"


def is_lane(text: str) -> bool:
    """Returns whether a lane may have this name. Another text may be a path to a place that is no folder of tables."""
    return text == LIVE or (text.startswith(BACKFILL) and _ID.fullmatch(id_of(text)) is not None)


def id_of(lane: str) -> str:
    """Returns the id of a backfill from the name of its lane."""
    return lane.removeprefix(BACKFILL)


_COLONS = re.compile(r"^([^:]*:[^:]*:[^:-]+):([^:-]+)$")


@dataclass(frozen=True, slots=True)
class RangeArgument:
    """A parsed RANGE: a topic, one partition of it, or offsets of that partition. None means all of them."""

    topic: str
    partition: int | None = None
    offsets: OffsetRange | None = None

    def includes(self, tp: TopicPartition) -> bool:
        """Returns whether the range holds offsets of this partition."""
        return self.topic == tp.topic and self.partition in (None, tp.partition)


def written_range(text: str) -> str:
    """Returns a RANGE with `A-B` where it has `A:B`, so that a resume may give either."""
    return _COLONS.sub(r"\1-\2", text)


def parse_range(text: str) -> RangeArgument:
    """Returns `TOPIC`, `TOPIC:P` or `TOPIC:P:A-B` (B exclusive; or `A:B`) as a range. Raises ConfigError for any other
    text."""
    topic, *rest = written_range(text).split(":")
    try:
        name = topic_name(topic)
        if len(rest) > 2:
            raise ValueError("it has too many colons")
        partition = parse_offset(rest[0]) if rest else None
        if partition is not None and partition > _LAST_PARTITION:
            raise ValueError(f"{rest[0]} is not a partition")
        if len(rest) < 2:
            return RangeArgument(name, partition)
        start, dash, end = rest[1].partition("-")
        if not dash:
            raise ValueError(f"{rest[1]} is not A-B")
        offsets = OffsetRange(parse_offset(start), parse_offset(end))
        if not offsets:
            raise ValueError(f"{rest[1]} holds no offset")
        return RangeArgument(name, partition, offsets)
    except ValueError as error:
        raise ConfigError(
            f"range {text[:300]}: write TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B with A < B, B exclusive "
            f"({error})",
            key="RANGE",
        ) from None


@dataclass(frozen=True, slots=True)
class BackfillArguments(Stored):
    """The arguments of a backfill as an operator has written them. None: not given."""

    ranges: tuple[str, ...] = ()
    everything: bool = False
    since: str | None = None
    until: str | None = None
    outcome: str | None = None
    error_class: str | None = None
    run: str | None = None
    code: str | None = None
    """The code of the turns that settled the offsets, as `ackline.lane.code` names it."""
    of: str = LIVE
    """The lane whose outcomes choose the offsets."""
    handler: str | None = None
    """`module:name`; None for the pipeline's own handler."""
    dead_letter: str | None = None
    """A topic, or `none`; None for what the pipeline file has."""
    with_related: bool = False
    """Whether the other records come along that rows of output tables name beside the chosen ones."""
    where: str | None = None
    """An expression over each record (`ackline.pipeline.where`); what does not match is skipped as Unmatched."""
    shadow: bool = False
    """Whether rows go to tables beside the real ones, and topics and dead letters get nothing."""
    promotes: str | None = None
    """The id of the shadow whose offsets these are; None for a backfill that has chosen its own."""

    @property
    def by_outcome(self) -> bool:
        """Whether single offsets are chosen by their outcome, and not ranges of the log."""
        return any(value is not None for value in (self.outcome, self.error_class, self.run, self.code))

    @property
    def given(self) -> bool:
        """Whether any argument was written, so that a resume has to compare them."""
        return self != BackfillArguments()

    def check(self) -> None:
        """Raises ConfigError for arguments that choose nothing, contradict each other, or are malformed."""
        for text in self.ranges:
            parse_range(text)
        if self.everything and self.ranges:
            raise ConfigError("--all and a RANGE contradict each other: give one of them", key="--all")
        if not (self.everything or self.ranges or self.by_outcome or self.since or self.until):
            raise ConfigError(
                "nothing was chosen: give RANGE (TOPIC, TOPIC:PARTITION or TOPIC:PARTITION:A-B), --from, --outcome, or "
                "--all for everything that the log holds",
                key="RANGE",
            )
        if self.of != LIVE and not self.by_outcome:
            raise ConfigError(
                "--of names the lane of --outcome, --error-class, --run or --code: give one of them", key="--of"
            )
        terminal = [outcome.value for outcome in Outcome if outcome.terminal]
        if self.outcome is not None and self.outcome not in terminal:
            raise ConfigError(f"--outcome {self.outcome[:50]}: one of {', '.join(terminal)}", key="--outcome")
        if self.of != LIVE:
            if not self.of.startswith(BACKFILL):
                raise ConfigError(f"--of {self.of[:120]}: write `live` or `{BACKFILL}ID`", key="--of")
            lane_of(id_of(self.of))
        if self.handler is not None and not is_code_path(self.handler):
            raise ConfigError(f"--handler {self.handler[:120]}: write module:name", key="--handler")
        try:
            topic_name(self.dead_letter or "none")
        except ValueError as error:
            raise ConfigError(f"--dead-letter: {error}", key="--dead-letter") from None
        if self.shadow and self.dead_letter not in (None, "none"):
            raise ConfigError(
                f"--dead-letter {self.dead_letter} and --shadow contradict each other: a shadow sends no dead letters",
                key="--dead-letter",
            )

    def times(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """Returns `--from` and `--to` as times. Raises ConfigError for a text that is no time, or an empty span."""
        since, until = (_time(option, text, now) for option, text in (("--from", self.since), ("--to", self.until)))
        if since is not None and until is not None and until <= since:
            raise ConfigError(f"--to {self.until} is not after --from {self.since}", key="--to")
        return since, until

    def shown(self) -> str:
        """Returns the arguments as on a command line, for a person."""
        words = list(self.ranges)
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if name not in ("ranges", "promotes") and value not in (None, False) and (name, value) != ("of", LIVE):
                words += [option] if value is True else [option, _quoted(value) if name == "where" else str(value)]
        return " ".join([*words, *([f"(promotes {self.promotes})"] if self.promotes is not None else [])])


def _quoted(text: str) -> str:
    """Returns an expression as a shell takes it: in double quotes if it holds single ones, as far as these suffice."""
    return f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)


def _time(option: str, text: str | None, now: datetime) -> datetime | None:
    try:
        return None if text is None else parse_moment(text, now)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}", key=option) from None


def check_same(backfill_id: str, stored: BackfillArguments, given: BackfillArguments) -> None:
    """Raises ConfigError if a resume gives other arguments than those with which the lane began."""
    for name, option in OPTIONS.items():
        before, now = getattr(stored, name), getattr(given, name)
        if before != now:
            raise ConfigError(
                f"{option}: backfill {backfill_id} began with {_shown(option, before)}, not {_shown(option, now)}. "
                f"Give `--id {backfill_id}` alone to resume it, or another id for another backfill. Nothing was stored",
                key=option,
            )


def _shown(option: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "no range"
    return "nothing" if value in (None, False) else option if value is True else str(value)
