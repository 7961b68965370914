"""The column tier: a handler that is a Spark expression, so that records never leave the JVM; their outcomes do.

Its one liberty is to add a column. A generator, a window or an aggregate would multiply, lose or move rows; such a
handler is refused before anything is read.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.errors import ConfigError
from ackline.handler import Handler
from ackline.spark.tasks import TOMBSTONE

RECORD_DDL = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, attempt int"
)
"""What a column handler gets."""
NOTED_DDL = RECORD_DDL + ", note string"
_NAMES = [part.split()[0] for part in RECORD_DDL.replace("<struct<key: string, value: binary>>", "").split(", ")]


def as_records(source: DataFrame) -> DataFrame:
    """Fresh records of Spark's Kafka source in the columns of NOTED_DDL."""
    # Kafka's "no timestamp" is -1 ms.
    timestamp = F.when(F.col("timestamp") >= F.timestamp_seconds(F.lit(0)), F.col("timestamp")).alias("timestamp")
    first, none = F.lit(1).alias("attempt"), F.lit(None).cast("string").alias("note")
    return source.select("topic", "partition", "offset", timestamp, "key", "value", "headers", first, none)


def with_outcomes(records: DataFrame, handler: Handler, path: str, deliver_tombstones: bool, topic: bool) -> DataFrame:
    """topic (if wanted), partition, offset, timestamp, attempt, note and outcome of each row of `records` (NOTED_DDL).

    Raises ConfigError where the handler's answer is not a column over these rows.
    """
    note = F.col("note")
    if not deliver_tombstones:
        note = F.coalesce(note, F.when(F.col("value").isNull(), F.lit(TOMBSTONE)))
    noted = records.select(*_NAMES, note.alias("note"))
    try:
        answered: Any = handler(noted.select(*_NAMES))
        if not isinstance(answered, Column):
            raise ConfigError(
                f"handler {path} returned {type(answered).__name__}, not a column; a column handler returns the "
                f"outcome as a Spark column",
                key="handler",
            )
        outcome = F.when(F.col("note").isNull(), answered.cast("string")).alias("outcome")
        kept = ["topic"] * topic + ["partition", "offset", "timestamp", "attempt", "note"]
        outcomes = noted.select(*kept, outcome)
        plain = _is_plain(outcomes, noted)
    except (PySparkException, Py4JError) as error:
        raise ConfigError(
            f"handler {path}: Spark can't resolve its column ({type(error).__name__})", key="handler"
        ) from None
    if not plain:
        raise ConfigError(
            f"handler {path} does more than add a column (explode, a window, an aggregate?): its rows would no longer "
            f"be the records",
            key="handler",
        )
    return outcomes


def _is_plain(outcomes: DataFrame, records: DataFrame) -> bool:
    """Whether `outcomes` is a projection of `records` and nothing else."""
    analyzed: Any = outcomes._jdf.queryExecution().analyzed()
    given: Any = records._jdf.queryExecution().analyzed()
    return bool(
        analyzed.nodeName() == "Project"
        and analyzed.children().size() == 1
        and analyzed.children().head().equals(given)
    )
