"""Runs one replay as one Spark job: one lineage and one action, over fresh ranges and due retries.

A second action would read the records and call the handler again. The tasks write files of outcomes, and this module
returns their names. The outcomes count once the caller has committed the files.
"""

import logging
import os
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ackline.errors import ConfigError, FatalError
from ackline.handler import Handler, Tier, tier_of
from ackline.metrics import FetchTimes
from ackline.offsets import OffsetRange, TopicPartition, count
from ackline.outcome import Outcome
from ackline.outputs import StagedFile
from ackline.spark.exact_fresh import split_ranges, with_fresh
from ackline.spark.failure import error_of_spark, is_timestamp_overflow
from ackline.spark.handlers.column import NOTED_DDL, as_records, with_outcomes
from ackline.spark.handlers.load import load_functions_of_job
from ackline.spark.handlers.streams import Streams
from ackline.spark.output.manifest import MANIFEST_DDL, durations_of
from ackline.spark.output.outcome_files import OutcomeTarget
from ackline.spark.output.written_file import WrittenFile
from ackline.spark.probe import probe_executors
from ackline.spark.progress import Progress, report_progress
from ackline.spark.rate_limit import rate_per_task
from ackline.spark.read import for_python, fresh_records, large_and_small, source_options, tasks_for
from ackline.spark.retries import Attempts, split_for_tasks
from ackline.spark.settings import KafkaSettings, ReplaySettings, TaskSettings
from ackline.spark.shared_folder import unusable_folder
from ackline.spark.task_folder import TaskFolder, open_task_folder
from ackline.spark.tasks import handle_fresh, handle_retries, read_retries, store_column
from ackline.spark.trees.chain import manifests_of_trees, one_job, tasks_of_chain
from ackline.spark.trees.rows import ROWS_DDL
from ackline.spark.visible_files import WAIT_SECONDS, WAIT_SECONDS_ONCE, wait_until_sized, wait_until_visible
from ackline.spark_master import is_local
from ackline.spark_properties import DYNAMIC_ALLOCATION, DYNAMIC_ALLOCATION_REASON, is_true
from ackline.step_figures import StepFigures
from ackline.stream_functions import StreamFunctions, isolation_obstacle
from ackline.topology import Topology
from ackline.tuples import SOURCE, StepCounts

