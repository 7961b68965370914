"""The column tier: a handler that is a Spark expression. Records stay in the JVM, and only their outcomes leave it.

A column handler may only add a column. A generator, a window or an aggregate would multiply, drop or reorder rows, so
such a handler is refused before anything is read.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.errors import ConfigError
from ackline.handler import Handler
from ackline.ledger.outcomes import LATEST_MILLISECOND, NO_TIMESTAMP
from ackline.worker.run import TOMBSTONE
from ackline.worker.settings import ReplaySettings

RECORD_DDL = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, attempt int"
)
"""The columns that a column handler gets."""
NOTED_DDL = RECORD_DDL + ", note string, out_of_range boolean"
_COLUMNS = [part.split()[0] for part in RECORD_DDL.replace("<struct<key: string, value: binary>>", "").split(", ")]


def as_records(source: DataFrame) -> DataFrame:
    """Selects the columns of NOTED_DDL from fresh records of Spark's Kafka source."""
    milliseconds = F.unix_millis("timestamp")
    is_time = milliseconds.between(0, LATEST_MILLISECOND)
    timestamp = F.when(is_time, F.col("timestamp")).alias("timestamp")
    out_of_range = (~is_time & (milliseconds != NO_TIMESTAMP)).alias("out_of_range")
    first, none = F.lit(1).alias("attempt"), F.lit(None).cast("string").alias("note")
    return source.select(
        "topic", "partition", "offset", timestamp, "key", "value", "headers", first, none, out_of_range
    )


def with_outcomes(records: DataFrame, handler: Handler, settings: ReplaySettings, *, topic: bool) -> DataFrame:
    """Returns the columns partition, offset, timestamp, attempt, note, out_of_range and outcome for each row of
    `records`, which has those of NOTED_DDL. With `topic`, that column comes first; if the pipeline stores hashes of
    keys, the key is kept, too.

    Raises ConfigError if the handler returned anything else than a column over these rows; at most once, also if the
    column calls a user function.
    """
    path = str(settings.handler)
    note = F.col("note")
    if not settings.deliver_tombstones:
        note = F.coalesce(note, F.when(F.col("value").isNull(), F.lit(TOMBSTONE)))
    noted = records.select(*_COLUMNS, note.alias("note"), "out_of_range")
    try:
        answer: Any = handler(noted.select(*_COLUMNS))
        if not isinstance(answer, Column):
            raise ConfigError(
                f"handler {path} returned {type(answer).__name__}, not a column: return the outcome as a Spark column",
                key="handler",
            )
        outcome = F.when(F.col("note").isNull(), answer.cast("string")).alias("outcome")
        key = ["key"] if settings.key_hash_secret is not None else []
        kept = ["topic"] * topic + ["partition", "offset", "timestamp", "attempt", "note", "out_of_range", *key]
        outcomes = noted.select(*kept, outcome)
        adds_only_columns = _is_projection(outcomes, noted)
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
    if settings.once and (function := _user_function(outcomes)):
        raise ConfigError(
            f"handler {path} calls a {function} function of a user: under at_most_once Spark may call it before the "
            f"marker of its task is there, so a task that Spark repeats would call it again. Use Spark's own functions "
            f"alone, or a record or Arrow handler",
            key="handler",
        )
    return outcomes


def _user_function(outcomes: DataFrame) -> str | None:
    """Returns the kind of user function in the columns that were added; None without one.

    Spark evaluates such a function below the Python stage that creates the marker of its part, some batches ahead of
    it. Spark's own functions have no side effects, so nothing is lost or repeated if they are evaluated twice.
    """
    jvm: Any = outcomes.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    columns: Any = outcomes._jdf.queryExecution().analyzed().projectList()
    for kind, pattern in (("Python", patterns.PYTHON_UDF()), ("JVM", patterns.SCALA_UDF())):
        if any(columns.apply(i).containsPattern(pattern) for i in range(columns.size())):
            return kind
    return None


def _is_projection(outcomes: DataFrame, records: DataFrame) -> bool:
    """Returns whether `outcomes` is a projection of `records` and nothing else."""
    analyzed: Any = outcomes._jdf.queryExecution().analyzed()
    source: Any = records._jdf.queryExecution().analyzed()
    return bool(
        analyzed.nodeName() == "Project"
        and analyzed.children().size() == 1
        and analyzed.children().head().equals(source)
    )
