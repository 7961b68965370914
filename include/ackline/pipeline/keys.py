"""The keys of a pipeline file with their types and defaults, and the rules between keys as one ordered list. Pure.

pydantic checks each key alone. A rule compares keys that are valid alone, so it does not depend on the order of the
keys, and a key that was refused already gets no second problem.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from croniter import croniter
from pydantic import AfterValidator, Field, Tag, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from ackline.ledger.answers import TOKEN_KEYS
from ackline.ledger.order import Order
from ackline.pipeline.blocks import InFlightBlock, KafkaBlock, RetryBlock, SparkBlock
from ackline.pipeline.field_types import (
    MAPPING,
    CodePath,
    Duration,
    PipelineName,
    PipelineOwner,
    PipelineTag,
    StrictBlock,
    Time,
    TopicName,
    mapping_or,
)
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.properties import DYNAMIC_ALLOCATION, DYNAMIC_ALLOCATION_REASON, SECRET, is_true
from ackline.pipeline.refusals import DEAD_LETTER_ADVICE, KeyPath, error_at
from ackline.pipeline.streams import DecodeBlock, RegistryChoice, StreamBlock, check_streams, refuse_registry_decoders
from ackline.pipeline.topology import StepBlock, topology

_CRON_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


def _before(before: timedelta) -> timedelta:
    if before < timedelta(minutes=1):
        raise ValueError("too short; write at least 1m, and more than what lies between two runs")
    return before


class DeadLetterBlock(StrictBlock):
    """The topic that receives a copy of each record that is given up."""

    topic: TopicName


DeadLetter = Annotated[
    Annotated[DeadLetterBlock, Tag(MAPPING)] | Annotated[Literal["none"], Tag("none")],
    mapping_or("none", DeadLetterBlock, DEAD_LETTER_ADVICE),
]


class RescueBlock(StrictBlock):
    """The topic that receives a copy of each pending record that retention takes within `before`."""

    topic: TopicName
    before: Annotated[Duration, AfterValidator(_before)] = timedelta(hours=6)
    release: bool = False
    """Whether a record with a copy no longer holds the floor."""


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
    dead_letters: list[TopicName] = Field(default_factory=list)
    confirm_above: int = Field(1_000_000, ge=0)


class DebugBlock(StrictBlock):
    """The part of the records whose edges are logged, in a pipeline with steps."""

    sample: float = Field(gt=0, le=1)


class AuditBlock(StrictBlock):
    """What the audit table holds of a record beside its outcomes."""

    key_hash: bool = False


class Guarantee(StrEnum):
    """How often a record may be handed out."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    NO_GUARANTEE = "no_guarantee"

    @property
    def retries(self) -> bool:
        """Whether a record that failed gets another attempt. It is `dropped` otherwise, and nothing is ever pending."""
        return self is Guarantee.AT_LEAST_ONCE

    @property
    def claims(self) -> bool:
        """Whether a turn is claimed and its end committed before its records are handed out. None of them is handed out
        again then; what gets no outcome is `lost`."""
        return self is Guarantee.AT_MOST_ONCE


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
    decode: DecodeBlock = Field(default_factory=DecodeBlock)
    streams: list[StreamBlock] | None = Field(None, min_length=1)
    steps: list[StepBlock] | None = Field(None, min_length=1, max_length=100)
    outputs: list[OutputBlock] | None = Field(None, min_length=1, max_length=100)
    tracking: bool = True
    debug: DebugBlock | None = None
    guarantee: Guarantee = Field(Guarantee.AT_LEAST_ONCE, strict=False)
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
    concurrency: int | None = Field(None, ge=1, le=10_000)
    order: Order = Field(Order.NONE, strict=False)
    record_timeout: Annotated[Duration, AfterValidator(_record_timeout)] | None = None
    retry: RetryBlock = Field(default_factory=RetryBlock)
    dead_letter: DeadLetter
    rescue: RescueBlock | None = None
    tombstones: Literal["skip", "deliver"] = "skip"
    on_expired: Literal["record", "fail"] = "record"
    listener: CodePath | None = None
    schedule: Annotated[str, AfterValidator(_schedule)] | None = None
    tags: list[PipelineTag] = Field(default_factory=list)
    owner: PipelineOwner | None = None
    backfill: BackfillBlock = Field(default_factory=BackfillBlock)
    audit: AuditBlock = Field(default_factory=AuditBlock)
    ack_topic: TopicName | None = None
    in_flight: InFlightBlock = Field(default_factory=InFlightBlock)
    spark: SparkBlock = Field(default_factory=SparkBlock)

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records that are given up; None if the file has `dead_letter: none`."""
        return None if isinstance(self.dead_letter, str) else self.dead_letter.topic

    @property
    def rescue_topic(self) -> str | None:
        """The topic for copies of records that retention is about to take; None if the file has no `rescue`."""
        return None if self.rescue is None else self.rescue.topic


class Rule(NamedTuple):
    """A rule, and the keys that it reads. A broken rule refuses the key at `at`, or else the first key of `keys`; later
    rules about that first key are not checked."""

    keys: tuple[str, ...]
    check: Callable[[PipelineKeys], object]
    """Returns whether the file breaks the rule; without `advice`, raises an error of `error_at` if it does."""
    advice: str = ""
    at: KeyPath = ()


def check_rules(file: PipelineKeys, refused: Iterable[str] = ()) -> None:
    """Raises a ValidationError with each rule that the file breaks; `refused` are keys that are not valid alone."""
    invalid, broken = set(refused), list[InitErrorDetails]()
    for rule in RULES:
        if invalid.isdisjoint(rule.keys):
            try:
                if rule.check(file) and rule.advice:
                    raise error_at(rule.at or rule.keys[:1], rule.advice)
            except PydanticCustomError as error:
                broken.append(InitErrorDetails(type=error, loc=(), input=None))  # no input: it may be a secret
                invalid.add(rule.keys[0])
    if broken:
        raise ValidationError.from_exception_data("Pipeline", broken)


def _streams_take_topics_that_are_read(file: PipelineKeys) -> None:
    if file.streams is not None:
        check_streams(file.streams, file.kafka.subscribes_to_topic, file.kafka.named_topics)


def _decoders_have_a_registry(file: PipelineKeys) -> None:
    if file.schema_registry is None:
        refuse_registry_decoders(file.decode, ("decode",))


def _decoders_of_streams_have_a_registry(file: PipelineKeys) -> None:
    for number, stream in enumerate(file.streams or () if file.schema_registry is None else ()):
        refuse_registry_decoders(stream.decode, ("streams", number, "decode"))


def _topic_is_not_read(file: PipelineKeys, topic: str | None, at: KeyPath, consequence: str) -> None:
    if topic is not None and file.kafka.subscribes_to_topic(topic):
        raise error_at(at, f"the pipeline reads the topic {topic}, so it would {consequence}; name another topic")


def _outputs_go_to_topics_that_are_not_read(file: PipelineKeys) -> None:
    for number, output in enumerate(file.outputs or ()):
        _topic_is_not_read(file, output.topic, ("outputs", number, "topic"), "read its own output for ever")


def _dead_letters_are_not_read_again(file: PipelineKeys) -> None:
    _topic_is_not_read(file, file.dead_letter_topic, ("dead_letter",), "read its dead letters again for ever")


def _ack_topic_is_not_read_and_has_a_secret(file: PipelineKeys) -> None:
    _topic_is_not_read(file, file.ack_topic, ("ack_topic",), "handle its answers as records")
    if file.ack_topic is not None and file.kafka.connection is None:
        raise error_at(
            ("ack_topic",),
            f"tokens are signed with a secret, which is `{TOKEN_KEYS}` in the extra of the Kafka connection; write "
            f"`kafka.connection` instead of `bootstrap_servers`",
        )


def _ack_topic_has_no_dead_letters(file: PipelineKeys) -> None:
    if file.ack_topic is not None and file.ack_topic == file.dead_letter_topic:
        raise error_at(("ack_topic",), f"{file.ack_topic} is the dead-letter topic too; name another topic")


def _rescue_topic_holds_copies_alone(file: PipelineKeys) -> None:
    if file.rescue is None:
        return
    topic, at = file.rescue.topic, ("rescue", "topic")
    _topic_is_not_read(file, topic, at, "handle its own copies as records")
    others = {
        "the dead-letter topic": [file.dead_letter_topic],
        "the ack topic": [file.ack_topic],
        "the topic of an output": [output.topic for output in file.outputs or ()],
    }
    for what, names in others.items():
        if topic in names:
            raise error_at(at, f"{topic} is {what} too; name another topic, which holds copies alone")


def _start_has_its_time(file: PipelineKeys) -> None:
    needed = file.start.endswith("timestamp")
    if needed and file.start_timestamp is None:
        raise error_at(("start",), f"{file.start} needs a time; add `start_timestamp`")
    if not needed and file.start_timestamp is not None:
        raise error_at(
            ("start_timestamp",),
            f"it has no effect with `start: {file.start}`; remove it, or write `start: timestamp` or `start: "
            f"uncommitted_timestamp`",
        )


_NO_EDGES = "it logs the edges of trees, which need `steps` and no `tracking: false`; remove it"

RULES = (
    Rule(
        ("schema_registry", "kafka"),
        lambda file: file.schema_registry == "connection" and file.kafka.connection is None,
        "the file has no `kafka.connection`; write `schema_registry: {url: URL}`",
    ),
    Rule(("decode", "schema_registry"), _decoders_have_a_registry),
    Rule(
        ("streams", "handler"),
        lambda file: file.streams is None and file.handler is None,
        "missing; add `handler` or `streams`",
        ("handler",),
    ),
    Rule(("streams", "kafka"), _streams_take_topics_that_are_read),
    Rule(("streams", "schema_registry"), _decoders_of_streams_have_a_registry),
    Rule(
        ("streams", "handler", "filter"),
        lambda file: file.streams is not None and file.handler is None and file.filter is not None,
        "it filters the records of `handler`, which the file does not have; add `handler`, or move the filter into a "
        "stream",
        ("filter",),
    ),
    Rule(("steps",), lambda file: topology(file.steps or ())),
    Rule(("outputs", "steps"), lambda file: topology(file.steps or (), file.outputs or ())),
    Rule(("outputs", "kafka"), _outputs_go_to_topics_that_are_not_read),
    Rule(
        ("tracking", "steps"),
        lambda file: not file.tracking and file.steps is None,
        "it has no effect without `steps`; remove it",
    ),
    Rule(
        ("tracking", "outputs"),
        lambda file: not file.tracking and any(output.table for output in file.outputs or ()),
        "an output table holds the rows of acked records, which `tracking` finds; remove this key",
    ),
    Rule(
        ("concurrency", "order", "steps", "outputs"),
        lambda file: (
            (file.concurrency or 1) > 1 and file.order is not Order.NONE and (file.steps or file.outputs) is not None
        ),
        "with `steps` or `outputs` and an `order` a task calls the handler of records for one after the other; remove "
        "this key",
    ),
    Rule(
        ("order", "audit"),
        lambda file: file.order is Order.KEY and not file.audit.key_hash,
        "a key is known by its hash under a secret; add `audit: {key_hash: true}`",
    ),
    Rule(("debug", "steps"), lambda file: file.debug is not None and file.steps is None, _NO_EDGES),
    Rule(("debug", "tracking"), lambda file: file.debug is not None and not file.tracking, _NO_EDGES),
    Rule(
        ("record_outcomes", "guarantee"),
        lambda file: not file.record_outcomes and file.guarantee.retries,
        "at_least_once needs the rows of outcomes, which record the failures to retry; remove this key, or write "
        "`guarantee: at_most_once` or `guarantee: no_guarantee`",
    ),
    Rule(
        ("record_outcomes", "outputs"),
        lambda file: not file.record_outcomes and file.outputs,
        "outputs hold the rows of acked records, which the rows of outcomes name; remove this key",
    ),
    Rule(("dead_letter", "kafka"), _dead_letters_are_not_read_again),
    Rule(
        ("rescue", "guarantee"),
        lambda file: file.rescue is not None and not file.guarantee.retries,
        "it copies pending records, and only `guarantee: at_least_once` leaves records pending; remove this key, or "
        "write that guarantee",
    ),
    Rule(("rescue", "kafka", "dead_letter", "ack_topic", "outputs"), _rescue_topic_holds_copies_alone),
    Rule(
        ("audit", "kafka"),
        lambda file: file.audit.key_hash and file.kafka.connection is None,
        f"it needs a secret, which is `{SECRET}` in the extra of the Kafka connection; write `kafka.connection` "
        f"instead of `bootstrap_servers`",
        ("audit", "key_hash"),
    ),
    Rule(
        ("audit", "record_outcomes"),
        lambda file: file.audit.key_hash and not file.record_outcomes,
        "there are no rows with `record_outcomes: false`; remove one of them",
        ("audit", "key_hash"),
    ),
    Rule(
        ("ack_topic", "guarantee"),
        lambda file: file.ack_topic is not None and not file.guarantee.retries,
        "a record in flight is tried again if no answer comes, which only `guarantee: at_least_once` does; remove this "
        "key, or write that guarantee",
    ),
    Rule(("ack_topic", "kafka"), _ack_topic_is_not_read_and_has_a_secret),
    Rule(("ack_topic", "dead_letter"), _ack_topic_has_no_dead_letters),
    Rule(
        ("in_flight", "ack_topic"),
        lambda file: "in_flight" in file.model_fields_set and file.ack_topic is None,
        "it has no effect without `ack_topic`, from which the answers come; add that key",
    ),
    Rule(
        ("spark", "guarantee"),
        lambda file: file.guarantee.claims and is_true(file.spark.conf.get(DYNAMIC_ALLOCATION)),
        DYNAMIC_ALLOCATION_REASON,
        ("spark", "conf", DYNAMIC_ALLOCATION),
    ),
    Rule(("start", "start_timestamp"), _start_has_its_time),
)
"""In the order in which a refusal names the problems. A rule that makes another one moot comes before it."""
