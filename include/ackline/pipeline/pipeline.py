"""One pipeline file: its keys, their defaults, and the combinations of keys that are refused.

pydantic checks the file before anything else happens. `ackline.pipeline.refusals` writes the messages.
"""

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from croniter import croniter
from pydantic import Discriminator, Field, Tag, ValidationError, ValidationInfo, field_validator, model_validator

from ackline.errors import ConfigError
from ackline.pipeline import yaml_file
from ackline.pipeline.blocks import InFlightBlock, KafkaBlock, RetryBlock, SparkBlock, obstacle_of_ack_topic
from ackline.pipeline.field_types import MAPPING, CodePath, Duration, PipelineName, StrictBlock, Time, TopicName
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.properties import DYNAMIC_ALLOCATION, DYNAMIC_ALLOCATION_REASON, is_true
from ackline.pipeline.refusals import DEAD_LETTER_ADVICE, error_at, refusal
from ackline.pipeline.secrets import SECRET
from ackline.pipeline.streams import (
    PIPELINE_STREAM,
    DecodeBlock,
    RegistryBlock,
    RegistryChoice,
    Stream,
    StreamBlock,
    Translation,
    check_streams,
    refuse_registry_decoders,
)
from ackline.pipeline.topology import StepBlock, Topology, topology

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


