"""Reads fresh ranges as a DataFrame through Spark's Kafka source, each with its explicit start and end.

The source never gets `latest`, which each action resolves anew, nor a consumer group, and data loss is an error. So the
success of the job proves that the source read the ranges whole, gaps included.
"""

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.kafka.config import java_properties
from ackline.offsets import OffsetRange, TopicPartition

Ranges = Mapping[TopicPartition, OffsetRange]

MAX_RECORDS_PER_TASK = 250_000
"""A task reads at most this many records, for progress and memory; fewer if that keeps more cores busy."""
_MIN_RECORDS_PER_TASK = 25_000

# With these the source reads 1.0 million records a second instead of 0.6 million.
TUNED = {
    "max.poll.records": "20000",
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "check.crcs": "true",  # Java's default, named here because a broker hands out what its disk holds unchecked
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
    """Returns the source's columns of exactly `ranges`. The DataFrame is lazy: each action reads the ranges once."""
    reader = spark.read.format("kafka").options(**options)
    return (
        reader.option("assign", json.dumps(_by_topic((tp, tp.partition) for tp in ranges)))
        .option("startingOffsets", _offsets({tp: fresh.start for tp, fresh in ranges.items()}))
        .option("endingOffsets", _offsets({tp: fresh.end for tp, fresh in ranges.items()}))
        .option("minPartitions", tasks_for(ranges, spark.sparkContext.defaultParallelism))
        .load()
    )


def tasks_for(ranges: Ranges, cores: int) -> int:
    """Returns how many tasks read `ranges`. The source starts at least one for each range."""
    total = sum(len(fresh) for fresh in ranges.values())
    tasks = max(-(-total // MAX_RECORDS_PER_TASK), min(cores, total // _MIN_RECORDS_PER_TASK))
    return max(len(ranges), tasks)


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
