"""What a Spark task gets, its settings, and what it returns, its manifest.

The replay step builds the settings once, and each task gets them pickled. The manifest is the rows that the task
returns to the driver, with its files and its counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ackline.handler import Durations, StepCounts, Tier
from ackline.ledger.answers import TokenSigner
from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRanges
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.outputs import StagedFile
from ackline.pipeline.streams import Translation
from ackline.pipeline.topology import Topology
from ackline.worker.files import OutcomeTarget, WrittenFile
from ackline.worker.task_folder import TaskFolder

_FILE_COLUMNS = {
    "path": ("string", pa.string()),
    "size": ("long", pa.int64()),
    "rows": ("long", pa.int64()),
    "outcome": ("string", pa.string()),
    "stats": ("string", pa.string()),
    "modification_time": ("long", pa.int64()),
}
_COLUMNS = _FILE_COLUMNS | {
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "calls": ("long", pa.int64()),
    "fetched": ("long", pa.int64()),
    "out_of_range": ("long", pa.int64()),
    "fetches": ("long", pa.int64()),
    "fetch_seconds": ("double", pa.float64()),
    "fetch_seconds_max": ("double", pa.float64()),
    "trees": ("long", pa.int64()),
    "unacked": ("long", pa.int64()),
    "times": ("long", pa.int64()),
    "nanoseconds": ("long", pa.int64()),
    "nanoseconds_max": ("long", pa.int64()),
    "step": ("string", pa.string()),
    "executed": ("long", pa.int64()),
    "emitted": ("long", pa.int64()),
    "acked": ("long", pa.int64()),
    "failed": ("long", pa.int64()),
    "output": ("int", pa.int32()),
}
MANIFEST_DDL = ", ".join(f"{name} {spark_type}" for name, (spark_type, _) in _COLUMNS.items())
MANIFEST_SCHEMA = pa.schema([(name, arrow_type) for name, (_, arrow_type) in _COLUMNS.items()])


def manifest(
    files: Iterable[WrittenFile],
    counts: Mapping[tuple[TopicPartition, Outcome], int],
    waits: Mapping[TopicPartition, FetchTimes],
    calls: int,
    fetched: int,
    out_of_range: int,
    trees: int = 0,
    latency: Durations | None = None,
    steps: Mapping[str, StepCounts] | None = None,
    staged: Iterable[StagedFile] = (),
    unacked: int = 0,
) -> pa.RecordBatch:
    """Returns a row for each file, for each outcome of a topic-partition with its number of `rows`, for each
    topic-partition whose records the task waited for, and one for the task's own counts. Only the first kind has a
    `path`; the third has no `outcome`, and the fourth no `topic` either.

    With steps there is also a row for each `step`, and `trees` is how many trees the task sent to the acker or, as a
    negative number, has decided, `unacked` of them as `Unacked`. `times` and `nanoseconds` are the calls of a step or,
    without a `step`, the acked trees whose latency the task has measured. A row with an `output` names a staged
    file."""
    rows: list[dict[str, Any]] = [
        {name: getattr(file, name) for name in _FILE_COLUMNS} | {"outcome": file.outcome.value} for file in files
    ]
    for (tp, outcome), number in counts.items():
        rows.append({"topic": tp.topic, "partition": tp.partition, "outcome": outcome.value, "rows": number})
    for tp, wait in waits.items():
        times = {"fetches": wait.count, "fetch_seconds": wait.seconds, "fetch_seconds_max": wait.longest}
        rows.append({"topic": tp.topic, "partition": tp.partition, **times})
    totals = {"calls": calls, "fetched": fetched, "out_of_range": out_of_range, "trees": trees, "unacked": unacked}
    rows.append(totals | _spans(latency or Durations()))
    rows += [asdict(file) for file in staged]
    rows += [{"step": name, **done.numbers(), **_spans(done.execute)} for name, done in (steps or {}).items()]
    return pa.RecordBatch.from_pylist(rows, schema=MANIFEST_SCHEMA)


def durations_of(row: Any) -> Durations:
    """Returns the durations in a row of a step, or in that of a task's own counts."""
    return Durations(row.times, row.nanoseconds, row.nanoseconds_max)


def _spans(durations: Durations) -> dict[str, int]:
    return {"times": durations.count, "nanoseconds": durations.total, "nanoseconds_max": durations.longest}


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
    """The offset from which on the log may hold timestamps that Spark's source can't read. A topic-partition without
    such an offset is missing."""


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
