"""`make bench`, first part: what a record costs in each tier, beside other programs, and where the cost goes.

All sides read one topic of JSON records with the same settings of the Kafka client. Judged is CPU, in microseconds a
record and in ratios, and speed in ratios. Each figure is a median of interleaved rounds. Ratios are comparable between
machines; microseconds are not.
"""

import multiprocessing
import os
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from ackline.local.broker import Broker
from ackline.spark.session import open_session
from tests.bench import sides as programs
from tests.bench.figures import Figure, show_figures, sizes_from
from tests.bench.plain import plain_loop
from tests.bench.programs import Side, cpu_ratio, interleave, speed_ratio
from tests.bench.topic import Subject, produce

PARTITIONS = 4
PROCESSES = 2
LOOP, NOOP, JAVA = (
    f"plain loop, {PROCESSES} processes: json.loads",
    "noop sink: json.loads",
    "Java consumer, one thread",
)
READS, MOVES = "Spark reads", "Spark moves columns to Python"
FEW_MOVES, FEW = "Spark moves one record a partition", "a turn of one record a partition"
NOTHING, JSON, DECODED = "record: nothing", "record: json.loads", "record: decode: json"
ISOLATED, UNCHECKED = "record: json.loads, isolated", "record: json.loads, check.crcs off"
ARROW, ARROW_JSON, COLUMN = "Arrow: nothing", "Arrow: json.loads", "column: nothing"
TIERS: dict[str, dict[str, Any]] = {
    NOTHING: {"handler": "nothing"},
    JSON: {"handler": "handle"},
    DECODED: {"handler": "nothing", "decode": {"value": "json"}},
    ARROW: {"handler": "nothing_batch"},
    ARROW_JSON: {"handler": "handle_batch"},
    COLUMN: {"handler": "nothing_column"},
    ISOLATED: {"handler": "handle", "record_timeout": "30s"},
    UNCHECKED: {"handler": "handle", "properties": {"check.crcs": False}},
}
"""The settings of each side that is an `ackline run`."""


def main() -> None:
    options = sizes_from(
        "run", __doc__, records=(1_000_000, "records of about 190 bytes"), rounds=(5, "interleaved rounds"),
        warm_up=(2, "rounds that do not count"),
    )  # fmt: skip
    os.environ["PYSPARK_PYTHON"] = sys.executable
    console = Console()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="ackline-bench-")))
        broker = opened.enter_context(Broker(folder / "broker", heap_mb=1024))
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic, PARTITIONS)
        produce(broker.bootstrap, topic, options.records, PARTITIONS)
        subject = Subject(broker.bootstrap, topic, PARTITIONS, options.records, folder)
        spark = open_session("ackline-bench")
        opened.callback(spark.stop)
        pool = opened.enter_context(multiprocessing.get_context("spawn").Pool(PROCESSES))
        read = opened.enter_context(programs.java_consumer(subject))
        sides = {side.name: side for side in sides_of(spark, pool, read, subject)}
        interleave(list(sides.values()), options.rounds, options.warm_up, console)
    show_figures(console, f"{options.records:,} JSON records, {options.rounds} interleaved rounds", costs(sides))
    show_figures(console, "beside other programs", ratios(sides))
    show_figures(console, f"where the cost of `{JSON}` goes", budget(sides))


def sides_of(spark: SparkSession, pool: Pool, read: Callable[[], int], subject: Subject) -> list[Side]:
    """Returns the programs that are measured; `read` is Java's consumer."""
    few = replace(subject, records=PARTITIONS)
    sides = [
        Side(LOOP, lambda: plain_loop(pool, PROCESSES, subject), subject.records),
        Side(NOOP, lambda: programs.noop_sink(spark, subject), subject.records),
        Side(JAVA, read, subject.records),
        Side(READS, lambda: programs.spark_reads(spark, subject), subject.records),
        Side(MOVES, lambda: programs.spark_moves(spark, subject), subject.records),
        Side(FEW_MOVES, lambda: programs.spark_moves(spark, few), few.records),
        Side(FEW, lambda: programs.ackline_run(spark, few), few.records),
    ]
    for name, settings in TIERS.items():
        sides.append(Side(name, _run_of(spark, subject, settings), subject.records))
    return sides


def _run_of(spark: SparkSession, subject: Subject, settings: dict[str, Any]) -> Callable[[], int]:
    handler = f"{programs.__name__}:{settings['handler']}"
    return lambda: programs.ackline_run(spark, subject, **{**settings, "handler": handler})


def costs(sides: dict[str, Side]) -> list[Figure]:
    """Returns the CPU of each side, and the aims for what Ackline itself costs in a tier."""
    aims = {NOTHING: 3.0, ARROW: 3.0}
    return [side.figure(most=aims.get(name)) for name, side in sides.items() if name not in (FEW_MOVES, FEW)]


def ratios(sides: dict[str, Side]) -> list[Figure]:
    """Returns the figures that compare Ackline with other programs, and its own settings with each other."""
    loop, run = sides[LOOP], sides[JSON]
    return [
        cpu_ratio("record: json.loads / the loop", run, loop, most=0.85),
        cpu_ratio("record: decode: json / the loop", sides[DECODED], loop, most=0.6),
        cpu_ratio("column: nothing / Java's consumer", sides[COLUMN], sides[JAVA], most=4.0),
        cpu_ratio("Spark reads / Java's consumer", sides[READS], sides[JAVA]),  # the column tier can't be below it
        cpu_ratio("record: json.loads / the noop sink", run, sides[NOOP]),
        cpu_ratio("Arrow: json.loads / the noop sink", sides[ARROW_JSON], sides[NOOP]),
        cpu_ratio("record: json.loads, isolated / not", sides[ISOLATED], run),
        cpu_ratio("record: json.loads, check.crcs on / off", run, sides[UNCHECKED]),
        speed_ratio("record: json.loads / the loop", run, loop, least=1.2),
        speed_ratio("record: json.loads / the noop sink", run, sides[NOOP], least=1 / 1.4),
        speed_ratio("record: json.loads, isolated / not", sides[ISOLATED], run, least=0.33),
    ]


def budget(sides: dict[str, Side]) -> list[Figure]:
    """Returns where the CPU of a record goes. Each part is the difference of two sides that differ in this part."""
    micros = {name: side.micros for name, side in sides.items()}
    turn = (micros[FEW] - micros[FEW_MOVES]) * sides[FEW].records / sides[JSON].records
    parts = {
        "read: Kafka to the JVM, and Spark's start of a job": micros[READS],
        "JVM → Python": micros[MOVES] - micros[READS],
        "plan, settle, commit, and the fixed part of a job": turn,
        "outcomes and their files": micros[ARROW] - micros[MOVES] - turn,
        "a `Record`, and the call": micros[NOTHING] - micros[ARROW],
        "the handler": micros[JSON] - micros[NOTHING],
    }
    return [Figure(name, value, "CPU µs a record") for name, value in parts.items()]


if __name__ == "__main__":
    main()
