"""Records as a DataFrame: fresh ranges through Spark's Kafka source, each with its explicit start and end.

Never `latest`, which every action resolves anew, never a consumer group, and data loss is an error: that the job
succeeds proves that the ranges were read whole, gaps included.
"""

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.kafka.config import java_properties
from ackline.offsets import OffsetRange, TopicPartition

Ranges = Mapping[TopicPartition, OffsetRange]

RECORDS_A_TASK = 250_000
"""At most so many records a task, for progress and memory; fewer where that gives every core something to do."""
_WORTH_A_TASK = 25_000

# These took the source from 0.6 to 1.0 million records a second.
TUNED = {
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "check.crcs": "false",
}
POLL_TIMEOUT_MS = 15_000
"""Offsets that never come (the log was cut meanwhile) are noticed after this; Spark's default is two minutes."""
# Spark sets these itself, and refuses to be told.
_SPARKS_OWN = ("group.id", "auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit")


def source_options(kafka: Mapping[str, str], isolation: str) -> dict[str, str]:
    """Options of Spark's Kafka source for librdkafka's properties `kafka`. Holds secrets.

    Raises ConfigError for a property that Java's client does not have.
    """
    java = TUNED | java_properties(kafka) | {"isolation.level": isolation}
    return {f"kafka.{name}": value for name, value in java.items() if name not in _SPARKS_OWN} | {
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
        "fetchOffset.numRetries": "5",
        "fetchOffset.retryIntervalMs": "200",
    }


def fresh_records(spark: SparkSession, ranges: Ranges, options: Mapping[str, str]) -> DataFrame:
    """The source's columns of exactly `ranges`; lazy, so one action on it reads once."""
    reader = spark.read.format("kafka").options(**options)
    return (
        reader.option("assign", json.dumps(_by_topic((tp, tp.partition) for tp in ranges)))
        .option("startingOffsets", _offsets({tp: one.start for tp, one in ranges.items()}))
        .option("endingOffsets", _offsets({tp: one.end for tp, one in ranges.items()}))
        .option("minPartitions", tasks_for(ranges, spark.sparkContext.defaultParallelism))
        .load()
    )


def tasks_for(ranges: Ranges, cores: int) -> int:
    """How many tasks to split `ranges` into; the source takes at least one a range."""
    total = sum(len(one) for one in ranges.values())
    tasks = max(-(-total // RECORDS_A_TASK), min(cores, total // _WORTH_A_TASK))
    return max(len(ranges), tasks)


def for_python(records: DataFrame, with_topic: bool) -> DataFrame:
    """What a Python worker is given of the source's columns (`rows.from_spark` reads it).

    A topic that all share is left out; headers go as JSON, since Spark moves nested columns to Python very slowly.
    """
    topic = ["topic"] if with_topic else []
    headers = F.when(F.col("headers").isNotNull(), F.to_json("headers")).alias("headers")
    return records.select(*topic, "partition", "offset", "timestamp", "key", "value", headers)


def _by_topic(pairs: Iterable[tuple[TopicPartition, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp, partition in pairs:
        topics.setdefault(tp.topic, []).append(partition)
    return topics


def _offsets(at: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in at.items():
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(topics)
