"""Programs that do the same work, measured side by side: the CPU and the time of each, in interleaved rounds.

CPU is that of this process and of all below it, but the broker's: the driver, the JVM, Python workers, other consumers.
It depends little on what else the machine does. Wall time depends on it, so it is shown beside and judged in ratios.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil
from rich.console import Console

from tests.bench.figures import Figure


@dataclass(slots=True)
class Side:
    """A program that is measured: `run` handles `records` records and returns how many it has handled."""

    name: str
    run: Callable[[], int]
    records: int
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """Runs the program and keeps its times. Exits if it has not handled all records: then they mean nothing."""
        cpu, begun = cpu_seconds(), time.perf_counter()
        handled = self.run()
        self.wall.append(time.perf_counter() - begun)
        self.cpu.append(cpu_seconds() - cpu)
        if handled != self.records:
            sys.exit(f"{self.name} handled {handled} of {self.records} records")

    @property
    def micros(self) -> float:
        """CPU microseconds a record, the median of the rounds."""
        return statistics.median(self.cpu) / self.records * 1e6

    def figure(self, name: str = "", most: float | None = None) -> Figure:
        """Returns the CPU a record, and the thousands of records a second that went by."""
        rates = f"{self.records / statistics.median(self.wall) / 1000:,.0f} thousand records/s"
        return Figure(name or self.name, self.micros, "CPU µs a record", most=most, note=rates)


def interleave(sides: Sequence[Side], rounds: int, warm_up: int, console: Console) -> None:
    """Runs each side once a round, beginning with another one each time, so that none always follows the same one. The
    rounds to warm up do not count."""
    for number in range(warm_up + rounds):
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            side.measure()
        shown = ", ".join(f"{side.name} {side.cpu[-1]:.1f} CPU s, {side.wall[-1]:.1f} s" for side in sides)
        console.print(f"round {number + 1} of {warm_up + rounds}: {shown}", style="dim")
        if number < warm_up:
            for side in sides:
                side.cpu.clear()
                side.wall.clear()


def cpu_ratio(name: str, side: Side, beside: Side, most: float | None = None) -> Figure:
    """Returns the CPU a record of a side, as a multiple of another's: the median of the rounds."""
    note = f"{side.micros:.1f} µs to {beside.micros:.1f} µs"
    rounds = zip(side.cpu, beside.cpu, strict=True)
    value = statistics.median(a / side.records / (b / beside.records) for a, b in rounds)
    return Figure(name, value, "× CPU", most=most, note=note)


def speed_ratio(name: str, side: Side, beside: Side, least: float) -> Figure:
    """Returns the records a second of a side, as a multiple of another's: the median of the rounds."""
    values = [b / a for a, b in zip(side.wall, beside.wall, strict=True)]
    note = f"{min(values):.2f} – {max(values):.2f}"
    return Figure(name, statistics.median(values), "× speed", least=least, note=note)


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of all below it, but the broker, those that have ended included."""
    total = 0.0
    for process in processes():
        try:
            spent = process.cpu_times()
        except psutil.Error:
            continue
        total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


def processes() -> Iterator[psutil.Process]:
    """Yields this process and all below it, but the broker."""
    this = psutil.Process()
    yield this
    for child in this.children(recursive=True):
        try:
            if "kafka.Kafka" not in child.cmdline():
                yield child
        except psutil.Error:
            continue
