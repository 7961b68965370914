"""The steps of a pipeline as one chain of Spark stages, with the acker at its end."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ackline.spark.output.manifest import MANIFEST_DDL
from ackline.spark.settings import TaskSettings
from ackline.spark.trees.acker import by_root, store_roots
from ackline.spark.trees.rows import RowFormat
from ackline.spark.trees.step_run import handle_step
from ackline.topology import Step, Topology


def manifests_of_trees(rows: DataFrame, settings: TaskSettings, topology: Topology) -> DataFrame:
    """Returns the manifests of all tasks, given the rows of the tasks that read the records.

    There is no branch and no join, so one action runs each handler once for each tuple. Each step with `group_by` costs
    one exchange, and the acker one. Rows that are not addressed to a step pass through it.
    """
    ddl = RowFormat(len(topology.steps)).ddl
    for step in topology.steps:
        if step.grouped:
            rows = _exchange(rows, step).mapInArrow(handle_step(settings, step), ddl)
    return by_root(rows, len(topology.steps)).mapInArrow(store_roots(settings), MANIFEST_DDL)


def _exchange(rows: DataFrame, step: Step) -> DataFrame:
    rows = rows.repartition("route")
    if not step.join:
        return rows
    # Null for all other rows, which so come first.
    key = F.when(F.col("step") == step.number, F.col("key"))
    return rows.sortWithinPartitions(key, "tp", "offset", "attempt", "edge")
