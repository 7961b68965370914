"""Reads fresh ranges as a DataFrame through Spark's Kafka source, each with its explicit start and end.

The source never gets `latest`, which each action resolves anew, nor a consumer group, and data loss is an error. So the
success of the job proves that the source read the ranges whole, gaps included. Several small ranges share a task, which
reads one after the other; a task that failed in any of them fails the job.
"""

import json
from collections.abc import Iterable, Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.kafka.config import java_properties
from ackline.offsets import OffsetRange, TopicPartition

Ranges = Mapping[TopicPartition, OffsetRange]

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
POLL_TIMEOUT_MS = 15_000
"""The source fails after this time if an offset does not come, for example because the log was truncated while it read.
Spark's default is two minutes."""
# Spark sets these itself, and refuses options for them.
_SET_BY_SPARK = ("group.id", "auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit")


def source_options(kafka: Mapping[str, str], isolation: str) -> dict[str, str]:
    """Returns the options of Spark's Kafka source for librdkafka's properties `kafka`. They hold secrets.

    Raises ConfigError for a property that Java's client does not have.
    """
    java = TUNED | java_properties(kafka) | {"isolation.level": isolation}
    return {f"kafka.{name}": value for name, value in java.items() if name not in _SET_BY_SPARK} | {
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "200",
    }


def fresh_records(spark: SparkSession, ranges: Ranges, options: Mapping[str, str]) -> DataFrame:
    """Returns the source's columns of exactly `ranges`. The DataFrame is lazy: each action reads the ranges once.

    A task yields the records of one range in the order of their offsets, then those of the next range.
    """
    cores = spark.sparkContext.defaultParallelism
    large, small = large_and_small(ranges)
    parts = []
    if large:
        parts.append(_source(spark, large, options, _tasks_for_large(large, cores)))
    if small:
        # No shuffle, and no second read: a task of the result iterates over its tasks of the source.
        parts.append(_source(spark, small, options, len(small)).coalesce(_tasks_for_small(small, cores)))
    return reduce(DataFrame.union, parts)


def _source(spark: SparkSession, ranges: Ranges, options: Mapping[str, str], tasks: int) -> DataFrame:
    return (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps(_by_topic((tp, tp.partition) for tp in ranges)))
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
    """Selects what a Python worker gets of the source's columns; `ackline.spark.records.from_spark` takes it.

    The topic is left out if all records share one. Headers become JSON, because Spark moves nested columns to Python
    very slowly.
    """
    topic = ["topic"] if with_topic else []
    headers = F.when(F.col("headers").isNotNull(), F.to_json("headers")).alias("headers")
    return records.select(*topic, "partition", "offset", "timestamp", "key", "value", headers)


def _by_topic(pairs: Iterable[tuple[TopicPartition, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp, partition in pairs:
        topics.setdefault(tp.topic, []).append(partition)
    return topics


def _offsets(offsets: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(topics)
