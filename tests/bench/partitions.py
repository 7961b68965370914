"""`make bench`, fourth part: a run over many partitions with few records each, in a warm session on two cores.

Most of the cost is that of a partition, not of a record: a Kafka consumer, rows of the plan and the settlement, files.
"""

import argparse
import os
import resource
import statistics
import sys
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from ackline.local.broker import Broker
from ackline.spark.lineage import tasks_for
from ackline.spark.session import open_session
from tests.bench.figures import MIB, Figure, descendants_peak, show_figures, sizes_from
from tests.bench.sides import ackline_run
from tests.bench.topic import Subject, produce

PARTITIONS, RECORDS = 1_000, 100
AIM = 30.0
"""Seconds of a run over PARTITIONS partitions with RECORDS records each."""


def main() -> None:
    options = sizes_from(
        "partitions", __doc__, partitions=(PARTITIONS, "partitions of the topic"),
        records=(RECORDS, "records of each partition"), runs=(3, "measured runs, after one to warm up"),
    )  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("ACKLINE_SPARK_MASTER", "local[2]")
    console = Console()
    with TemporaryDirectory(prefix="ackline-bench-") as folder, Broker(Path(folder) / "broker", heap_mb=1024) as broker:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic, options.partitions)
        total = options.partitions * options.records
        produce(broker.bootstrap, topic, total, options.partitions)
        spark = open_session("ackline-bench")
        try:
            subject = Subject(broker.bootstrap, topic, options.partitions, total, Path(folder))
            seconds = []
            for number in range(options.runs + 1):
                begun = time.perf_counter()
                handled = ackline_run(spark, subject)
                if handled != total:
                    sys.exit(f"handled {handled} of {total} records")
                seconds.append(time.perf_counter() - begun)
                console.print(f"run {number}: {seconds[-1]:.2f} s", style="dim")
            jvm = descendants_peak(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
            tasks = tasks_for(subject.ranges, spark.sparkContext.defaultParallelism)
            files = len(list(Path(folder).glob("*/**/outcomes/**/*.parquet"))) / len(seconds) / tasks
        finally:
            spark.stop()
    show(console, options, seconds[1:], files, tasks, jvm)


def show(
    console: Console, options: argparse.Namespace, seconds: list[float], files: float, tasks: int, jvm: int
) -> None:
    spread = f"{min(seconds):.1f} – {max(seconds):.1f}"
    figures = [
        Figure("a run, median", statistics.median(seconds), "s", most=AIM, note=spread),
        Figure("outcome files", files, "a task", note=f"{tasks} tasks"),
        Figure("memory of this process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB, peak"),
        Figure("memory of the driver and the Python workers", jvm / MIB, "MiB, sum of peaks"),
    ]
    title = f"ackline run over {options.partitions:,} partitions with {options.records} records each, warm, two cores"
    show_figures(console, title, figures)


if __name__ == "__main__":
    main()
