"""The one lineage of a replay job: fresh ranges, due retries, the stages of steps, and the acker.

Spark's Kafka source reads the fresh ranges, each with its explicit start and end. It never gets `latest`, which each
action resolves anew, nor a consumer group, and data loss is an error. So the success of the job proves that the source
read the ranges whole, gaps included. Several small ranges share a task, which reads one after the other; a task that
failed in any of them fails the job. Tasks read due retries themselves (`ackline.worker.tasks`).

The rows of the lineage are the manifests of its tasks. With steps, the rows of the tasks that read records go through
one chain of stages, a stage for each step with `group_by`, and the acker is at its end.

In the column tier the handler is a Spark expression: records stay in the JVM, and only their outcomes leave it. A
generator, a window or an aggregate would multiply, drop or reorder rows, so it is refused before anything is read.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema

from ackline.errors import ConfigError
from ackline.handler import Handler, Tier, tier_of
from ackline.kafka.config import java_properties
from ackline.ledger.offsets import OffsetRange, TopicPartition, count
from ackline.ledger.order import Order
from ackline.ledger.outcomes import LATEST_MILLISECOND, NO_TIMESTAMP
from ackline.pipeline.topology import Step, Topology
from ackline.spark.application import application_of
from ackline.trees.acker import by_block, store_roots
from ackline.trees.rows import ROWS_SCHEMA
from ackline.trees.stages import handle_step, open_run
from ackline.worker.outcomes import OUTCOME_WORDS
from ackline.worker.records import OUT_OF_RANGE, RECORD_COLUMNS
from ackline.worker.run import Note, rate_per_task
from ackline.worker.settings import MANIFEST_SCHEMA, ReplayJob, ReplaySettings, TaskFolder, TaskSettings
from ackline.worker.streams import Streams, gets_batches
from ackline.worker.tasks import (
    NOTED_COLUMNS,
    Retries,
    assign_reads,
    handle_fresh,
    handle_retries,
    read_retries,
    split_for_tasks,
    store_column,
)

Ranges = Mapping[TopicPartition, OffsetRange]
MANIFESTS, ROWS, NOTED_RECORDS = map(from_arrow_schema, (MANIFEST_SCHEMA, ROWS_SCHEMA, NOTED_COLUMNS))

MAX_RECORDS_PER_TASK = 250_000
"""A task reads at most this many records, for progress and memory; fewer if that keeps more cores busy."""
_MIN_RECORDS_PER_TASK = 25_000
_SMALL = 10_000
"""A range of fewer records shares a task with others: a task of its own costs more than reading them."""

# With the sizes the source reads 1.0 million records a second instead of 0.6 million. The other settings are for many
# small ranges, because the source creates a consumer for each range. After the last record the consumer fetches ahead,
# and its next request waits until the broker has answered: half a second by default, at the end of the log. JMX and
# metrics for the broker, which Ackline does not read, are half the cost of a consumer.
TUNED = {
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "check.crcs": "true",  # Java's default, named here because a broker hands out what its disk holds unchecked
    "fetch.max.wait.ms": "10",
    "auto.include.jmx.reporter": "false",
    "enable.metrics.push": "false",
}
_API_TIMEOUT_MS = 120_000
"""As long as the source waits for a record. It asks for the log's bounds after each fetch, and a leader that throttles
a client for a quota takes no other request of it meanwhile. Java's clients refuse less than the time of a request."""
# Spark sets these itself, and refuses options for them.
_SET_BY_SPARK = ("group.id", "auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit")


def source_options(kafka: Mapping[str, str], isolation: str) -> dict[str, str]:
    """Returns the options of Spark's Kafka source for librdkafka's properties `kafka`. They hold secrets. Raises
    ConfigError for a property that Java's client does not have.

    The source waits `spark.network.timeout` for an offset, two minutes by default, and each record begins that anew.
    """
    java = TUNED | java_properties(kafka) | {"isolation.level": isolation}
    java["default.api.timeout.ms"] = str(max(_API_TIMEOUT_MS, int(java.get("request.timeout.ms", 0))))
    return {f"kafka.{name}": value for name, value in java.items() if name not in _SET_BY_SPARK} | {
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "200",
    }


