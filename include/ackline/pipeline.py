"""The pipeline file: YAML from outside, checked once, here, before anything is touched.

Every refusal names the file, the line, the key and the reason. pydantic does the checking; this module says what is
allowed and turns its errors into sentences.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from croniter import croniter
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ackline import yaml_file
from ackline.errors import ConfigError
from ackline.properties import broker_addresses, refused
from ackline.retry import MAPPING, Block, Duration, RetryBlock
from ackline.translation import (
    OWN,
    DecodeBlock,
    FunctionPath,
    RegistryBlock,
    RegistryChoice,
    StreamBlock,
    Translation,
    check_topics,
    refusal,
    refuse_without_registry,
    refused_place,
    stream_of,
)

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_SAID = 20
"""Problems of one file that are told at once."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def topic_name(name: str) -> str:
    """`name`, if Kafka takes it for a topic. Raises ValueError otherwise."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is no topic name: Kafka takes 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return name


TopicName = Annotated[str, BeforeValidator(lambda value: topic_name(value) if isinstance(value, str) else value)]


def _group_name(name: str) -> str:
    # Kafka's client would cut a name at a NUL, and so commit another group; of a blank one it dies.
    if name != name.strip() or not name.isprintable():
        raise ValueError("no group name: it has control characters, or a blank at its start or end")
    return name


def _property(value: object) -> object:
    if not isinstance(value, (str, int, float)):
        raise ValueError("not valid: give text, a number or a boolean")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("not valid: it has a NUL, where Kafka's client would cut it")
    return value


PropertyValue = Annotated[str | int | float | bool, PlainValidator(_property)]


Numbers = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class KafkaBlock(Block):
    """Where to read: the broker, the group whose offsets are committed, the topics."""

    connection: str | None = Field(None, min_length=1)
    bootstrap_servers: Annotated[str, AfterValidator(broker_addresses)] | None = Field(None, min_length=1)
    group_id: Annotated[str, AfterValidator(_group_name)] = Field(min_length=1, max_length=255)
    topics: list[TopicName] | None = Field(None, min_length=1)
    pattern: str | None = Field(None, min_length=1)
    partitions: dict[TopicName, Numbers] | None = Field(None, min_length=1)
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    properties: dict[str, PropertyValue] = Field(default_factory=dict)
    partition_filter: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> "KafkaBlock":
        if (self.connection is None) == (self.bootstrap_servers is None):
            raise ValueError("name either `connection` (an Airflow connection) or `bootstrap_servers`")
        if sum(given is not None for given in (self.topics, self.pattern, self.partitions)) != 1:
            raise ValueError("name exactly one of `topics`, `pattern` and `partitions`")
        if self.partition_filter is not None and self.partitions is not None:
            raise ValueError("`partitions` says it all; a `partition_filter` goes with `topics` or `pattern`")
        return self

    @field_validator("topics")
    @classmethod
    def _no_topic_twice(cls, topics: list[str] | None) -> list[str] | None:
        if topics is not None and len(set(topics)) < len(topics):
            raise ValueError("a topic is named twice")
        return topics

    @field_validator("partitions")
    @classmethod
    def _no_partition_twice(cls, partitions: dict[str, list[int]] | None) -> dict[str, list[int]] | None:
        for topic, numbers in (partitions or {}).items():
            if len(set(numbers)) < len(numbers):
                raise ValueError(f"a partition of {topic} is named twice")
        return partitions

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @field_validator("properties")
    @classmethod
    def _harmless(cls, properties: dict[str, Any]) -> dict[str, Any]:
        said = [f"`{name}` is refused: {reason}" for name, reason in refused(properties).items()]
        if said:
            raise ValueError("; ".join(said))
        return properties

    def wants(self, topic: str, partition: int) -> bool:
        """Whether a partition is subscribed to, as far as the file says; a `partition_filter` is asked besides."""
        if self.partitions is not None:
            return partition in self.partitions.get(topic, [])
        return self.wants_topic(topic)

    def wants_topic(self, topic: str) -> bool:
        """Whether a topic is subscribed to, at least in part; a pattern must match the whole name."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.topics if self.topics is not None else self.partitions or {})

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics named in the file, or None where a pattern finds them."""
        return None if self.pattern is not None else tuple(self.topics or self.partitions or ())


class DeadLetterBlock(Block):
    """Where records go that are given up."""

    topic: TopicName


_DEAD_LETTER = "write `dead_letter: {topic: NAME}`, or `dead_letter: none` to keep no copy in Kafka"


def _dead_letter_kind(value: object) -> str | None:
    if value == "none":
        return "none"
    return MAPPING if isinstance(value, (dict, DeadLetterBlock)) else None


DeadLetter = Annotated[
    Annotated[DeadLetterBlock, Tag(MAPPING)] | Annotated[Literal["none"], Tag("none")],
    Discriminator(
        _dead_letter_kind,
        custom_error_type="dead_letter",
        custom_error_message=_DEAD_LETTER,
    ),
]


class BreakerBlock(Block):
    """How many of a turn's new records may fail before a bad deploy is assumed."""

    failure_ratio: Annotated[float, Field(ge=0, le=1)]
    min_records: int = Field(100, ge=1)


