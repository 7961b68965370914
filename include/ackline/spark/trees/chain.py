"""The steps of a pipeline as one chain of Spark stages, with the acker at its end."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.spark.output.manifest import MANIFEST_DDL
from ackline.spark.settings import TaskSettings
from ackline.spark.trees.acker import by_block, store_roots
from ackline.spark.trees.rows import ROWS_DDL
from ackline.spark.trees.step_run import handle_step
from ackline.topology import Step, Topology

_ADAPTIVE = "spark.sql.adaptive.enabled"

_FEW_RECORDS = 5_000
_MANY_RECORDS = 50_000
"""A task takes the tuples of _FEW_RECORDS records, or of more once each core has a task, but of at most
_MANY_RECORDS."""


@contextmanager
def one_job(spark: SparkSession) -> Iterator[None]:
    """Runs a chain in the block as one Spark job.

    Adaptive execution would make each exchange a job of its own. If an executor got lost between two of them, Spark
    would make its part again in a new stage, whose limit of attempts begins anew: parts of two executions would meet.
    """
    before = spark.conf.get(_ADAPTIVE)
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        spark.conf.set(_ADAPTIVE, before or "true")


def tasks_of_chain(records: int, cores: int) -> int:
    """Returns into how many parts an exchange divides the tuples of `records` records, on `cores` cores."""
    return max(1, min(cores, -(-records // _FEW_RECORDS)), -(-records // _MANY_RECORDS))


def manifests_of_trees(rows: DataFrame, settings: TaskSettings, topology: Topology, parts: int) -> DataFrame:
    """Returns the manifests of all tasks, given the rows of the tasks that read the records. Each exchange makes so
    many `parts`.

    There is no branch and no join, so one action runs each handler once for each tuple. Each step with `group_by` costs
    one exchange, and the acker one. Rows that are not addressed to a step pass through it.
    """
    for step in topology.steps:
        if step.grouped:
            rows = _exchange(rows, step, parts).mapInArrow(handle_step(settings, step), ROWS_DDL)
    return by_block(rows, parts).mapInArrow(store_roots(settings), MANIFEST_DDL)


def _exchange(rows: DataFrame, step: Step, parts: int) -> DataFrame:
    rows = rows.repartition(parts, "key")
    if not step.join:
        return rows
    # Null for all other rows, which so come first.
    key = F.when(F.col("step") == step.number, F.col("key"))
    return rows.sortWithinPartitions(key, "tp", "offset", "attempt", "edge")
