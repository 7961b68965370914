"""The one lineage of a replay job: Spark reads fresh ranges and due retries, and the tasks return their manifests."""

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ackline.handler import Handler, Tier, tier_of
from ackline.offsets import count
from ackline.spark.exact_fresh import split_ranges, with_fresh
from ackline.spark.handlers.column import NOTED_DDL, as_records, with_outcomes
from ackline.spark.handlers.streams import Streams
from ackline.spark.output.manifest import MANIFEST_DDL
from ackline.spark.rate_limit import rate_per_task
from ackline.spark.read import for_python, fresh_records, large_and_small, source_options, tasks_for
from ackline.spark.retries import split_for_tasks
from ackline.spark.settings import ReplayJob, TaskSettings
from ackline.spark.task_folder import TaskFolder
from ackline.spark.tasks import handle_fresh, handle_retries, read_retries, store_column
from ackline.spark.trees.chain import manifests_of_trees, tasks_of_chain
from ackline.spark.trees.rows import ROWS_DDL


def manifests_of(
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