def fresh_records(spark: SparkSession, ranges: Ranges, options: Mapping[str, str], whole: bool = False) -> DataFrame:
    """Returns the source's columns of exactly `ranges`. The DataFrame is lazy: each action reads the ranges once. A
    task yields the records of one range in the order of their offsets, then those of the next range. One task reads all
    of a range if they stay `whole`."""
    cores = application_of(spark).cores
    large, small = large_and_small(ranges)
    parts = []
    if large:
        # The source splits ranges only to make more parts of them than there are ranges.
        parts.append(_source(spark, large, options, len(large) if whole else _tasks_for_large(large, cores)))
    if small:
        # No shuffle, and no second read: a task of the result iterates over its tasks of the source.
        parts.append(_source(spark, small, options, len(small)).coalesce(_tasks_for_small(small, cores)))
    return reduce(DataFrame.union, parts)


def _source(spark: SparkSession, ranges: Ranges, options: Mapping[str, str], tasks: int) -> DataFrame:
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({topic: [tp.partition for tp in tps] for topic, tps in _by_topic(ranges)}))
        .option("startingOffsets", _offsets({tp: fresh.start for tp, fresh in ranges.items()}))
        .option("endingOffsets", _offsets({tp: fresh.end for tp, fresh in ranges.items()}))
        .option("minPartitions", tasks)
        .load()
    )


def tasks_for(ranges: Ranges, cores: int) -> int:
    """Returns how many tasks read `ranges`; the source may start up to one more for each large range."""
    large, small = large_and_small(ranges)
    return (_tasks_for_large(large, cores) if large else 0) + (_tasks_for_small(small, cores) if small else 0)


