"""The settings of a replay job. The replay step builds them once; each Spark task gets them pickled, as they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ackline.handler import Tier
from ackline.offsets import OffsetRange, TopicPartition, ValuedRanges
from ackline.outcome import Outcome
from ackline.spark.output.outcome_files import OutcomeTarget
from ackline.spark.task_folder import TaskFolder
from ackline.token import TokenSigner
from ackline.topology import Topology
from ackline.translation import Translation
from ackline.turns import TurnId


@dataclass(frozen=True, slots=True)
class OutputTargets:
    """Where the tasks of a turn write what goes to outputs."""

    turn: TurnId
    folder: str
    """The turn's staging folder: a path or URI."""
    columns: Mapping[int, Mapping[str, str]]
    """The columns of each output table whose columns are known, by the number of the output."""
    inferred: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The columns that inference begins from, of each other output table; an output may be missing here."""
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka's properties for outputs to topics; they hold secrets."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Which handler a job calls, and what becomes of its outcomes.

    The secrets in here are a password for the schema registry, in `translation`, the login of an object store, the
    secret of the hashes of keys, and the key that signs tokens.
    They travel only inside the function of a task.
    """

    handler: str | None
    """`module:function`; unused where there is a `translation`."""
    deliver_tombstones: bool
    on_failure: Outcome
    """The outcome of a failure: FAILED, or DROPPED under a guarantee that never retries."""
    now: datetime | None
    """The time of all outcomes; None means the executor's clock."""
    once: bool = False
    """A Spark task that failed is not tried again, because it may have handled its records."""
    record_outcomes: bool = True
    """Each outcome becomes a row; otherwise the tasks only count outcomes."""
    isolated: bool = False
    """A process of its own runs the handler."""
    record_timeout: float | None = None
    """Seconds that one call of the handler may take. Needs `isolated`."""
    translation: Translation | None = None
    """The streams, where records are decoded, filtered or split between handlers."""
    store_options: Mapping[str, str] | None = field(default=None, repr=False)
    """How tasks reach the object store of the tables (`audit.object_store`); None if the tables are on a disk."""
    topology: Topology | None = None
    """The steps that get what the handler emits; None without steps."""
    tracking: bool = True
    """A record is acked only once all that came of it is. Otherwise it is acked when its handler has returned."""
    outputs: "OutputTargets | None" = None
    """Where rows that are emitted to outputs go; None without outputs."""
    debug_sample: float | None = None
    """The part of the records whose edges the tasks log, above 0 and at most 1; None logs none."""
    key_hash_secret: bytes | None = field(default=None, repr=False)
    """What the keys of records are hashed with; None if the table gets no hashes."""
    tokens: TokenSigner | None = None
    """Makes the tokens of records; None if no record may be in flight."""
    in_flight_timeout: timedelta | None = None
    """How long a record is in flight if its handler names no time; None means without an end."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to read Kafka: librdkafka's properties, without a group. They hold secrets, so they are never shown, and
    travel only inside the function of a task that reads retries."""

    properties: Mapping[str, str] = field(repr=False)
    isolation_level: str


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What one turn reads and handles, and how."""

    target: OutcomeTarget
    settings: ReplaySettings
    kafka: KafkaSettings
    fresh: Mapping[TopicPartition, OffsetRange]
    retries: Mapping[TopicPartition, ValuedRanges[int]]
    """The offsets that are tried again, each with the number of its attempt."""
    max_rate: int | None = None
    """Records a second that the handler gets at most, from all tasks together."""
    isolation_reason: str = ""
    """Why `settings.isolated` is set although the pipeline file has no `handler_isolation: process`; else empty."""
    exact_from: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset from which on the log may hold timestamps that Spark's source can't read, where there is one."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What each Spark task of a job needs, beside its records."""

    target: OutcomeTarget
    replay: ReplaySettings
    tier: Tier
    topic: str | None
    """The only topic of the job, None if there are several."""
    rate: float | None = None
    """Records a second that this task may give to the handler; None means no limit."""
    folder: TaskFolder | None = None
    """Where this task proves that it may start; None if it needs no proof: on one machine, unless at most once."""
    topic_partitions: tuple[TopicPartition, ...] = ()
    """With steps: the topic-partitions of the job, in their order. Rows of trees hold their indexes."""
