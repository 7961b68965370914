"""One replay as one Spark job: one lineage and one action, over fresh ranges and due retries.

A second action would read, and call the handler, again. The tasks write files of outcomes; this returns their names,
and the outcomes count once the caller has committed them.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ackline.errors import ConfigError, FatalError
from ackline.handler import Handler, Tier, tier_of
from ackline.metrics import Fetches
from ackline.offsets import OffsetRange, Runs, TopicPartition, count
from ackline.outcome import Outcome
from ackline.spark.failure import of_spark
from ackline.spark.handlers.answering import Work
from ackline.spark.handlers.column import NOTED_DDL, as_records, with_outcomes
from ackline.spark.handlers.streams import Streams, load_answering
from ackline.spark.output.file_stats import WrittenFile
from ackline.spark.output.outcome_files import Turn
from ackline.spark.progress import Progress, watched
from ackline.spark.rate_limit import share
from ackline.spark.read import for_python, fresh_records, source_options, tasks_for
from ackline.spark.retries import chunks
from ackline.spark.tasks import MANIFEST_DDL, Kafka, handle_fresh, handle_retries, read_retries, store_column
from ackline.translation import Translation, code_of, why_not_isolated

__all__ = ["ReplayJob", "ReplayResult", "WrittenFile", "check_replay", "run_replay"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What a plan wants read and handled.

    `retries` holds runs whose value is the number of the attempt to be made. `kafka` holds librdkafka's properties,
    without a group. `on_failure` is the outcome of a failure: FAILED, or DROPPED under a guarantee that never retries.
    `outcomes_root` is the outcomes table's own path or URI. `now` fixes the clock of all outcomes. `once`: a task that
    failed is not tried again, for its records may have been handled. `max_rate`: records a second that the handler is
    given at most, by all tasks together. `record_outcomes`: each outcome becomes a row; else they are only counted.
    `isolated`: the handler runs in processes of its own, and where `because` says why, that was not asked for.
    `record_timeout`, in seconds, needs that.
    `translation` holds the streams where records are decoded, filtered or shared out; `handler` means nothing then.
    """

    pipeline: str
    lane: str
    epoch: int
    turn: int
    run_id: str
    plan_date: date
    fresh: Mapping[TopicPartition, OffsetRange]
    retries: Mapping[TopicPartition, Runs[int]]
    handler: str | None
    isolation: str
    kafka: Mapping[str, str]
    deliver_tombstones: bool
    on_failure: Outcome
    outcomes_root: str
    now: datetime | None
    once: bool = False
    max_rate: int | None = None
    record_outcomes: bool = True
    isolated: bool = False
    because: str = ""
    record_timeout: float | None = None
    translation: Translation | None = None


@dataclass(slots=True)
class ReplayResult:
    """What a replay did. `calls` counts records given to the handler; `fetched_for_retries` those the broker sent;
    `fetches` are the tasks' waits for records."""

    files: tuple[WrittenFile, ...]
    counts: Mapping[TopicPartition, Mapping[Outcome, int]]
    calls: int
    fetched_for_retries: int
    fetches: Mapping[TopicPartition, Fetches] = field(default_factory=dict)


def check_replay(spark: SparkSession, job: ReplayJob) -> None:
    """Raise what `run_replay` would raise of handler, properties and session before it reads: nothing is handed out."""
    handler = load_answering(job.handler, job.translation)
    try:
        _manifest(spark, _isolated(job, handler), handler, job.fresh, job.retries)  # lazy: only an action reads
    except (PySparkException, Py4JError) as error:
        raise of_spark(error) from None