def large_and_small(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Returns the ranges that have tasks of their own, and those that share tasks."""
    small = {tp: fresh for tp, fresh in ranges.items() if len(fresh) < _SMALL}
    return {tp: fresh for tp, fresh in ranges.items() if tp not in small}, small


def _tasks_for_large(ranges: Ranges, cores: int) -> int:
    total = sum(map(len, ranges.values()))
    tasks = max(-(-total // MAX_RECORDS_PER_TASK), min(cores, total // _MIN_RECORDS_PER_TASK))
    return max(len(ranges), tasks)


def _tasks_for_small(ranges: Ranges, cores: int) -> int:
    # Spark gives each task about as many ranges as the others, whatever their size. As no range is large, no task is.
    total = sum(map(len, ranges.values()))
    return min(len(ranges), max(-(-total // MAX_RECORDS_PER_TASK), cores))


def for_python(records: DataFrame, with_topic: bool) -> DataFrame:
    """Selects what a Python worker gets of the source's columns; `ackline.worker.records.from_spark` takes it. The
    topic is left out if all records share one. Headers become JSON, because Spark moves nested columns to Python very
    slowly."""
    topic = ["topic"] if with_topic else []
    headers = F.when(F.col("headers").isNotNull(), F.to_json("headers")).alias("headers")
    return records.select(*topic, "partition", "offset", "timestamp", "key", "value", headers)


def _by_topic(tps: Iterable[TopicPartition]) -> Iterable[tuple[str, Iterable[TopicPartition]]]:
    return groupby(sorted(tps), lambda tp: tp.topic)


def _offsets(offsets: Mapping[TopicPartition, int]) -> str:
    return json.dumps({topic: {str(tp.partition): offsets[tp] for tp in tps} for topic, tps in _by_topic(offsets)})


_FEW_TUPLES, _MANY_TUPLES = 50_000, 500_000
"""A task takes _FEW_TUPLES, or more once each core has a task, but at most _MANY_TUPLES."""
_TUPLES_A_RECORD = 10
"""How many tuples of a record are assumed at least: so few cost little, and the first turn has no measured number."""
_MOST_PARTS = 16
"""The most parts, for each core, into which large trees divide a turn of few records: two exchanges in a row cost the
square of their parts."""


def tasks_of_chain(records: int, cores: int, tuples_a_record: float | None = None) -> int:
    """Returns into how many parts an exchange divides the tuples of `records` records, on `cores` cores."""
    by_records = _parts_of(records * _TUPLES_A_RECORD, cores)
    by_tuples = _parts_of(math.ceil(records * (tuples_a_record or 0)), cores)
    return max(by_records, min(by_tuples, _MOST_PARTS * cores))


def _parts_of(tuples: int, cores: int) -> int:
    return max(1, min(cores, -(-tuples // _FEW_TUPLES)), -(-tuples // _MANY_TUPLES))


def manifests_of_trees(rows: DataFrame, settings: TaskSettings, topology: Topology, parts: int) -> DataFrame:
    """Returns the manifests of all tasks, given the rows of the tasks that read the records. Each exchange makes so
    many `parts`. There is no branch and no join, so one action runs each handler once for each tuple. Each step with
    `group_by` costs one exchange, and the acker one. Rows that are not addressed to a step pass through it."""
    for step in topology.steps:
        if step.grouped:
            rows = _exchange(rows, step, parts).mapInArrow(handle_step(settings, step), ROWS)
    return by_block(rows, parts).mapInArrow(store_roots(settings), MANIFESTS)


def _exchange(rows: DataFrame, step: Step, parts: int) -> DataFrame:
    # Parcels have a bucket in `tp`. By its hash, two buckets could come to one part.
    is_mine = F.col("step") == step.number
    rows = rows.repartitionById(parts, F.when(is_mine, F.col("tp")).otherwise(F.hash("key")))
    # Null for all other rows, so these come first.
    return rows.sortWithinPartitions(F.when(is_mine, F.col("tp"))) if step.join else rows


def manifests_of(
    spark: SparkSession, job: ReplayJob, handler: Handler | Streams, folder: TaskFolder | None = None
) -> DataFrame:
    """Returns the one lineage of the job: its rows are the manifests of all tasks."""
    job = assign_reads(job)
    topics = {tp.topic for tp in [*job.fresh, *job.retries]}
    task = TaskSettings(
        job.target,
        replace(job.settings, place=application_of(spark).place),
        Tier.RECORD if isinstance(handler, Streams) else tier_of(handler),
        topics.pop() if len(topics) == 1 else None,
        None if job.max_rate is None else _rate_per_task(spark, job, job.max_rate),
        folder,
        tuple(sorted({*job.fresh, *job.retries})),
        progress=job.progress,
        waiting=job.waiting,
        gets_batches=gets_batches(handler),
    )
    offsets = sum(map(len, job.fresh.values())) + sum(map(count, job.retries.values()))
    parts_of_chain = tasks_of_chain(offsets, application_of(spark).cores, job.tuples_a_record)
    task = replace(task, parts=parts_of_chain)
    sources = []
    if job.fresh:
        options = source_options(job.kafka.properties, job.kafka.isolation_level)
        sources.append(fresh_records(spark, job.fresh, options, _keeps_whole(job)))
    if not isinstance(handler, Streams) and task.tier is Tier.COLUMN:
        return _manifests_of_column(spark, job, handler, task, sources)
    topology = job.settings.topology
    kind = MANIFESTS if topology is None else ROWS
    rows = [for_python(source, task.topic is None).mapInArrow(handle_fresh(task, open_run), kind) for source in sources]
    if job.retries:
        parts, indexes = _retry_parts(spark, job)
        rows.append(indexes.mapInArrow(handle_retries(task, job.kafka, parts, open_run), kind))
    union = reduce(DataFrame.union, rows)
    if topology is None:
        return union
    return manifests_of_trees(union, task, topology, parts_of_chain)


def _manifests_of_column(
    spark: SparkSession, job: ReplayJob, handler: Handler, task: TaskSettings, sources: Sequence[DataFrame]
) -> DataFrame:
    """Returns the manifests of a job whose handler is a column: the JVM computes the outcomes, and the tasks only read
    retries before it and store outcomes after it."""
    records = [as_records(source) for source in sources]
    if job.retries:
        parts, indexes = _retry_parts(spark, job)
        records.append(indexes.mapInArrow(read_retries(job.kafka, parts), NOTED_RECORDS))
    outcomes = with_outcomes(reduce(DataFrame.union, records), handler, job.settings, topic=task.topic is None)
    return outcomes.mapInArrow(store_column(task), MANIFESTS)


def _rate_per_task(spark: SparkSession, job: ReplayJob, max_rate: int) -> float:
    """Returns each task's share of `max_rate`. A cluster's executors come and go, so there the share assumes that all
    tasks run at the same time."""
    application = application_of(spark)
    cores = application.cores
    # The source may round up the number of parts of each large range.
    large, small = large_and_small(job.fresh)
    tasks = tasks_for(small if _keeps_whole(job) else job.fresh, cores) + len(large) + len(_parts(job, cores))
    return rate_per_task(max_rate, tasks, application.fixed_cores)


def _retry_parts(spark: SparkSession, job: ReplayJob) -> tuple[Any, DataFrame]:
    """Returns the retries of each task as a shared list, and a DataFrame with one row for each task: its index."""
    application = application_of(spark)
    parts = _parts(job, application.cores)
    return application.share(parts), spark.range(0, len(parts), 1, len(parts))


def _parts(job: ReplayJob, cores: int) -> Sequence[Retries]:
    return split_for_tasks(job.retries, cores, _keeps_whole(job))


def _keeps_whole(job: ReplayJob) -> bool:
    """Returns whether one task handles all records of a topic-partition: a record may wait for any before it."""
    return job.settings.order is not Order.NONE


def as_records(source: DataFrame) -> DataFrame:
    """Selects the columns of NOTED_RECORDS from fresh records of Spark's Kafka source."""
    milliseconds = F.unix_millis("timestamp")
    is_time = milliseconds.between(0, LATEST_MILLISECOND)
    timestamp = F.when(is_time, F.col("timestamp")).alias("timestamp")
    out_of_range = (~is_time & (milliseconds != NO_TIMESTAMP)).alias("out_of_range")
    first, none = F.lit(1).alias("attempt"), F.lit(None).cast("int").alias("note")
    return source.select(
        "topic", "partition", "offset", timestamp, "key", "value", "headers", first, none, out_of_range
    )


def with_outcomes(records: DataFrame, handler: Handler, settings: ReplaySettings, *, topic: bool) -> DataFrame:
    """Returns what `ackline.worker.run.TaskRun.store_column` takes for each row of `records`, which has the columns of
    NOTED_RECORDS: partition, offset, timestamp, attempt and outcome. All are numbers, which cost less to move and
    to take apart than texts. The timestamp is as in `ackline.worker.records.Records`. With `topic`, that column
    comes first; if the pipeline stores hashes of keys, the key is kept, too. Raises ConfigError if the handler returned
    anything else than a column over these rows; at most once, also if the column calls a user function."""
    path, application = str(settings.handler), application_of(records.sparkSession)
    note = F.col("note")
    if not settings.deliver_tombstones:
        note = F.coalesce(note, F.when(F.col("value").isNull(), F.lit(int(Note.TOMBSTONE))))
    noted = records.select(*RECORD_COLUMNS.names, note.alias("note"), "out_of_range")
    try:
        answer: Any = handler(noted.select(*RECORD_COLUMNS.names))
        if not isinstance(answer, Column):
            raise ConfigError(
                f"handler {path} returned {type(answer).__name__}, not a column: return the outcome as a Spark column",
                key="handler",
            )
        words = F.array(*map(F.lit, OUTCOME_WORDS.to_pylist()))
        # A function of the whole answer evaluates it once, where a comparison with each word would do so for each.
        outcome = F.coalesce("note", F.array_position(words, answer.cast("string")).cast("int"), F.lit(0))
        time = F.coalesce(F.unix_micros("timestamp"), F.lit(NO_TIMESTAMP))
        timestamp = F.when(F.col("out_of_range"), F.lit(OUT_OF_RANGE)).otherwise(time)
        key = ["key"] if settings.key_hash_secret is not None else []
        outcomes = noted.select(
            *["topic"] * topic, "partition", "offset", timestamp.alias("timestamp"), "attempt",
            outcome.alias("outcome"), *key,
        )  # fmt: skip
        adds_only_columns = application.adds_only_columns(outcomes, noted)
    except (PySparkException, Py4JError) as error:
        raise ConfigError(
            f"handler {path}: Spark can't resolve the column that it returned ({type(error).__name__})", key="handler"
        ) from None
    if not adds_only_columns:
        raise ConfigError(
            f"handler {path} does more than add a column (explode, a window, an aggregate?), so its rows would not "
            f"match the records: return an expression over single rows",
            key="handler",
        )
    if settings.once and (function := application.user_function(outcomes)):
        raise ConfigError(
            f"handler {path} calls a {function} function of a user: under at_most_once Spark may call it before the "
            f"marker of its task is there, so a task that Spark repeats would call it again. Use Spark's own functions "
            f"alone, or a record or Arrow handler",
            key="handler",
        )
    return outcomes