class BehindBlock(Block):
    """How far behind the log's end a partition may be, and what is done where it is further."""

    offsets: int = Field(ge=1)
    policy: Literal["skip", "fail"]


def _time(value: object) -> object:
    if isinstance(value, str):
        return parse_time(value)
    if isinstance(value, datetime):
        return parse_time(value.isoformat())
    return value


Start = Literal[
    "earliest", "latest", "timestamp", "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp"
]


class Pipeline(Block):
    """One pipeline file, valid. Defaults are those of the README's table of settings."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")
    kafka: KafkaBlock
    handler: FunctionPath | None = None
    filter: FunctionPath | None = None
    schema_registry: RegistryChoice | None = None
    decode: DecodeBlock = DecodeBlock()
    streams: list[StreamBlock] | None = Field(None, min_length=1, validate_default=True)
    guarantee: Literal["at_least_once", "at_most_once", "no_guarantee"] = "at_least_once"
    record_outcomes: bool = True
    lost_after: Duration = timedelta(hours=1)
    start: Start = "uncommitted_earliest"
    start_timestamp: Annotated[datetime, BeforeValidator(_time)] | None = None
    on_external_reset: Literal["fail", "follow", "restore"] = "fail"
    max_uncommitted: int = Field(10_000_000, ge=1)
    max_records_per_run: int = Field(5_000_000, ge=1)
    max_rate: int | None = Field(None, ge=1, le=1_000_000_000)
    max_offset_behind: BehindBlock | None = None
    breaker: BreakerBlock | None = None
    isolation: Literal["none", "process"] = "none"
    record_timeout: Duration | None = None
    retry: RetryBlock = RetryBlock()
    dead_letter: DeadLetter
    tombstones: Literal["skip", "deliver"] = "skip"
    on_expired: Literal["record", "fail"] = "record"
    listener: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")] | None = None
    schedule: str | None = None

    @model_validator(mode="after")
    def _timestamp_with_its_start(self) -> "Pipeline":
        if self.start.endswith("timestamp") != (self.start_timestamp is not None):
            raise ValueError(
                "`start: timestamp` or `uncommitted_timestamp` goes with `start_timestamp`, and only they do"
            )
        return self

    @field_validator("record_outcomes")
    @classmethod
    def _rows_where_they_are_needed(cls, record_outcomes: bool, info: ValidationInfo) -> bool:
        if not record_outcomes and info.data.get("guarantee") == "at_least_once":
            raise ValueError(
                "only at_most_once and no_guarantee can do without rows of outcomes: under at_least_once they are what "
                "says which records failed, and are to be tried again"
            )
        return record_outcomes

    @field_validator("record_timeout")
    @classmethod
    def _ends(cls, limit: timedelta | None) -> timedelta | None:
        if limit is not None and not timedelta(milliseconds=1) <= limit <= timedelta(days=1):
            raise ValueError("a limit for one call is between 1ms and 1d")
        return limit

    @field_validator("schedule")
    @classmethod
    def _is_cron(cls, schedule: str | None) -> str | None:
        preset = schedule in PRESETS
        if schedule is not None and not preset and (len(schedule.split()) != 5 or not croniter.is_valid(schedule)):
            raise ValueError(f"{schedule!r} is no cron expression of five fields, nor one of {', '.join(PRESETS)}")
        return schedule

    @field_validator("schema_registry")
    @classmethod
    def _named_somewhere(cls, registry: RegistryBlock | str | None, info: ValidationInfo) -> RegistryBlock | str | None:
        kafka = info.data.get("kafka")
        if registry == "connection" and isinstance(kafka, KafkaBlock) and kafka.connection is None:
            raise ValueError("`connection` needs a `kafka.connection`; beside bootstrap_servers write {url: URL}")
        return registry

    @field_validator("decode")
    @classmethod
    def _with_registry(cls, decode: DecodeBlock, info: ValidationInfo) -> DecodeBlock:
        if info.data.get("schema_registry", ...) is None:
            refuse_without_registry(decode, ("decode",))
        return decode

    @field_validator("streams")
    @classmethod
    def _each_with_a_fate(cls, streams: list[StreamBlock] | None, info: ValidationInfo) -> list[StreamBlock] | None:
        """That every record has somewhere to go, and every stream something to get."""
        if streams is None:
            if info.data.get("handler", ...) is None:
                raise refusal("missing", ("handler",))
            return None
        kafka = info.data.get("kafka")
        if isinstance(kafka, KafkaBlock):
            check_topics(streams, kafka.wants_topic, kafka.named_topics)
        if info.data.get("schema_registry", ...) is None:
            for number, stream in enumerate(streams):
                refuse_without_registry(stream.decode, ("streams", number, "decode"))
        if info.data.get("filter") is not None and info.data.get("handler", ...) is None:
            raise refusal(
                "it is the filter of `handler`, and there is none; a stream has a filter of its own", ("filter",)
            )
        return streams

    @field_validator("dead_letter")
    @classmethod
    def _elsewhere(
        cls, dead_letter: DeadLetterBlock | Literal["none"], info: ValidationInfo
    ) -> DeadLetterBlock | Literal["none"]:
        kafka = info.data.get("kafka")
        if isinstance(kafka, KafkaBlock) and dead_letter != "none" and kafka.wants_topic(dead_letter.topic):
            raise ValueError("its topic is one of the topics read: dead letters would be read again for ever")
        return dead_letter

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records given up, or None where the file says `none`."""
        return None if isinstance(self.dead_letter, str) else self.dead_letter.topic

    @property
    def isolated(self) -> bool:
        """Whether the handler is to run in processes of its own: only there a time limit can be kept."""
        return self.isolation == "process" or self.record_timeout is not None

    @property
    def translation(self) -> Translation | None:
        """The streams, without the registry's settings; None where all records go to `handler` as they are."""
        own = [] if self.handler is None else [stream_of(OWN, self.handler, self.filter, self.decode, self.decode)]
        named = [
            stream_of(one.name, one.handler, one.filter, one.decode, self.decode, one.topics, one.pattern)
            for one in self.streams or ()
        ]
        streams = (*named, *own)
        plain = not named and self.filter is None and {streams[0].key, streams[0].value} == {"bytes"}
        return None if plain else Translation(streams)

    @property
    def handlers(self) -> tuple[str, ...]:
        """The functions that records go to, in the order in which their streams are asked."""
        return tuple(dict.fromkeys([*(one.handler for one in self.streams or ()), *filter(None, [self.handler])]))

    @property
    def registry_url(self) -> str | None:
        """The schema registry's address, where the file names it."""
        return self.schema_registry.url if isinstance(self.schema_registry, RegistryBlock) else None

    def settings(self) -> dict[str, Any]:
        """The settings in force, for plan and log: Kafka properties by name only, their values may be secret."""
        settings = self.model_dump(mode="json", by_alias=True)
        settings["kafka"]["properties"] = sorted(self.kafka.properties)
        return settings


