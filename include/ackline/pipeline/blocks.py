"""The blocks `kafka`, `in_flight`, `spark` and `retry` of a pipeline file, and the retry class that it can name. Pure.

`retry.class` names a class of the user that decides on retries instead of the numbers of the block.
"""

import inspect
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    Tag,
    field_validator,
    model_validator,
)

from ackline.errors import ConfigError
from ackline.handler import import_problem, imported
from ackline.ledger.backoff import FOREVER, Backoff, RetryPolicy, duration_text, parse_duration
from ackline.pipeline.field_types import (
    MAPPING,
    CodePath,
    Duration,
    GroupId,
    Memory,
    PartitionNumbers,
    PropertyValue,
    RegularExpression,
    StrictBlock,
    TopicName,
    mapping_or,
)
from ackline.pipeline.properties import allowed_spark_property, broker_addresses, refused_properties


class KafkaBlock(StrictBlock):
    """The broker, the group whose offsets Ackline commits, and the subscription."""

    connection: str | None = Field(None, min_length=1)
    bootstrap_servers: Annotated[str, AfterValidator(broker_addresses)] | None = Field(None, min_length=1)
    group_id: GroupId
    topics: list[TopicName] | None = Field(None, min_length=1)
    pattern: RegularExpression | None = None
    partitions: dict[TopicName, PartitionNumbers] | None = Field(None, min_length=1)
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    properties: dict[str, PropertyValue] = Field(default_factory=dict)
    partition_filter: CodePath | None = None

    @model_validator(mode="after")
    def _check_exclusive_keys(self) -> "KafkaBlock":
        if (self.connection is None) == (self.bootstrap_servers is None):
            raise ValueError("write exactly one of `connection` (an Airflow connection) and `bootstrap_servers`")
        if sum(given is not None for given in (self.topics, self.pattern, self.partitions)) != 1:
            raise ValueError("write exactly one of `topics`, `pattern` and `partitions`")
        if self.partition_filter is not None and self.partitions is not None:
            raise ValueError(
                "`partition_filter` cannot be combined with `partitions`; use it with `topics` or `pattern`"
            )
        return self

    @field_validator("topics")
    @classmethod
    def _check_topics_unique(cls, topics: list[str] | None) -> list[str] | None:
        if topics is not None and len(set(topics)) < len(topics):
            raise ValueError("a topic is named twice; remove one of the two")
        return topics

    @field_validator("partitions")
    @classmethod
    def _check_partitions_unique(cls, partitions: dict[str, list[int]] | None) -> dict[str, list[int]] | None:
        for topic, numbers in (partitions or {}).items():
            if len(set(numbers)) < len(numbers):
                raise ValueError(f"a partition of {topic} is named twice; remove one of the two")
        return partitions

    @field_validator("properties")
    @classmethod
    def _check_properties_allowed(cls, properties: dict[str, Any]) -> dict[str, Any]:
        problems = [f"`{name}` is refused: {reason}" for name, reason in refused_properties(properties).items()]
        if problems:
            raise ValueError(f"{'; '.join(problems)}; remove {'it' if len(problems) == 1 else 'them'}")
        return properties

    def subscribes_to(self, topic: str, partition: int) -> bool:
        """Returns whether the file subscribes to the partition. Does not call the `partition_filter`."""
        if self.partitions is not None:
            return partition in self.partitions.get(topic, [])
        return self.subscribes_to_topic(topic)

    def subscribes_to_topic(self, topic: str) -> bool:
        """Returns whether the file subscribes to at least one partition of the topic. A pattern must match the whole
        name."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.topics if self.topics is not None else self.partitions or {})

    @property
    def named_topics(self) -> tuple[str, ...] | None:
        """The topics that the file names; None if it has a pattern."""
        return None if self.pattern is not None else tuple(self.topics or self.partitions or ())


NO_TIMEOUT = "none"


def _timeout(value: object) -> timedelta | None:
    if value is None or value == NO_TIMEOUT:
        return None
    try:
        timeout = parse_duration(value)
    except ValueError:
        raise ValueError("write a duration with its unit, such as 30s or 1h, or `none`") from None
    if timeout <= timedelta():
        raise ValueError("write a duration above 0s, such as 30s, or `none` for no timeout")
    return timeout


class InFlightBlock(StrictBlock):
    """How long a record waits for its answer from outside, and how many records of a partition may wait at once."""

    timeout: Annotated[
        timedelta | None,
        BeforeValidator(_timeout),
        PlainSerializer(lambda timeout: duration_text(timeout) if timeout else NO_TIMEOUT),
    ] = timedelta(seconds=30)
    max: int | None = Field(None, ge=1)


SparkProperty = Annotated[str, AfterValidator(allowed_spark_property)]


class SparkBlock(StrictBlock):
    """Resources and properties of the Spark job of a pipeline."""

    driver_memory: Memory | None = None
    executor_memory: Memory | None = None
    executor_cores: int | None = Field(None, ge=1)
    python: str | None = Field(None, min_length=1)
    archives: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    encryption: Literal["required", "none"] = "required"
    max_clock_skew: Duration = timedelta(seconds=5)
    conf: dict[SparkProperty, PropertyValue] = Field(default_factory=dict)

    @field_validator("archives")
    @classmethod
    def _check_no_comma(cls, archives: list[str]) -> list[str]:
        if any("," in archive for archive in archives):
            raise ValueError("an archive has a comma, which separates archives for Spark; write a list")
        return archives

    def properties(self) -> dict[str, str]:
        """Returns the Spark properties of the block, except for the memory of the driver and for encryption."""
        given = {
            "spark.executor.memory": self.executor_memory,
            "spark.executor.cores": self.executor_cores,
            "spark.archives": ",".join(self.archives) or None,
        }
        properties = {**self.conf, **{name: value for name, value in given.items() if value is not None}}
        return {name: str(value).lower() if type(value) is bool else str(value) for name, value in properties.items()}


def _number_of_retries(value: object) -> object:
    if value == "forever":
        return FOREVER
    if isinstance(value, str):
        raise ValueError(f"write a whole number, or forever, not {value!r}")
    return value


MaxRetries = Annotated[
    int,
    Field(ge=0, le=FOREVER),
    BeforeValidator(_number_of_retries),
    PlainSerializer(lambda number: "forever" if number == FOREVER else number),
]
"""A key of a pipeline file that is a number of retries, or `forever`. Stored plans hold the same word."""


class RetryBlock(StrictBlock):
    """The keys of `retry:`; their meaning is that of `ackline.ledger.backoff.RetryPolicy`."""

    initial_delay: Duration = timedelta(0)
    period: Duration = timedelta(minutes=1)
    multiplier: Annotated[float, Field(ge=1, le=1000)] = 2.0
    max_delay: Duration = timedelta(hours=1)
    max_retries: MaxRetries = 5
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.0
    by_error: dict[Annotated[str, Field(min_length=1)], "RetryOverride"] = Field(default_factory=dict)
    class_: CodePath | None = Field(None, alias="class")

    @model_validator(mode="after")
    def _either_class_or_numbers(self) -> "RetryBlock":
        if self.class_ is not None:
            defaults = RetryBlock.model_construct(class_=self.class_)
            others = [name for name in type(self).model_fields if getattr(self, name) != getattr(defaults, name)]
            if others:
                raise ValueError(f"`class` replaces all other keys; remove {', '.join(others)}")
        return self

    def policy(self) -> Backoff:
        """The policy that these keys describe, or the instance of `class`. Raises ConfigError if that can't be used."""
        if self.class_ is not None:
            return load_backoff(self.class_)
        by_error = {
            error_class: None if override == "never" else override.over(self)
            for error_class, override in self.by_error.items()
        }
        return replace(self.policy_of_numbers(), by_error=by_error)

    def policy_of_numbers(self) -> RetryPolicy:
        """The policy without `by_error` and `class`."""
        return RetryPolicy(**{name: getattr(self, name) for name in RetryNumbers.model_fields})


