"""The block `kafka:` of a pipeline file: the broker, the consumer group, and the partitions to read. Pure."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from ackline.blocks import StrictBlock
from ackline.field_types import CodePath, GroupId, PartitionNumbers, PropertyValue, RegularExpression, TopicName
from ackline.properties import broker_addresses, refused_properties


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
