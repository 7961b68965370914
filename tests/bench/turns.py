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

from ackline.audit.maintenance import maintain
from tests.bench.injected import InjectedLane
from tests.bench.watched import SettleCost, measure_settle

PARTITIONS = 4
RECORDS = 1_000
"""Records of each partition in each of the many turns. One of them fails, and its retry succeeds."""
EARLY, LATE = range(6, 16), range(491, 501)
MAINTAINED_EVERY = 36
"""The number of turns between two runs of maintenance: six hours of a pipeline that runs every ten minutes."""
AIM = 1.3
LARGE = (200_000, 2_000_000)
"""Records of each large turn. LARGE_FAILED of them fail; the memory of settle must not grow with the others."""
LARGE_FAILED = 2_000
FAILED = 5_000_000
"""Records of a turn all of which fail, each at a time of its own. Aim: 60 seconds and 1,024 MiB."""


@dataclass(slots=True)
class Times:
    """Seconds of plan and settle together by turn, and of maintenance by the turn after which it ran."""

    steps: dict[int, float] = field(default_factory=dict)
    maintenance: dict[int, float] = field(default_factory=dict)

    def median(self, turns: range) -> float:
        """Returns the median of plan and settle in these turns."""
        return statistics.median(self.steps[n] for n in turns)


def main() -> None:
    """Measures both and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.turns", description=__doc__)
    parser.add_argument(
        "--every", type=int, default=MAINTAINED_EVERY, help="turns between two runs of maintenance; 0: none"
    )
    options = parser.parse_args()
    console = Console()
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        show_many(console, many_turns(Path(folder), options.every), options.every)
    show_large(console, [large_turn(records, LARGE_FAILED) for records in LARGE] + [large_turn(FAILED, FAILED)])


def many_turns(folder: Path, every: int) -> Times:
    """Returns the times of LATE.stop - 1 turns. Each step opens its parts anew, as tasks do."""
    lane, times = InjectedLane(folder, PARTITIONS, LATE.stop), Times()
    for n in range(1, LATE.stop):
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
        lane.age(started)
    return times


def large_turn(records: int, failed: int) -> SettleCost:
    """Measures the settle step of a single turn, in a process of its own."""
    with TemporaryDirectory(prefix="ackline-bench-") as folder:
        lane = InjectedLane(Path(folder), PARTITIONS)
        lane.grow(records // PARTITIONS)
        lane.inject(lane.plan(), failed=failed // PARTITIONS)
        return measure_settle(lane)


def show_many(console: Console, times: Times, every: int) -> None:
    """Prints the table of many turns."""
    often = f"maintenance every {every} turns" if every else "no maintenance"
    table = Table(title=f"plan + settle in {len(times.steps)} turns of {PARTITIONS * RECORDS:,} records, {often}")
    for name in ("turns", "median ms", "spread"):
        table.add_column(name)
    for turns in (EARLY, LATE):
        milliseconds = sorted(times.steps[n] * 1000 for n in turns)
        middle = f"{times.median(turns) * 1000:.0f}"
        table.add_row(f"{turns.start}–{turns.stop - 1}", middle, f"{milliseconds[0]:.0f} – {milliseconds[-1]:.0f}")
    ratio = times.median(LATE) / times.median(EARLY)
    table.add_row("ratio", f"{ratio:.2f}", f"aim ≤ {AIM}: {'met' if ratio <= AIM else 'missed'}")
    console.print(table)
    runs = ", ".join(f"{seconds * 1000:.0f} ms after turn {n}" for n, seconds in times.maintenance.items())
    console.print(f"maintenance took {runs or 'no time'}", style="dim")


def show_large(console: Console, costs: list[SettleCost]) -> None:
    """Prints the table of large turns."""
    table = Table(title="settle after one turn")
    for name in ("records", "failed", "files", "files opened", "rows materialised", "seconds", "peak memory, MiB more"):
        table.add_column(name, justify="right")
    for cost in costs:
        cells = (cost.records, cost.failed, cost.files, cost.opened, cost.rows)
        table.add_row(*(f"{cell:,}" for cell in cells), f"{cost.seconds:.2f}", f"{cost.peak / 2**20:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
