"""Runs one replay as one Spark job: one lineage and one action, over fresh ranges and due retries.

A second action would read the records and call the handler again. The tasks write files of outcomes, and this module
returns their names. The outcomes count once the caller has committed the files.
"""

import logging
import os
import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ackline.errors import ConfigError
from ackline.handler import Handler, Tier, tier_of
from ackline.offsets import count
from ackline.spark.failure import error_of_spark, is_timestamp_overflow
from ackline.spark.handlers.load import load_functions_of_job
from ackline.spark.handlers.streams import Streams
from ackline.spark.job_result import ReplayResult, check_counts, result_of
from ackline.spark.lineage import manifests_of
from ackline.spark.output.outcome_files import OutcomeTarget
from ackline.spark.probe import probe_executors
from ackline.spark.progress import Progress, report_progress
from ackline.spark.settings import KafkaSettings, ReplayJob, ReplaySettings
from ackline.spark.shared_folder import unusable_folder
from ackline.spark.task_folder import TaskFolder, open_task_folder
from ackline.spark.trees.chain import one_job
from ackline.spark.visible_files import WAIT_SECONDS, WAIT_SECONDS_ONCE, wait_until_sized, wait_until_visible
from ackline.spark_master import is_local
from ackline.spark_properties import DYNAMIC_ALLOCATION, DYNAMIC_ALLOCATION_REASON, is_true
from ackline.stream_functions import StreamFunctions, isolation_obstacle

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
        manifests_of(spark, _with_possible_isolation(job, handler), handler)  # lazy: only an action reads
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
            result = result_of(_collect(spark, job, handler, folder), job.settings.topology)
    except OSError as error:
        raise unusable_folder(job.target.root, error) from None
    check_counts(result, job)
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
            return manifests_of(spark, job, handler, folder).collect()
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
    obstacle = isolation_obstacle(functions)
    if obstacle is None:
        if job.isolation_reason:
            log.warning("%s: %s; a process of its own runs the handler", job.target.turn, job.isolation_reason)
        return job
    if job.isolation_reason:
        return replace(job, settings=replace(job.settings, isolated=False))
    raise ConfigError(obstacle, key="handler_isolation")
