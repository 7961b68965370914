"""`make bench`, part of the trees: what tracking costs beside the same steps in plain PySpark, and how much memory
Python needs for ten million edges of a turn.

The sides are in `tests.bench.tree_sides`. Both write the rows of the last step to a Delta table; Ackline writes its
outcomes, too.
"""

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from pyspark.sql import SparkSession
from rich.console import Console

from ackline.local import events
from ackline.local.broker import Broker
from ackline.local.events import RecordLine
from ackline.spark.session import open_session
from tests.bench.figures import MIB, Figure, in_a_process, show_figures, sizes_from
from tests.bench.programs import Side, cpu_ratio, interleave, processes, speed_ratio
from tests.bench.topic import Subject
from tests.bench.tree_sides import ARROW_STEPS, OUTPUTS, STEPS, ackline_run, plain_arrow, plain_pyspark
from tests.e2e.commands import repeated

FAN_OUT = 3
RATIO_AIM, ARROW_AIM, MEMORY_AIM = 1.5, 1.25, 2048
"""Times the CPU of plain PySpark, with steps a tuple and an Arrow batch at a time; MiB of Python in all."""
EDGES = 10_000_000
EDGES_A_RECORD = 2 * 5
"""An order of the memory's topic has five lines, and each line is a tuple of two steps."""
PARTITIONS = 2
POLL_SECONDS = 0.2


def main() -> None:
    options = sizes_from(
        "trees", __doc__, records=(100_000, "records of the ratio"), rounds=(5, "interleaved rounds of the ratio"),
        warm_up=(2, "rounds that do not count"), edges=(EDGES, "edges of the turn for memory"),
    )  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = sys.executable
    console = Console()
    with TemporaryDirectory(prefix="ackline-bench-") as folder, Broker(Path(folder) / "broker", heap_mb=512) as broker:
        spark = open_session("ackline-bench")
        try:
            figures = []
            if options.rounds:
                subject = orders(broker, options.records, FAN_OUT, Path(folder))
                figures += times(spark, subject, options.rounds, options.warm_up, console)
            if options.edges:
                subject = orders(broker, options.edges // EDGES_A_RECORD, EDGES_A_RECORD // 2, Path(folder))
                figures += [python_memory(spark, subject)]
        finally:
            spark.stop()
    show_figures(console, f"{options.records:,} records, {FAN_OUT} tuples each, two steps with `group_by`", figures)


def orders(broker: Broker, count: int, lines: int, folder: Path) -> Subject:
    """Produces orders of so many lines to a new topic. They are the same in each call."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, PARTITIONS)
    # In a process of its own, so that the measurements do not count it.
    in_a_process(_produce, broker.bootstrap, topic, count, lines)
    return Subject(broker.bootstrap, topic, PARTITIONS, count, folder)


def _produce(bootstrap: str, topic: str, count: int, lines: int) -> None:
    rng = random.Random(20240506)

    def line(order: int, number: int) -> dict[str, Any]:
        return {
            "order_id": order,
            "number": number,
            "product": f"sku-{rng.randrange(10_000)}",
            "customer": f"customer-{rng.randrange(100_000)}",
            "price": round(rng.random() * 100, 2),
            "quantity": rng.randrange(1, 10),
        }

    values = ([line(order, number) for number in range(lines)] for order in range(count))
    records = (RecordLine(json.dumps(v).encode(), partition=n % PARTITIONS) for n, v in enumerate(values))
    events.produce(bootstrap, topic, records, timeout=120)


def times(spark: SparkSession, subject: Subject, rounds: int, warm_up: int, console: Console) -> list[Figure]:
    batches: dict[str, Any] = {"handler": "split_batch", "steps": ARROW_STEPS, "outputs": OUTPUTS}
    pairs = [
        (
            Side("ackline run", lambda: ackline_run(spark, subject, steps=STEPS, outputs=OUTPUTS), subject.records),
            Side("plain PySpark", lambda: plain_pyspark(spark, subject), subject.records),
            RATIO_AIM,
        ),
        (
            Side("ackline run, Arrow steps", lambda: ackline_run(spark, subject, **batches), subject.records),
            Side("plain PySpark, Arrow steps", lambda: plain_arrow(spark, subject), subject.records),
            ARROW_AIM,
        ),
    ]
    interleave([side for *sides, _ in pairs for side in sides], rounds, warm_up, console)
    figures = [side.figure() for *sides, _ in pairs for side in sides]
    for run, plain, aim in pairs:
        figures.append(cpu_ratio(f"{run.name} / {plain.name}", run, plain, most=aim))
        figures.append(speed_ratio(f"{run.name} / {plain.name}", run, plain, least=1 / aim))
    return figures


def python_memory(spark: SparkSession, subject: Subject) -> Figure:
    """Runs the steps, and returns the highest memory of all Python processes together."""
    begun = time.perf_counter()
    with watched_memory() as peaks:
        acked = ackline_run(spark, subject, steps=STEPS, outputs=OUTPUTS)
    if acked != subject.records:
        sys.exit(f"acked {acked} of {subject.records} records")
    note = f"{acked:,} records, {time.perf_counter() - begun:.0f} s"
    edges = f"memory of Python, {acked * EDGES_A_RECORD:,} edges"
    return Figure(edges, max(peaks) / MIB, "MiB", most=MEMORY_AIM, note=note)


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Collects the memory of this process and of the Python processes below it, several times a second. It is the
    proportional set size: workers are forked, and share pages."""
    peaks: list[int] = [0]

    def look() -> None:
        peaks.append(sum(_memory(process) for process in processes() if "java" not in _name(process)))

    with repeated(look, POLL_SECONDS):
        yield peaks


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "java"


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
