"""Runs one replay as one Spark job, one lineage and one action, and adds up what its tasks did.

A second action would read the records and call the handler again. The tasks write files of outcomes and return
manifests (`ackline.worker.settings`); `run_replay` returns the names of the files and the sums. The outcomes count once
the caller has committed the files.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackline.errors import ConfigError, FatalError
from ackline.handler import SOURCE, Handler, StepCounts, Tier, tier_of
from ackline.ledger.metrics import FetchTimes, StepFigures
from ackline.ledger.offsets import TopicPartition, count
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import StagedFile
from ackline.pipeline.functions import isolation_obstacle
from ackline.spark.application import Application, application_of
from ackline.spark.failure import error_of_spark, is_timestamp_overflow
from ackline.spark.lineage import manifests_of
from ackline.spark.probe import WAIT_SECONDS, WAIT_SECONDS_ONCE, probe_executors, wait_until_sized
from ackline.spark.progress import Progress, remove_counts, reporting
from ackline.worker.files import WrittenFile
from ackline.worker.settings import ReplayJob, TaskFolder, durations_of, open_task_folder
from ackline.worker.streams import Streams, can_be_cancelled, functions_of, load_functions_of_job

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplayResult:
    """What the tasks of a replay did. `files` have the outcomes that are rows, `counts` all of them."""

    files: tuple[WrittenFile, ...]
    counts: Mapping[TopicPartition, Mapping[Outcome, int]]
    calls: int
    """Records that the handler got."""
    fetched_for_retries: int
    """Records that the broker sent for the retries."""
    fetches: Mapping[TopicPartition, FetchTimes] = field(default_factory=dict)
    out_of_range: int = 0
    steps: StepFigures | None = None
    """What the steps did; None with neither `steps` nor `outputs`."""
    staged: tuple[StagedFile, ...] = ()
    unacked: int = 0


def result_of(rows: Iterable[Any], job: ReplayJob) -> ReplayResult:
    """Returns the sums over all tasks' manifests, and logs how many records have a timestamp that is no time. Raises
    FatalError if a tree was not decided, or decided twice, or if a topic-partition has too many or too few outcomes."""
    topology = job.settings.topology
    files: list[WrittenFile] = []
    counts: dict[TopicPartition, dict[Outcome, int]] = {}
    fetches: dict[TopicPartition, FetchTimes] = {}
    steps = StepFigures.of_steps(topology.names if topology else ())
    staged: list[StagedFile] = []
    calls = fetched = out_of_range = trees = unacked = 0
    for row in rows:
        if row.output is not None:
            staged.append(StagedFile(row.output, row.path, row.size, row.rows))
        elif row.step is not None:
            steps.steps[row.step].add(StepCounts(row.executed, row.emitted, row.acked, row.failed, durations_of(row)))
        elif row.path is not None:
            file = WrittenFile(row.path, row.size, row.rows, Outcome(row.outcome), row.stats, row.modification_time)
            files.append(file)
        elif row.topic is None:
            calls, fetched = calls + row.calls, fetched + row.fetched
            out_of_range += row.out_of_range
            trees += row.trees
            unacked += row.unacked
            steps.latency.add(durations_of(row))
        elif row.outcome is None:
            tp = TopicPartition(row.topic, row.partition)
            waited = FetchTimes(row.fetches, row.fetch_seconds, row.fetch_seconds_max)
            fetches[tp] = fetches.get(tp, FetchTimes()) + waited
        else:
            of_tp, outcome = counts.setdefault(TopicPartition(row.topic, row.partition), {}), Outcome(row.outcome)
            of_tp[outcome] = of_tp.get(outcome, 0) + row.rows
    if trees:
        raise FatalError(f"{abs(trees)} trees were begun and not decided, or decided twice; nothing was stored")
    figures = None
    if topology is not None:
        figures, source = steps, steps.steps[SOURCE]
        # Storm counts acked and failed trees at their spout, so the step `source` has them here. They come from the
        # outcomes, because a tree may end in another task than that of its source.
        source.acked = sum(of_tp.get(Outcome.ACKED, 0) for of_tp in counts.values())
        source.failed = sum(
            of_tp.get(word, 0) for of_tp in counts.values() for word in (Outcome.FAILED, Outcome.DROPPED)
        )
    _check_counts(counts, job)
    if out_of_range:
        log.warning(
            "%s: handled %d records whose timestamp is no time from 1970 to 9999, as records without one; let their "
            "producer write milliseconds since 1970",
            job.target.turn, out_of_range,
        )  # fmt: skip
    return ReplayResult(tuple(files), counts, calls, fetched, fetches, out_of_range, figures, tuple(staged), unacked)


def _check_counts(counts: Mapping[TopicPartition, Mapping[Outcome, int]], job: ReplayJob) -> None:
    for tp in {*job.fresh, *job.retries, *counts}:
        outcomes = sum(counts.get(tp, {}).values())
        least = count(job.retries.get(tp, ()))
        most = least + (len(job.fresh[tp]) if tp in job.fresh else 0)
        if not least <= outcomes <= most:
            raise FatalError(f"{tp}: {outcomes} outcomes for {least} to {most} records; nothing was stored", tp=tp)


_probed: set[str] = set()
"""The ids of the applications whose executors have passed."""


def check_replay(spark: SparkSession, job: ReplayJob) -> None:
    """Checks handler, properties, session and executors, and reads no record. Call it before a turn is claimed. Raises
    what `run_replay` would raise for them, and ConfigError for dynamic allocation."""
    handler, application = load_functions_of_job(job.settings), application_of(spark)
    application.check(job, handler)
    try:
        # Lazy: only an action reads. A server analyses the plan now, for its schema.
        _ = manifests_of(spark, with_possible_isolation(job, handler), handler).schema
    except (PySparkException, Py4JError) as error:
        raise error_of_spark(error) from None
    _probe(application, job, handler)


def check_executors(spark: SparkSession, job: ReplayJob) -> None:
    """Checks an application on other machines, and once its executors. Call it before the start of a turn is counted:
    what it raises is no handler's doing. Raises ConfigError, and what Spark's job raises."""
    application = application_of(spark)
    if not application.is_local:
        handler = load_functions_of_job(job.settings)
        application.check(job, handler)
        if application.id not in _probed:
            _probe(application, job, handler)


def _probe(application: Application, job: ReplayJob, handler: Handler | Streams) -> None:
    imports_handler = isinstance(handler, Streams) or tier_of(handler) is not Tier.COLUMN
    root = os.path.dirname(job.target.root.rstrip("/"))
    settings = replace(job.settings, place=application.place)
    probe_executors(application, root, settings, job.kafka, imports_handler, job.max_clock_skew)
    _probed.add(application.id)


def run_replay(spark: SparkSession, job: ReplayJob, on_progress: Progress | None = None) -> ReplayResult:
    """Reads the job's ranges and retries, calls the handler once for each record, and writes the files of outcomes.

    Handles a record again only if Spark's source can't convert a timestamp that no `exact_from` announces: then it
    starts the job again with exact reads, except at most once. Calls `on_progress` from another thread with what
    is handled. Logs how many records have a timestamp that is no time. When it returns, this machine sees all
    files.

    Raises RangeGone if the log no longer holds a range, TransientError if brokers or workers fail, ConfigError for an
    unusable handler, property or executor, and FatalError otherwise. No message quotes a record.
    """
    handler = load_functions_of_job(job.settings)
    job = replace(
        with_possible_isolation(job, handler),
        fresh={tp: fresh for tp, fresh in job.fresh.items() if len(fresh)},
        retries={tp: attempts for tp, attempts in job.retries.items() if count(attempts)},
    )
    if not job.fresh and not job.retries:
        return ReplayResult((), {}, 0, 0)
    application = application_of(spark)
    check_executors(spark, job)
    with (
        # A job on one machine needs no proof that its tasks may start, unless at most once.
        open_task_folder(job.target.root, job.target.turn, job.settings.once)
        if job.folder is None and (job.settings.once or not application.is_local)
        else nullcontext(job.folder) as folder,
        application.watched(),
        reporting(job, None if application.is_local else folder, on_progress) as reported,
    ):
        result = result_of(_collect(spark, reported, handler, folder), job)
    # The caller commits these names next. A name whose file this machine does not see must never get into the log.
    seconds = WAIT_SECONDS_ONCE if job.settings.once else WAIT_SECONDS
    wait_until_sized(job.target.root, {file.path: file.size for file in result.files}, seconds=seconds)
    if job.settings.outputs is not None:
        wait_until_sized(job.settings.outputs.folder, {file.path: file.size for file in result.staged}, seconds=seconds)
    return result


def _collect(spark: SparkSession, job: ReplayJob, handler: Handler | Streams, folder: TaskFolder | None) -> list[Any]:
    try:
        return manifests_of(spark, job, handler, folder).collect()
    except (PySparkException, Py4JError) as error:
        # A second start gives the handler records again, as after a kill, which at most once forbids.
        if job.settings.once or not is_timestamp_overflow(error):
            raise error_of_spark(error, job.fresh) from None
    log.warning("%s: Spark's source can't convert a record's timestamp; the ranges are read exactly", job.target.turn)
    if job.progress is not None:
        remove_counts(job.progress)
    return _collect(spark, replace(job, exact_from=dict.fromkeys(job.fresh, 0)), handler, folder)


def with_possible_isolation(job: ReplayJob, handler: Handler | Streams) -> ReplayJob:
    """Returns the job; turns handler isolation off if only `isolation_reason` wants it and the handler can't have it.
    Logs a warning if the handler is isolated because of `isolation_reason`. Raises ConfigError if the pipeline file
    wants isolation and the handler can't have it."""
    if not job.settings.isolated:
        return job
    if job.settings.isolated_for_timeout:
        if not can_be_cancelled(handler, job.settings):
            job = replace(job, isolation_reason="")  # the file wants it, whatever has happened before
        elif not job.isolation_reason:
            return replace(job, settings=replace(job.settings, isolated=False))
    obstacle = isolation_obstacle(functions_of(handler), job.settings.topology)
    if obstacle is None:
        if job.isolation_reason:
            log.warning("%s: %s; a process of its own runs the handler", job.target.turn, job.isolation_reason)
        return job
    if job.isolation_reason:
        return replace(job, settings=replace(job.settings, isolated=False))
    raise ConfigError(obstacle, key="handler_isolation")
