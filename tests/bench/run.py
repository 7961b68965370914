"""`make bench`, first part: the throughput of `ackline run` in ratios to other programs, on one topic of JSON records.

All sides read with the same settings of the Kafka client and call `json.loads` for each record. Each ratio is a median
of interleaved rounds. Ratios are comparable between machines; the times beside them are not.
"""

import multiprocessing
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.pool import Pool
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from ackline.local.broker import Broker
from ackline.spark.session import open_session
from tests.bench.figures import sizes_from
from tests.bench.plain import plain_loop
from tests.bench.sides import ackline_run, noop_sink
from tests.bench.topic import Subject, produce

PARTITIONS = 4
PROCESSES = 2
VERDICTS = {True: "met", False: "missed", None: ""}


@dataclass(slots=True)
class Side:
    """A program that is measured. `run` handles all records once and returns how many it has handled."""

    name: str
    run: Callable[[], int]
    seconds: list[float] = field(default_factory=list)

    def measure(self, records: int) -> None:
        """Runs the program and keeps its time. Exits if it has not handled all records: then its time means nothing."""
        start = time.perf_counter()
        handled = self.run()
        self.seconds.append(time.perf_counter() - start)
        if handled != records:
            sys.exit(f"{self.name} handled {handled} of {records} records")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two sides in each round, and its aim. `met` is None without an aim."""

    name: str
    values: list[float]
    aim: str
    met: bool | None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)


def ratios(run: Side, noop: Side, loop: Side, isolated: Side, unchecked: Side) -> list[Ratio]:
    """Returns the ratios: the time to that of the noop sink, the throughput to that of the plain loop, the throughput
    with an isolated handler to that without, and the throughput with check.crcs on to that with it off."""
    beside_noop = [a / b for a, b in zip(run.seconds, noop.seconds, strict=True)]
    beside_loop = [b / a for a, b in zip(run.seconds, loop.seconds, strict=True)]
    checked_rate = [b / a for a, b in zip(run.seconds, unchecked.seconds, strict=True)]
    isolated_rate = [b / a for a, b in zip(isolated.seconds, run.seconds, strict=True)]
    return [
        Ratio("time of ackline run / of noop sink", beside_noop, "≤ 1.4", statistics.median(beside_noop) <= 1.4),
        Ratio("throughput of ackline run / of plain loop", beside_loop, "≥ 1.2", statistics.median(beside_loop) >= 1.2),
        Ratio(
            "throughput isolated, with a time limit / not",
            isolated_rate,
            "≥ 0.33",
            statistics.median(isolated_rate) >= 1 / 3,
        ),
        Ratio("throughput with check.crcs on / off", checked_rate, "", None),
    ]


def main() -> None:
    """Measures all sides and prints the table."""
    options = sizes_from(
        "run", __doc__, records=(2_000_000, "records of about 190 bytes"), pairs=(7, "interleaved rounds"),
        warm_up=(2, "rounds that do not count"),
    )  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = sys.executable
    console = Console()
    with TemporaryDirectory(prefix="ackline-bench-") as folder, Broker(Path(folder) / "broker", heap_mb=1024) as broker:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic, PARTITIONS)
        produce(broker.bootstrap, topic, options.records, PARTITIONS)
        spark = open_session("ackline-bench")
        pool = multiprocessing.get_context("spawn").Pool(PROCESSES)
        try:
            subject = Subject(broker.bootstrap, topic, PARTITIONS, options.records, Path(folder))
            sides = measure(spark, pool, subject, options.pairs, options.warm_up, console)
        finally:
            pool.terminate()
            pool.join()
            spark.stop()
    show(console, options.records, sides)


def measure(
    spark: SparkSession, pool: Pool, subject: Subject, pairs: int, warm_up: int, console: Console
) -> list[Side]:
    """Runs each side once a round, beginning with another one each time, so that none always follows the same one."""
    sides = [
        Side("ackline run", lambda: ackline_run(spark, subject)),
        Side("noop sink", lambda: noop_sink(spark, subject)),
        Side(f"plain loop, {PROCESSES} processes", lambda: plain_loop(pool, PROCESSES, subject)),
        Side("ackline run, isolated", lambda: ackline_run(spark, subject, record_timeout="30s")),
        Side("ackline run, check.crcs off", lambda: ackline_run(spark, subject, check_crcs=False)),
    ]
    for number in range(warm_up + pairs):
        first = number % len(sides)
        for side in sides[first:] + sides[:first]:
            side.measure(subject.records)
        if number < warm_up:
            for side in sides:
                side.seconds.clear()
            console.print(f"warm-up {number + 1} of {warm_up}", style="dim")
        else:
            times = ", ".join(f"{side.name} {side.seconds[-1]:.2f} s" for side in sides)
            console.print(f"pair {number + 1 - warm_up} of {pairs}: {times}", style="dim")
    return sides


def show(console: Console, records: int, sides: list[Side]) -> None:
    """Prints the table."""
    table = Table(title=f"{records:,} JSON records, {len(sides[0].seconds)} interleaved pairs")
    for name in ("ratio", "median", "spread", "aim", ""):
        table.add_column(name)
    for ratio in ratios(*sides):
        spread = f"{min(ratio.values):.2f} – {max(ratio.values):.2f}"
        table.add_row(ratio.name, f"{ratio.median:.2f}", spread, ratio.aim, VERDICTS[ratio.met])
    for side in sides:
        rates = sorted(records / seconds / 1000 for seconds in side.seconds)
        middle = f"{statistics.median(rates):.0f}"
        table.add_row(f"{side.name}, thousand records/s", middle, f"{rates[0]:.0f} – {rates[-1]:.0f}", "", "")
    console.print(table)


if __name__ == "__main__":
    main()