def load(path: Path) -> Pipeline:
    """The pipeline of one file. Raises ConfigError naming file, line, key and reason."""
    node, data = yaml_file.read(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a pipeline file is a mapping of keys to values, such as `name: orders`", file=path)
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [_sentence(path, node, problem) for problem in found[:_SAID]]
        more = [f"{path}: and {len(found) - _SAID} more"] if len(found) > _SAID else []
        raise ConfigError("\n".join([*(p for p, _ in problems), *more]), file=path, key=problems[0][1]) from None


def _sentence(path: Path, node: yaml.Node | None, problem: Mapping[str, Any]) -> tuple[str, str]:
    place = tuple(part for part in refused_place(problem) if part not in ("[key]", MAPPING))
    key = ".".join(str(part) for part in place) or "(whole file)"
    reason = problem["msg"].removeprefix("Value error, ")
    match problem["type"]:
        case "extra_forbidden":
            reason = "unknown key"
        case "missing":
            reason = f"missing: {_DEAD_LETTER}" if place == ("dead_letter",) else "missing"
        case "literal_error" if isinstance(problem["input"], (str, int, float)):
            reason = f"{reason}, not {problem['input']!r}"
    return f"{path}:{yaml_file.line_of(node, place)}: {key}: {reason}", key


def parse_time(text: str) -> datetime:
    """An ISO 8601 time with its zone, as UTC-comparable; raises ValueError where the zone is missing."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time ({error}): write 2026-01-31T12:00:00Z or +01:00") from None
    raise ValueError(f"{text} has no time zone: write 2026-01-31T12:00:00Z or +01:00")
