"""The keys of a pipeline file, their types and their defaults. Pure.

pydantic checks each key alone; `ackline.pipeline.rules` holds what must hold between keys.
"""

from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Literal

from croniter import croniter
from pydantic import AfterValidator, Discriminator, Field, Tag

from ackline.pipeline.blocks import InFlightBlock, KafkaBlock, RetryBlock, SparkBlock
from ackline.pipeline.field_types import MAPPING, CodePath, Duration, PipelineName, StrictBlock, Time, TopicName
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.refusals import DEAD_LETTER_ADVICE
from ackline.pipeline.streams import DecodeBlock, RegistryChoice, StreamBlock
from ackline.pipeline.topology import StepBlock

_CRON_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


class DeadLetterBlock(StrictBlock):
    """The topic that receives a copy of each record that is given up."""

    topic: TopicName


def _dead_letter_kind(value: object) -> str | None:
    if value == "none":
        return "none"
    return MAPPING if isinstance(value, (dict, DeadLetterBlock)) else None


DeadLetter = Annotated[
    Annotated[DeadLetterBlock, Tag(MAPPING)] | Annotated[Literal["none"], Tag("none")],
    Discriminator(_dead_letter_kind, custom_error_type="dead_letter", custom_error_message=DEAD_LETTER_ADVICE),
]


class BreakerBlock(StrictBlock):
    """How many of a turn's new records may fail before the turn becomes void, because a bad deploy is likely."""

    failure_ratio: Annotated[float, Field(ge=0, le=1)]
    min_records: int = Field(100, ge=1)


class MaxOffsetBehindBlock(StrictBlock):
    """How many offsets a partition may be behind the log's end, and what to do if it is further behind."""

    offsets: int = Field(ge=1)
    policy: Literal["skip", "fail"]


class BackfillBlock(StrictBlock):
    """What a backfill may use, and above how many offsets it wants more than `y` at a terminal."""

    handlers: list[CodePath] = Field(default_factory=list)
    confirm_above: int = Field(1_000_000, ge=0)


class DebugBlock(StrictBlock):
    """The part of the records whose edges are logged, in a pipeline with steps."""

    sample: float = Field(gt=0, le=1)


class AuditBlock(StrictBlock):
    """What the audit table holds of a record beside its outcomes."""

    key_hash: bool = False


InitialPosition = Literal[
    "earliest", "latest", "timestamp", "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp"
]


def _record_timeout(record_timeout: timedelta) -> timedelta:
    if not timedelta(milliseconds=1) <= record_timeout <= timedelta(days=1):
        raise ValueError("out of range; write a duration between 1ms and 1d")
    return record_timeout


@lru_cache(maxsize=1024)  # many files have the same schedule
def _schedule(schedule: str) -> str:
    if schedule not in _CRON_PRESETS and not (len(schedule.split()) == 5 and croniter.is_valid(schedule)):
        presets = ", ".join(_CRON_PRESETS)
        raise ValueError(f"{schedule!r} is not a cron expression; write one of five fields, or one of {presets}")
    return schedule


class PipelineKeys(StrictBlock):
    """The keys of a pipeline file, each valid alone. docs/settings.md describes each key and its default."""

    name: PipelineName
    kafka: KafkaBlock
    handler: CodePath | None = None
    filter: CodePath | None = None
    schema_registry: RegistryChoice | None = None
    decode: DecodeBlock = DecodeBlock()
    streams: list[StreamBlock] | None = Field(None, min_length=1)
    steps: list[StepBlock] | None = Field(None, min_length=1, max_length=100)
    outputs: list[OutputBlock] | None = Field(None, min_length=1, max_length=100)
    tracking: bool = True
    debug: DebugBlock | None = None
    guarantee: Literal["at_least_once", "at_most_once", "no_guarantee"] = "at_least_once"
    record_outcomes: bool = True
    lost_after: Duration = timedelta(hours=1)
    start: InitialPosition = "uncommitted_earliest"
    start_timestamp: Time | None = None
    missing_topics: Literal["fail", "wait"] = "fail"
    on_external_reset: Literal["fail", "follow", "restore"] = "fail"
    max_uncommitted: int = Field(10_000_000, ge=1)
    max_records_per_run: int = Field(5_000_000, ge=1)
    max_rate: int | None = Field(None, ge=1, le=1_000_000_000)
    max_offset_behind: MaxOffsetBehindBlock | None = None
    breaker: BreakerBlock | None = None
    handler_isolation: Literal["none", "process"] = "none"
    record_timeout: Annotated[Duration, AfterValidator(_record_timeout)] | None = None
    retry: RetryBlock = RetryBlock()
    dead_letter: DeadLetter
    tombstones: Literal["skip", "deliver"] = "skip"
    on_expired: Literal["record", "fail"] = "record"
    listener: CodePath | None = None
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None
    backfill: BackfillBlock = BackfillBlock()
    audit: AuditBlock = AuditBlock()
    ack_topic: TopicName | None = None
    in_flight: InFlightBlock = InFlightBlock()
    spark: SparkBlock = SparkBlock()

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records that are given up; None if the file has `dead_letter: none`."""
        return None if isinstance(self.dead_letter, str) else self.dead_letter.topic