__all__ = [
    "KafkaSettings",
    "OutcomeTarget",
    "ReplayJob",
    "ReplayResult",
    "ReplaySettings",
    "check_replay",
    "run_replay",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What one turn reads and handles, and how."""

    target: OutcomeTarget
    settings: ReplaySettings
    kafka: KafkaSettings
    fresh: Mapping[TopicPartition, OffsetRange]
    retries: Mapping[TopicPartition, Attempts]
    max_rate: int | None = None
    """Records a second that the handler gets at most, from all tasks together."""
    isolation_reason: str = ""
    """Why `settings.isolated` is set although the pipeline file has no `handler_isolation: process`; else empty."""
    exact_from: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset from which on the log may hold timestamps that Spark's source can't read, where there is one."""


@dataclass(slots=True)
class ReplayResult:
    """What the tasks of a replay did. Outcomes in `counts` that are rows are in `files`, too."""

    files: tuple[WrittenFile, ...]
    counts: Mapping[TopicPartition, Mapping[Outcome, int]]
    calls: int
    """Records that the handler got."""
    fetched_for_retries: int
    """Records that the broker sent for the retries."""
    fetches: Mapping[TopicPartition, FetchTimes] = field(default_factory=dict)
    """How long tasks waited for records."""
    out_of_range: int = 0
    """Records whose timestamp is no time."""
    steps: StepFigures | None = None
    """What the steps did; None without steps."""
    staged: tuple[StagedFile, ...] = ()
    """The files with rows for output tables."""


_probed: set[str] = set()
"""The ids of the Spark applications whose executors were probed."""


def check_replay(spark: SparkSession, job: ReplayJob) -> None:
    """Checks handler, properties, session and executors, and reads no record. Call it before a turn is claimed.

    Raises what `run_replay` would raise for them, and ConfigError for dynamic allocation.
    """
    handler = load_functions_of_job(job.settings)
    # Spark moves tasks away from executors that it gives back, so it would repeat tasks in the normal course of a job.
    if job.settings.once and is_true(spark.sparkContext.getConf().get(DYNAMIC_ALLOCATION, "false")):
        raise ConfigError(f"`{DYNAMIC_ALLOCATION}` is on: {DYNAMIC_ALLOCATION_REASON}", key=DYNAMIC_ALLOCATION)
    try:
        _manifests(spark, _with_possible_isolation(job, handler), handler)  # lazy: only an action reads
    except (PySparkException, Py4JError) as error:
        raise error_of_spark(error) from None
    _probe(spark, job, handler)


def _probe(spark: SparkSession, job: ReplayJob, handler: Handler | Streams) -> None:
    imports_handler = isinstance(handler, Streams) or tier_of(handler) is not Tier.COLUMN
    root = os.path.dirname(job.target.root.rstrip("/"))
    try:
        probe_executors(spark.sparkContext, root, job.settings, job.kafka, imports_handler)
    except OSError as error:
        raise unusable_folder(root, error) from None
    _probed.add(spark.sparkContext.applicationId)


def run_replay(spark: SparkSession, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
    """Reads the job's ranges and retries, calls the handler once for each record, and writes the files of outcomes.

    Handles a record again only if Spark's source can't convert a timestamp that no `exact_from` announces: then it
    starts the job again with exact reads, except at most once. Calls `on_progress` from another thread with (tasks
    done, all tasks). Logs how many records have a timestamp that is no time. When it returns, this machine sees all
    files.

    Raises RangeGone if the log no longer holds a range, TransientError if brokers or workers fail, ConfigError for an
    unusable handler, property or executor, and FatalError otherwise. No message quotes a record.
    """
    handler = load_functions_of_job(job.settings)
    job = replace(
        _with_possible_isolation(job, handler),
        fresh={tp: fresh for tp, fresh in job.fresh.items() if len(fresh)},
        retries={tp: attempts for tp, attempts in job.retries.items() if count(attempts)},
    )
    if not job.fresh and not job.retries:
        return ReplayResult((), {}, 0, 0)
    if not is_local(str(spark.sparkContext.master)) and spark.sparkContext.applicationId not in _probed:
        _probe(spark, job, handler)
    try:
        with (
            _task_folder(spark, job) as folder,
            report_progress(spark.sparkContext, f"ackline-{uuid.uuid4()}", on_progress),
        ):
            result = _result(_collect(spark, job, handler, folder), job.settings.topology)
    except OSError as error:
        raise unusable_folder(job.target.root, error) from None
    _check_counts(result, job)
    # The caller commits these names next. A name whose file this machine does not see must never get into the log.
    seconds = WAIT_SECONDS_ONCE if job.settings.once else WAIT_SECONDS
    wait_until_visible(job.target.root, result.files, seconds=seconds)
    if job.settings.outputs is not None:
        wait_until_sized(job.settings.outputs.folder, {file.path: file.size for file in result.staged}, seconds=seconds)
    if result.out_of_range:
        log.warning(
            "%s: handled %d records whose timestamp is no time from 1970 to 9999, as records without one; let their "
            "producer write milliseconds since 1970",
            job.target.turn, result.out_of_range,
        )  # fmt: skip
    return result


def _collect(spark: SparkSession, job: ReplayJob, handler: Handler | Streams, folder: TaskFolder | None) -> list[Any]:
    """Runs the job and returns the rows of its tasks' manifests."""
    try:
        with nullcontext() if job.settings.topology is None else one_job(spark):
            return _manifests(spark, job, handler, folder).collect()
    except (PySparkException, Py4JError) as error:
        # A second start gives the handler records again, as after a kill. At most once never does.
        if job.settings.once or not is_timestamp_overflow(error):
            raise error_of_spark(error) from None
    log.warning("%s: Spark's source can't convert a record's timestamp; the ranges are read exactly", job.target.turn)
    return _collect(spark, replace(job, exact_from=dict.fromkeys(job.fresh, 0)), handler, folder)


def _task_folder(spark: SparkSession, job: ReplayJob) -> AbstractContextManager[TaskFolder | None]:
    """Returns the folder in which the tasks prove that they may start; None where nothing needs proof."""
    if is_local(str(spark.sparkContext.master)) and not job.settings.once:
        return nullcontext()
    return open_task_folder(job.target.root, job.target.turn, job.settings.once)


def _with_possible_isolation(job: ReplayJob, handler: Handler | Streams) -> ReplayJob:
    """Returns the job; turns handler isolation off if only `isolation_reason` wants it and the handler can't have it.

    Logs a warning if the handler is isolated because of `isolation_reason`. Raises ConfigError if the pipeline file
    wants isolation and the handler can't have it.
    """
    if not job.settings.isolated:
        return job
    functions = handler.functions if isinstance(handler, Streams) else [StreamFunctions.of_handler(handler)]
    obstacle = (
        isolation_obstacle(functions) if job.settings.topology is None else "the pipeline has `steps` or `outputs`"
    )
    if obstacle is None:
        if job.isolation_reason:
            log.warning("%s: %s; a process of its own runs the handler", job.target.turn, job.isolation_reason)
        return job
    if job.isolation_reason:
        return replace(job, settings=replace(job.settings, isolated=False))
    raise ConfigError(obstacle, key="handler_isolation")


def _manifests(
    spark: SparkSession, job: ReplayJob, handler: Handler | Streams, folder: TaskFolder | None = None
) -> DataFrame:
    """Returns the one lineage of the job: its rows are the manifests of all tasks."""
    by_source, exactly = split_ranges(job.fresh, job.exact_from)
    job = replace(job, fresh=by_source, retries=with_fresh(job.retries, exactly))
    topics = {tp.topic for tp in [*job.fresh, *job.retries]}
    task = TaskSettings(
        job.target,
        job.settings,
        Tier.RECORD if isinstance(handler, Streams) else tier_of(handler),
        topics.pop() if len(topics) == 1 else None,
        None if job.max_rate is None else _rate_per_task(spark, job, job.max_rate),
        folder,
        tuple(sorted({*job.fresh, *job.retries})),
    )
    several_topics = task.topic is None
    sources = []
    if job.fresh:
        options = source_options(job.kafka.properties, job.kafka.isolation_level)
        sources.append(fresh_records(spark, job.fresh, options))
    if task.tier is Tier.COLUMN and not isinstance(handler, Streams):
        records = [as_records(source) for source in sources]
        if job.retries:
            parts, indexes = _retry_parts(spark, job)
            records.append(indexes.mapInArrow(read_retries(job.kafka, parts), NOTED_DDL))
        path, deliver_tombstones, once = str(job.settings.handler), job.settings.deliver_tombstones, job.settings.once
        hashes_keys = job.settings.key_hash_secret is not None
        outcomes = with_outcomes(_union(records), handler, path, deliver_tombstones, several_topics, once, hashes_keys)
        return outcomes.mapInArrow(store_column(task), MANIFEST_DDL)
    topology = job.settings.topology
    ddl = MANIFEST_DDL if topology is None else ROWS_DDL
    rows = [for_python(source, several_topics).mapInArrow(handle_fresh(task), ddl) for source in sources]
    if job.retries:
        parts, indexes = _retry_parts(spark, job)
        rows.append(indexes.mapInArrow(handle_retries(task, job.kafka, parts), ddl))
    if topology is None:
        return _union(rows)
    offsets = sum(map(len, job.fresh.values())) + sum(map(count, job.retries.values()))
    parts_of_chain = tasks_of_chain(offsets, spark.sparkContext.defaultParallelism)
    return manifests_of_trees(_union(rows), task, topology, parts_of_chain)


def _rate_per_task(spark: SparkSession, job: ReplayJob, max_rate: int) -> float:
    """Returns each task's share of `max_rate`.

    Only a local session has a fixed number of cores. A cluster's executors come and go, so there the share assumes that
    all tasks run at the same time.
    """
    context = spark.sparkContext
    cores = context.defaultParallelism
    large, _ = large_and_small(job.fresh)
    # The source may round up the number of parts of each large range.
    tasks = tasks_for(job.fresh, cores) + len(large) + len(split_for_tasks(job.retries, cores))
    local = str(context.master).split("[")[0] == "local" and not context.getConf().contains("spark.default.parallelism")
    return rate_per_task(max_rate, tasks, cores if local else None)


def _retry_parts(spark: SparkSession, job: ReplayJob) -> tuple[Any, DataFrame]:
    """Returns the retries of each task as a broadcast list, and a DataFrame with one row for each task: its index."""
    parts = split_for_tasks(job.retries, spark.sparkContext.defaultParallelism)
    return spark.sparkContext.broadcast(parts), spark.range(0, len(parts), 1, len(parts))


def _union(parts: list[DataFrame]) -> DataFrame:
    whole, *others = parts
    for part in others:
        whole = whole.union(part)
    return whole


def _result(rows: Iterable[Any], topology: Topology | None) -> ReplayResult:
    """Adds up the rows of all tasks' manifests (`ackline.spark.output.manifest`)."""
    files: list[WrittenFile] = []
    counts: dict[TopicPartition, dict[Outcome, int]] = {}
    fetches: dict[TopicPartition, FetchTimes] = {}
    steps = StepFigures.of_steps(topology.names if topology else ())
    staged: list[StagedFile] = []
    calls = fetched = out_of_range = trees = 0
    for row in rows:
        if row.output is not None:
            staged.append(StagedFile(row.output, row.path, row.size, row.rows))
            continue
        if row.step is not None:
            steps.steps[row.step].add(StepCounts(row.executed, row.emitted, row.acked, row.failed, durations_of(row)))
            continue
        if row.path is not None:
            file = WrittenFile(row.path, row.size, row.rows, Outcome(row.outcome), row.stats, row.modification_time)
            files.append(file)
            continue
        if row.topic is None:
            calls, fetched = calls + row.calls, fetched + row.fetched
            out_of_range += row.out_of_range
            trees += row.trees
            steps.latency.add(durations_of(row))
            continue
        tp = TopicPartition(row.topic, row.partition)
        if row.outcome is None:
            waited = FetchTimes(row.fetches, row.fetch_seconds, row.fetch_seconds_max)
            fetches[tp] = fetches.get(tp, FetchTimes()) + waited
            continue
        outcome = Outcome(row.outcome)
        counts_of_tp = counts.setdefault(tp, {})
        counts_of_tp[outcome] = counts_of_tp.get(outcome, 0) + row.rows
    if trees:
        raise FatalError(f"{abs(trees)} trees were begun and not decided, or decided twice; nothing was stored")
    figures = None
    if topology is not None:
        figures = steps
        _count_records(steps.steps[SOURCE], counts.values())
    return ReplayResult(tuple(files), counts, calls, fetched, fetches, out_of_range, figures, tuple(staged))


def _count_records(source: StepCounts, counts: Collection[Mapping[Outcome, int]]) -> None:
    """Counts the records that were acked and those that failed: what Storm counts of a spout. Only the acker can."""
    source.acked = sum(of_tp.get(Outcome.ACKED, 0) for of_tp in counts)
    source.failed = sum(of_tp.get(word, 0) for of_tp in counts for word in (Outcome.FAILED, Outcome.DROPPED))


def _check_counts(result: ReplayResult, job: ReplayJob) -> None:
    """Raises FatalError if a topic-partition has more outcomes than offsets, or fewer than retries."""
    for tp in {*job.fresh, *job.retries, *result.counts}:
        outcomes = sum(result.counts.get(tp, {}).values())
        least = count(job.retries.get(tp, ()))
        most = least + (len(job.fresh[tp]) if tp in job.fresh else 0)
        if not least <= outcomes <= most:
            raise FatalError(
                f"{tp}: {outcomes} outcomes for {least} to {most} records; nothing was stored",
                topic=tp.topic,
                partition=tp.partition,
            )
