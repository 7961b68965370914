"""`make bench`, second part: the cost of plan and settle in a ledger with many turns, and after a large turn.

The steps, the tables of the ledger and the outcome files are the real ones. Kafka is in memory, and in place of Spark
the lane writes the outcome files as Spark's tasks do. So only the ledger is measured.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from ackline.actions.maintain import maintain
from tests.bench.figures import MIB, Figure, memory, show_figures
from tests.bench.injected import InjectedLane, age_entries
from tests.bench.watched import SettleCost, measure_settle

PARTITIONS = 4
RECORDS = 1_000
"""Records of each partition in each of the many turns. One of them fails, and its retry succeeds."""
TURNS = 2_000
MEDIAN_OF = 10
"""Turns of which each median is taken: those around the tenth, and the last ones."""
EARLY = range(6, 6 + MEDIAN_OF)
MAINTAINED_EVERY = 36
"""The number of turns between two runs of maintenance: six hours of a pipeline that runs every ten minutes."""
AIM = 1.2
"""The cost of the last turns to that of the early ones, at most."""
LARGE = (200_000, 2_000_000)
"""Records of each large turn. LARGE_FAILED of them fail; the memory of settle must not grow with the others."""
LARGE_FAILED = 2_000
FAILED = 5_000_000
FAILED_SECONDS, FAILED_MIB = 60, 1024
"""A turn all of whose records fail, each at a time of its own, and the aims for it."""
WIDE = 10_000
WIDE_SECONDS = 10
"""Partitions of a turn in which one record of each fails, and the aim for its settle."""


@dataclass(slots=True)
class Times:
    """Seconds of plan and settle together by turn, and of maintenance by the turn after which it ran."""

    steps: dict[int, float] = field(default_factory=dict)
    maintenance: dict[int, float] = field(default_factory=dict)

    def median(self, turns: range) -> float:
        return statistics.median(self.steps[n] for n in turns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.turns", description=__doc__)
    parser.add_argument(
        "--every", type=int, default=MAINTAINED_EVERY, help="turns between two runs of maintenance; 0: none"
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"turns of the ledger (default: {TURNS})")
    parser.add_argument("--failed", type=int, default=FAILED, help=f"records that all fail (default: {FAILED})")
    parser.add_argument("--wide", type=int, default=WIDE, help=f"partitions with a failure each (default: {WIDE})")
    parser.add_argument(
        "--large", type=int, nargs=2, default=LARGE, help=f"records of the large turns (default: {LARGE})"
    )
    options = parser.parse_args()
    console = Console()
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        show_many(console, many_turns(Path(folder), options.turns, options.every), options.every)
    show_large(console, [large_turn(records, LARGE_FAILED) for records in options.large])
    show_failed(console, large_turn(options.failed, options.failed))
    wide = large_turn(10 * options.wide, options.wide, options.wide)
    show_figures(
        console,
        f"settle after a turn of {options.wide:,} partitions with a failure each",
        [Figure("settle", wide.seconds, "s", most=WIDE_SECONDS)],
    )


def many_turns(folder: Path, turns: int, every: int) -> Times:
    """Returns the times of so many turns. Each step opens its adapters anew, as tasks do."""
    lane, times = InjectedLane(folder, PARTITIONS, turns + 1), Times()
    for n in range(1, turns + 1):
        started = time.time()
        lane.grow(RECORDS)
        begun = time.perf_counter()
        plan = lane.plan()
        planned = time.perf_counter()
        lane.inject(plan, failed=1)
        injected = time.perf_counter()
        lane.settle()
        times.steps[n] = time.perf_counter() - injected + planned - begun
        if every and n % every == 0:
            begun = time.perf_counter()
            maintain(lane.root)
            times.maintenance[n] = time.perf_counter() - begun
        age_entries(Path(lane.root), started, lane.world.now)
    return times


def large_turn(records: int, failed: int, partitions: int = PARTITIONS) -> SettleCost:
    """Measures the settle step of a single turn, in a process of its own."""
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        lane = InjectedLane(Path(folder), partitions)
        lane.grow(records // partitions)
        lane.inject(lane.plan(), failed=failed // partitions)
        return measure_settle(lane)


def show_many(console: Console, times: Times, every: int) -> None:
    often = f"maintenance every {every} turns" if every else "no maintenance"
    table = Table(title=f"plan + settle in {len(times.steps)} turns of {PARTITIONS * RECORDS:,} records, {often}")
    for name in ("turns", "median ms", "spread"):
        table.add_column(name)
    last = range(len(times.steps) - MEDIAN_OF + 1, len(times.steps) + 1)
    for turns in (EARLY, last):
        milliseconds = sorted(times.steps[n] * 1000 for n in turns)
        middle = f"{times.median(turns) * 1000:.0f}"
        table.add_row(f"{turns.start}–{turns.stop - 1}", middle, f"{milliseconds[0]:.0f} – {milliseconds[-1]:.0f}")
    ratio = times.median(last) / times.median(EARLY)
    table.add_row("ratio", f"{ratio:.2f}", f"aim ≤ {AIM}: {'met' if ratio <= AIM else 'missed'}")
    console.print(table)
    if times.maintenance:
        runs = sorted(seconds * 1000 for seconds in times.maintenance.values())
        text = f"{len(runs)} runs of maintenance took {runs[0]:.0f} – {runs[-1]:.0f} ms"
        console.print(f"{text}, median {statistics.median(runs):.0f} ms", style="dim")
    console.print(f"memory of this process: {memory('VmHWM') / MIB:.0f} MiB at its peak", style="dim")


def show_large(console: Console, costs: list[SettleCost]) -> None:
    table = Table(title="settle after one turn")
    for name in ("records", "failed", "files", "files opened", "rows materialised", "seconds", "peak memory, MiB more"):
        table.add_column(name, justify="right")
    for cost in costs:
        cells = (cost.records, cost.failed, cost.files, cost.opened, cost.rows)
        table.add_row(*(f"{cell:,}" for cell in cells), f"{cost.seconds:.2f}", f"{cost.peak / MIB:.0f}")
    console.print(table)


def show_failed(console: Console, cost: SettleCost) -> None:
    figures = [
        Figure("settle", cost.seconds, "s", most=FAILED_SECONDS),
        Figure("peak memory", cost.peak / MIB, "MiB more", most=FAILED_MIB),
    ]
    show_figures(console, f"settle after a turn of {cost.failed:,} failing records", figures)


if __name__ == "__main__":
    main()