class RetryNumbers(StrictBlock):
    """The keys that an error class has of its own in `retry.by_error`; the others are those of `retry` itself."""

    initial_delay: Duration | None = None
    period: Duration | None = None
    multiplier: Annotated[float, Field(ge=1, le=1000)] | None = None
    max_delay: Duration | None = None
    max_retries: MaxRetries | None = None
    jitter: Annotated[float, Field(ge=0, le=1)] | None = None

    def over(self, retry: RetryBlock) -> RetryPolicy:
        """The policy of the error class: that of `retry`, with the keys of this block replaced."""
        own = {name: getattr(self, name) for name in type(self).model_fields if getattr(self, name) is not None}
        return replace(retry.policy_of_numbers(), **own)


RetryOverride = Annotated[
    Annotated[RetryNumbers, Tag(MAPPING)] | Annotated[Literal["never"], Tag("never")],
    mapping_or("never", RetryNumbers, "write the keys that differ, such as {max_retries: 1}, or never"),
]


def load_backoff(path: str) -> Backoff:
    """An instance of the class that `module:Class` names, wrapped so that each of its answers is checked.

    Raises ConfigError if the class can't be imported, made or called. `next_attempt` of the returned object raises
    ConfigError if the class raises, or returns neither an aware time nor None: settle stores no guessed due time.
    """
    try:
        instance: Backoff = imported(path)()
        _check_method(instance.next_attempt)  # checked before anything is planned, so that it leaves no open turn
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"retry class {path} can't be used: {import_problem(path, error)}", key="retry.class"
        ) from None
    return _CheckedBackoff(path, instance)


def _check_method(method: object) -> None:
    if not callable(method) or inspect.iscoroutinefunction(method):
        raise TypeError("its next_attempt is asynchronous, or not a method")
    try:
        signature = inspect.signature(method)
    except ValueError:
        return  # a builtin has no signature: its first call shows whether it fits
    signature.bind(1, datetime.now(UTC), None, "")


@dataclass(frozen=True, slots=True)
class _CheckedBackoff:
    """A retry class of the user. An invalid answer is a ConfigError, and nothing of the turn is settled."""

    path: str
    instance: Backoff

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        try:
            due: object = self.instance.next_attempt(attempts, handled_at, error_class, seed)
            if due is None:
                return None
            if isinstance(due, datetime) and due.utcoffset() is not None:
                return due.astimezone(UTC)
            kind = "a time without a zone" if isinstance(due, datetime) else f"a {type(due).__name__}"
            problem = f"returned {kind}"
        except (Exception, SystemExit) as error:
            problem = f"raised {type(error).__name__}: {error}"
        raise ConfigError(
            f"retry class {self.path} {problem} for attempt {attempts}, which failed with {error_class} ({seed}); "
            f"next_attempt returns an aware time or None. Nothing was settled: correct the class and run again",
            key="retry.class",
        )