class Pipeline(StrictBlock):
    """A valid pipeline file. docs/settings.md describes each key and its default."""

    name: PipelineName
    kafka: KafkaBlock
    handler: CodePath | None = None
    filter: CodePath | None = None
    schema_registry: RegistryChoice | None = None
    decode: DecodeBlock = DecodeBlock()
    streams: list[StreamBlock] | None = Field(None, min_length=1, validate_default=True)
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
    record_timeout: Duration | None = None
    retry: RetryBlock = RetryBlock()
    dead_letter: DeadLetter
    tombstones: Literal["skip", "deliver"] = "skip"
    on_expired: Literal["record", "fail"] = "record"
    listener: CodePath | None = None
    schedule: str | None = None
    backfill: BackfillBlock = BackfillBlock()
    audit: AuditBlock = AuditBlock()
    ack_topic: TopicName | None = None
    in_flight: InFlightBlock = InFlightBlock()
    spark: SparkBlock = SparkBlock()

    @model_validator(mode="after")
    def _check_start_timestamp(self) -> "Pipeline":
        needed = self.start.endswith("timestamp")
        if needed and self.start_timestamp is None:
            raise error_at(("start",), f"{self.start} needs a time; add `start_timestamp`")
        if not needed and self.start_timestamp is not None:
            reason = f"it has no effect with `start: {self.start}`"
            advice = "remove it, or write `start: timestamp` or `start: uncommitted_timestamp`"
            raise error_at(("start_timestamp",), f"{reason}; {advice}")
        return self

    @field_validator("record_outcomes")
    @classmethod
    def _check_record_outcomes(cls, record_outcomes: bool, info: ValidationInfo) -> bool:
        if not record_outcomes and info.data.get("guarantee") == "at_least_once":
            raise ValueError(
                "at_least_once needs the rows of outcomes, which record the failures to retry; remove this key, or "
                "write `guarantee: at_most_once` or `guarantee: no_guarantee`"
            )
        if not record_outcomes and info.data.get("outputs"):
            raise ValueError("outputs hold the rows of acked records, which the rows of outcomes name; remove this key")
        return record_outcomes

    @field_validator("record_timeout")
    @classmethod
    def _check_record_timeout(cls, record_timeout: timedelta | None) -> timedelta | None:
        if record_timeout is not None and not timedelta(milliseconds=1) <= record_timeout <= timedelta(days=1):
            raise ValueError("out of range; write a duration between 1ms and 1d")
        return record_timeout

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: str | None) -> str | None:
        if schedule is None or schedule in _CRON_PRESETS:
            return schedule
        if not _is_cron_expression(schedule):
            presets = ", ".join(_CRON_PRESETS)
            raise ValueError(f"{schedule!r} is not a cron expression; write one of five fields, or one of {presets}")
        return schedule

    @field_validator("schema_registry")
    @classmethod
    def _check_registry_connection(
        cls, registry: RegistryBlock | str | None, info: ValidationInfo
    ) -> RegistryBlock | str | None:
        kafka = info.data.get("kafka")
        if registry == "connection" and isinstance(kafka, KafkaBlock) and kafka.connection is None:
            raise ValueError("the file has no `kafka.connection`; write `schema_registry: {url: URL}`")
        return registry

    @field_validator("decode")
    @classmethod
    def _check_registry_is_named(cls, decode: DecodeBlock, info: ValidationInfo) -> DecodeBlock:
        if info.data.get("schema_registry", ...) is None:
            refuse_registry_decoders(decode, ("decode",))
        return decode

    @field_validator("streams")
    @classmethod
    def _check_streams(cls, streams: list[StreamBlock] | None, info: ValidationInfo) -> list[StreamBlock] | None:
        # A key that pydantic has refused already is absent from info.data, and gets no second problem: hence the `...`.
        has_no_handler = info.data.get("handler", ...) is None
        if streams is None:
            if has_no_handler:
                raise error_at(("handler",), "missing; add `handler` or `streams`")
            return None
        kafka = info.data.get("kafka")
        if isinstance(kafka, KafkaBlock):
            check_streams(streams, kafka.subscribes_to_topic, kafka.named_topics)
        if info.data.get("schema_registry", ...) is None:
            for number, stream in enumerate(streams):
                refuse_registry_decoders(stream.decode, ("streams", number, "decode"))
        if has_no_handler and info.data.get("filter") is not None:
            raise error_at(
                ("filter",),
                "it filters the records of `handler`, which the file does not have; add `handler`, or move the filter "
                "into a stream",
            )
        return streams

    @field_validator("steps")
    @classmethod
    def _check_steps(cls, steps: list[StepBlock] | None) -> list[StepBlock] | None:
        if steps is not None:
            topology(steps)
        return steps

    @field_validator("outputs")
    @classmethod
    def _check_outputs(cls, outputs: list[OutputBlock] | None, info: ValidationInfo) -> list[OutputBlock] | None:
        if outputs is None:
            return None
        if info.data.get("steps", ...) is not ...:  # refused steps get no second problem
            topology(info.data["steps"] or (), outputs)
        kafka = info.data.get("kafka")
        for number, output in enumerate(outputs):
            if output.topic and isinstance(kafka, KafkaBlock) and kafka.subscribes_to_topic(output.topic):
                raise error_at(
                    ("outputs", number, "topic"),
                    f"the pipeline reads the topic {output.topic}, so it would read its own output for ever; name "
                    f"another topic",
                )
        return outputs

    @field_validator("tracking")
    @classmethod
    def _check_tracking(cls, tracking: bool, info: ValidationInfo) -> bool:
        if not tracking and info.data.get("steps", ...) is None:
            raise ValueError("it has no effect without `steps`; remove it")
        if not tracking and any(output.table for output in info.data.get("outputs") or ()):
            raise ValueError("an output table holds the rows of acked records, which `tracking` finds; remove this key")
        return tracking

    @field_validator("debug")
    @classmethod
    def _check_debug(cls, debug: DebugBlock | None, info: ValidationInfo) -> DebugBlock | None:
        if debug is not None and not (info.data.get("steps", ...) and info.data.get("tracking", ...)):
            raise ValueError("it logs the edges of trees, which need `steps` and no `tracking: false`; remove it")
        return debug

    @field_validator("dead_letter")
    @classmethod
    def _check_dead_letter_topic_not_read(
        cls, dead_letter: DeadLetterBlock | Literal["none"], info: ValidationInfo
    ) -> DeadLetterBlock | Literal["none"]:
        kafka = info.data.get("kafka")
        if isinstance(kafka, KafkaBlock) and dead_letter != "none" and kafka.subscribes_to_topic(dead_letter.topic):
            raise ValueError(
                f"the pipeline reads the topic {dead_letter.topic}, so it would read its dead letters again for ever; "
                f"name another topic"
            )
        return dead_letter

    @field_validator("spark")
    @classmethod
    def _check_dynamic_allocation(cls, spark: SparkBlock, info: ValidationInfo) -> SparkBlock:
        if info.data.get("guarantee") == "at_most_once" and is_true(spark.conf.get(DYNAMIC_ALLOCATION)):
            raise error_at(("spark", "conf", DYNAMIC_ALLOCATION), DYNAMIC_ALLOCATION_REASON)
        return spark

    @field_validator("audit")
    @classmethod
    def _check_key_hash(cls, audit: AuditBlock, info: ValidationInfo) -> AuditBlock:
        kafka = info.data.get("kafka")
        if audit.key_hash and isinstance(kafka, KafkaBlock) and kafka.connection is None:
            raise error_at(
                ("audit", "key_hash"),
                f"it needs a secret, which is `{SECRET}` in the extra of the Kafka connection; write "
                f"`kafka.connection` instead of `bootstrap_servers`",
            )
        if audit.key_hash and info.data.get("record_outcomes") is False:
            raise error_at(("audit", "key_hash"), "there are no rows with `record_outcomes: false`; remove one of them")
        return audit

    @field_validator("ack_topic")
    @classmethod
    def _check_ack_topic(cls, ack_topic: str | None, info: ValidationInfo) -> str | None:
        obstacle = None if ack_topic is None else obstacle_of_ack_topic(ack_topic, info.data)
        if obstacle is not None:
            raise ValueError(obstacle)
        return ack_topic

    @field_validator("in_flight")
    @classmethod
    def _check_in_flight(cls, in_flight: InFlightBlock, info: ValidationInfo) -> InFlightBlock:
        if info.data.get("ack_topic", ...) is None:
            raise ValueError("it has no effect without `ack_topic`, from which the answers come; add that key")
        return in_flight

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records that are given up; None if the file has `dead_letter: none`."""
        return None if isinstance(self.dead_letter, str) else self.dead_letter.topic

    @property
    def isolated(self) -> bool:
        """Whether the handler runs in a process of its own. A `record_timeout` needs one, to end a call by a kill."""
        return self.handler_isolation == "process" or self.record_timeout is not None

    @property
    def translation(self) -> Translation | None:
        """The streams, without the settings of the schema registry; None if `handler` gets all records undecoded."""
        streams = [block.stream(self.decode) for block in self.streams or ()]
        if self.handler is not None:
            key, value = self.decode.decoders()
            streams.append(Stream(PIPELINE_STREAM, self.handler, self.filter, key=key, value=value))
        if not self.streams and self.filter is None and self.decode.decoders() == ("bytes", "bytes"):
            return None
        return Translation(tuple(streams))

    @property
    def topology(self) -> Topology | None:
        """The steps and outputs, and who takes what; None for a pipeline that has neither."""
        return topology(self.steps or (), self.outputs or ()) if self.steps or self.outputs else None

    @property
    def functions(self) -> tuple[str | None, Translation | None, bool, Topology | None, bool]:
        """What `check_functions` takes: handler, streams, whether they are isolated, the steps, and whether a record
        may be in flight."""
        return self.handler, self.translation, self.isolated, self.topology, self.ack_topic is not None

    @property
    def handlers(self) -> tuple[str, ...]:
        """The paths of all handlers, in the order in which their streams are offered a record."""
        paths = [stream.handler for stream in self.streams or ()]
        return tuple(dict.fromkeys([*paths, *filter(None, [self.handler])]))

    @property
    def registry_url(self) -> str | None:
        """The schema registry's address; None if the file does not name it."""
        return self.schema_registry.url if isinstance(self.schema_registry, RegistryBlock) else None

    def settings(self) -> dict[str, Any]:
        """Returns the settings for plans and logs. Properties of Kafka and Spark are lists of names: their values may
        be secret."""
        settings = self.model_dump(mode="json", by_alias=True)
        settings["kafka"]["properties"] = sorted(self.kafka.properties)
        settings["spark"]["conf"] = sorted(self.spark.conf)
        return settings


@lru_cache(maxsize=1024)
def _is_cron_expression(schedule: str) -> bool:
    """Returns whether a schedule is a cron expression of five fields. Many files have the same schedule."""
    return len(schedule.split()) == 5 and croniter.is_valid(schedule)


def load(path: Path) -> Pipeline:
    """Returns the pipeline of a file. Raises ConfigError with the file, line, key and reason of each problem."""
    node, data = yaml_file.read(path)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: not a mapping; a pipeline file is a mapping of keys to values, such as `name: orders`", file=path
        )
    try:
        return Pipeline.model_validate(data)
    except ValidationError as error:
        raise refusal(path, node, error, Pipeline) from None
