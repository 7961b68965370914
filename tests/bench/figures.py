"""Figures with their aims, and the measurement of a function in a process of its own."""

import argparse
import multiprocessing
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that was measured. `most` or `least` is its aim; a figure without one is printed only."""

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """The aim, and whether the figure meets it; empty without an aim."""
        if self.most is not None:
            return f"≤ {self.most:,g}: {'met' if self.value <= self.most else 'missed'}"
        if self.least is not None:
            return f"≥ {self.least:,g}: {'met' if self.value >= self.least else 'missed'}"
        return ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a function. `peak` is the highest memory in bytes, beyond the memory before the function."""

    seconds: float
    cpu: float
    peak: int


def sizes_from(part: str, doc: str | None, **sizes: tuple[int, str]) -> argparse.Namespace:
    """Returns the options of a part of `make bench`. `sizes` has the default and the help of each."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench.{part}", description=doc)
    for name, (default, text) in sizes.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, help=f"{text} (default: {default})"
        )
    return parser.parse_args()


def show_figures(console: Console, title: str, figures: Iterable[Figure]) -> None:
    table = Table(title=title)
    for name in ("", "figure", "unit", "aim", "note"):
        table.add_column(name)
    for figure in figures:
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.3g}"
        table.add_row(figure.name, value, figure.unit, figure.verdict, figure.note)
    console.print(table)


def in_a_process(function: Callable[..., T], *arguments: Any) -> T:
    """Returns what a function returns in a new process, which inherits nothing of this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> Cost:
    """Calls the function that `prepare` returns, in a new process. What `prepare` does is no part of the cost.

    Works on Linux only, because it needs /proc.
    """
    return in_a_process(_measure, prepare, arguments)


def _measure(prepare: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> Cost:
    work = prepare(*arguments)
    # ru_maxrss would not do: a process inherits it from its parent, and a parent's peak would hide the growth.
    reset_peak()
    before, begun, cpu = memory("VmRSS"), time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return Cost(seconds, cpu, memory("VmHWM") - before)


def reset_peak() -> None:
    """Makes VmHWM of this process its present memory."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(name: str, pid: int | str = "self") -> int:
    """Returns a line of the status of a process in bytes: VmRSS is its memory, VmHWM the peak of it. 0 for one that has
    ended and that its parent has not waited for."""
    line = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line[1]) * 1024 if line is not None else 0


def descendants_peak(pid: int) -> int:
    """Returns the peaks in bytes of a process and of all processes below it that still run, added up."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return memory("VmHWM", pid) + sum(map(descendants_peak, children))
