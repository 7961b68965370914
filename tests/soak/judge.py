"""Judges whether what a soak measures grows: memory, open files, files and bytes on the disk, the time of a turn.

A soak takes a sample every minute. The judge compares the medians of two quarters of the soak: the second, when caches
and the JVM are warm, and the last. A median ignores the minutes in which a broker was away or a collection of garbage
fell, so only what grows throughout is found. A figure has grown if its last median is above `ratio` times the earlier
one plus `slack`. The slack is what a healthy process still moves by; a leak below `slack` in half a soak is not found.
A quarter with fewer than LEAST samples is not judged, and the verdict says so: a soak of five minutes judges nothing.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MIB = 2**20
LEAST = 5
"""Samples of a quarter below which its median says nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured at a minute of the soak, by the name of the figure. A figure that was not measured is left
    out."""

    minute: float
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Rule:
    """How much a figure may grow from the second quarter of a soak to the last."""

    figure: str
    what: str
    ratio: float
    slack: float
    unit: str = ""
    scale: float = 1.0
    """By what the figure is divided where it is printed."""


RULES = (
    Rule("driver_rss", "memory of the driver's Python", 1.1, 24 * MIB, "MiB", MIB),
    Rule("jvm_heap", "heap of the JVM after a collection", 1.15, 24 * MIB, "MiB", MIB),
    Rule("jvm_rss", "memory of the JVM", 1.15, 96 * MIB, "MiB", MIB),
    Rule("driver_fds", "open files of the driver", 1.0, 8),
    Rule("jvm_fds", "open files of the JVM", 1.05, 24),
    Rule("driver_threads", "threads of the driver", 1.0, 8),
    Rule("jvm_threads", "threads of the JVM", 1.0, 192),  # Spark fills two pools of 128 threads with time
    Rule("temporary", "temporary files of the processes", 1.1, 16),
    Rule("files_per_turn", "files below the audit root for each turn of ten minutes", 1.25, 4),
    Rule("staged", "staging folders", 1.0, 24),
    Rule("bytes_per_outcome", "bytes below the audit root for each outcome", 1.05, 16, "B"),
    Rule("turn_cpu", "CPU time of a run", 1.25, 0.1, "s"),
    Rule("turn_median", "median time of a run", 1.4, 0.5, "s"),
)
"""CPU time is judged more closely than time by the clock, which also grows with what else the machine does. What a turn
leaves is removed some minutes later, so files are judged for each turn of the last minutes: their number alone grows
with what the machine has to spare."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of a figure in the second and the last quarter; None if a quarter has too few samples."""

    rule: Rule
    before: float | None
    after: float | None

    @property
    def limit(self) -> float | None:
        return None if self.before is None else self.before * self.rule.ratio + self.rule.slack

    @property
    def grown(self) -> bool:
        return self.limit is not None and self.after is not None and self.after > self.limit

    def __str__(self) -> str:
        rule = self.rule
        if self.before is None or self.after is None or self.limit is None:
            return f"{rule.what}: not judged, too few samples"
        shown = [f"{value / rule.scale:,.4g}" for value in (self.before, self.after, self.limit)]
        unit = f" {rule.unit}" if rule.unit else ""
        return f"{rule.what}: {shown[0]} → {shown[1]}{unit}, at most {shown[2]}: {'GROWN' if self.grown else 'held'}"


def judge(samples: Sequence[Sample], rules: Iterable[Rule] = RULES) -> list[Growth]:
    return [_growth(samples, rule) for rule in rules]


def _growth(samples: Sequence[Sample], rule: Rule) -> Growth:
    length = max((sample.minute for sample in samples), default=0.0)

    def median(first: float, last: float) -> float | None:
        values = [
            sample.figures[rule.figure]
            for sample in samples
            if first * length < sample.minute <= last * length and rule.figure in sample.figures
        ]
        return statistics.median(values) if len(values) >= LEAST else None

    return Growth(rule, median(0.25, 0.5), median(0.75, 1.0))