def run_replay(spark: SparkSession, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
    """Read the job's ranges and retries, each record once, let the handler answer, and write the outcomes' files.

    `on_progress` is given (tasks done, tasks) from another thread. Raises RangeGone where the log no longer holds a
    range, TransientError for trouble with brokers or workers, ConfigError for a handler or property that can't be
    used, FatalError otherwise. No message quotes a record.
    """
    handler = load_answering(job.handler, job.translation)
    job = _isolated(job, handler)
    fresh = {tp: one for tp, one in job.fresh.items() if len(one)}
    retries = {tp: runs for tp, runs in job.retries.items() if count(runs)}
    if not fresh and not retries:
        return ReplayResult((), {}, 0, 0)
    try:
        with watched(spark.sparkContext, f"ackline-{uuid.uuid4()}", on_progress):
            rows = _manifest(spark, job, handler, fresh, retries).collect()
    except (PySparkException, Py4JError) as error:
        raise of_spark(error) from None
    result = _result(rows)
    _check(result, fresh, retries)
    return result


def _isolated(job: ReplayJob, handler: Handler | Streams) -> ReplayJob:
    """The job, not isolated where that was not asked for and can't be; says why where it is without being asked.

    Raises ConfigError where it was asked for and can't be.
    """
    if not job.isolated:
        return job
    why = why_not_isolated(handler.code if isinstance(handler, Streams) else [code_of(handler)])
    if why is None:
        if job.because:
            log.warning("%s, turn %d: %s; a process of its own runs the handler", job.pipeline, job.turn, job.because)
        return job
    if job.because:
        return replace(job, isolated=False)
    raise ConfigError(why, key="isolation")


def _manifest(
    spark: SparkSession,
    job: ReplayJob,
    handler: Handler | Streams,
    fresh: Mapping[TopicPartition, OffsetRange],
    retries: Mapping[TopicPartition, Runs[int]],
) -> DataFrame:
    """The one lineage: rows that name the files which the tasks write."""
    topics = {tp.topic for tp in [*fresh, *retries]}
    work = _work(
        job,
        Tier.RECORD if isinstance(handler, Streams) else tier_of(handler),
        topics.pop() if len(topics) == 1 else None,
    )
    if job.max_rate is not None:
        work = replace(work, rate=_share(spark, job.max_rate, fresh, retries))
    kafka = Kafka(dict(job.kafka), job.isolation)
    sources = [fresh_records(spark, fresh, source_options(job.kafka, job.isolation))] if fresh else []
    if work.tier is Tier.COLUMN and not isinstance(handler, Streams):
        records = [as_records(source) for source in sources]
        if retries:
            wanted, numbers = _chunks(spark, retries)
            records.append(numbers.mapInArrow(read_retries(kafka, wanted), NOTED_DDL))
        outcomes = with_outcomes(_union(records), handler, str(job.handler), job.deliver_tombstones, work.topic is None)
        return outcomes.mapInArrow(store_column(work), MANIFEST_DDL)
    parts = [for_python(one, work.topic is None).mapInArrow(handle_fresh(work), MANIFEST_DDL) for one in sources]
    if retries:
        wanted, numbers = _chunks(spark, retries)
        parts.append(numbers.mapInArrow(handle_retries(work, kafka, wanted), MANIFEST_DDL))
    return _union(parts)


def _work(job: ReplayJob, tier: Tier, topic: str | None) -> Work:
    turn = Turn(job.outcomes_root, job.pipeline, job.plan_date, job.lane, job.epoch, job.turn, job.run_id)
    return Work(
        turn,
        job.handler,
        tier,
        topic,
        job.deliver_tombstones,
        job.on_failure,
        job.now,
        job.once,
        record_outcomes=job.record_outcomes,
        isolated=job.isolated,
        record_timeout=job.record_timeout,
        translation=job.translation,
    )


def _share(
    spark: SparkSession,
    max_rate: int,
    fresh: Mapping[TopicPartition, OffsetRange],
    retries: Mapping[TopicPartition, Runs[int]],
) -> float:
    """Each task's part of `max_rate`.

    How many run at once is known on this machine alone: a cluster's executors come and go, so there all are taken to.
    """
    context = spark.sparkContext
    cores = context.defaultParallelism
    # The source may round the parts of each range up.
    split = tasks_for(fresh, cores) + len(fresh) if fresh else 0
    local = str(context.master).split("[")[0] == "local" and not context.getConf().contains("spark.default.parallelism")
    return share(max_rate, split + len(chunks(retries, cores)), cores if local else None)


def _chunks(spark: SparkSession, retries: Mapping[TopicPartition, Runs[int]]) -> tuple[Any, DataFrame]:
    """The parts that tasks read, as a broadcast list, and a DataFrame with one row, the part's number, a task."""
    parts = chunks(retries, spark.sparkContext.defaultParallelism)
    return spark.sparkContext.broadcast(parts), spark.range(0, len(parts), 1, len(parts))


def _union(parts: list[DataFrame]) -> DataFrame:
    whole, *others = parts
    for part in others:
        whole = whole.union(part)
    return whole


def _result(rows: Iterable[Any]) -> ReplayResult:
    files: list[WrittenFile] = []
    counts: dict[TopicPartition, dict[Outcome, int]] = {}
    fetches: dict[TopicPartition, Fetches] = {}
    calls = fetched = 0
    for row in rows:
        if row.topic is None:
            calls, fetched = calls + row.calls, fetched + row.fetched
            continue
        tp = TopicPartition(row.topic, row.partition)
        if row.outcome is None:
            fetches[tp] = fetches.get(tp, Fetches()) + Fetches(row.fetches, row.fetch_seconds, row.fetch_seconds_max)
            continue
        outcome = Outcome(row.outcome)
        if row.path is not None:
            files.append(WrittenFile(row.path, row.size, row.rows, *tp, outcome, row.stats, row.modification_time))
        of_place = counts.setdefault(tp, {})
        of_place[outcome] = of_place.get(outcome, 0) + row.rows
    return ReplayResult(tuple(files), counts, calls, fetched, fetches)


def _check(
    result: ReplayResult, fresh: Mapping[TopicPartition, OffsetRange], retries: Mapping[TopicPartition, Runs[int]]
) -> None:
    """Raise FatalError for more outcomes than records could be, or fewer than there are retries."""
    for tp in {*fresh, *retries, *result.counts}:
        found = sum(result.counts.get(tp, {}).values())
        least = count(retries.get(tp, ()))
        most = least + (len(fresh[tp]) if tp in fresh else 0)
        if not least <= found <= most:
            raise FatalError(
                f"{tp}: {found} outcomes for {least} to {most} records; nothing was stored",
                topic=tp.topic,
                partition=tp.partition,
            )
