"""How long tests take: a run ends with a table of its ten slowest files, and a test that takes too long fails.

A test has 30 s for its own call; what its servers take to start does not count. A test that needs more, and alone holds
an edge, has the mark `slow`; one that repeats what a quicker test holds is `deep` or `release`.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from operator import itemgetter

import pytest
from rich.console import Console
from rich.table import Table

MOST_SECONDS = 30.0
"""Twice what the slowest test without a mark takes on two quiet cores. A machine that is slow or busy gives more: no
test fails for its neighbours."""
_STEPS, _QUIET_SECONDS = 5_000_000, 0.25
"""A loop in Python, and the seconds that it takes on a quiet core."""
MARKS = ("slow", "deep", "release")
_FILES = 10


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that has passed and taken more than MOST_SECONDS, unless it has a mark that allows it."""
    report = yield
    takes_long = report.when == "call" and report.passed and report.duration > MOST_SECONDS
    is_marked = any(map(item.get_closest_marker, MARKS))
    if takes_long and not is_marked and report.duration > MOST_SECONDS * slowness():
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {report.duration:.0f} s, and a test without a mark has {MOST_SECONDS:.0f} s: make it "
            f"quicker, or give it the mark `slow` if it alone holds an edge (CONTRIBUTING.md)"
        )
    return report


def slowness() -> float:
    """Returns how many times longer this machine takes now than a quiet one, at least 1.

    A process that has waited is preferred for a moment, so a short loop does not show how many others want the cores.
    The mean of the last minute does.
    """
    begun = time.perf_counter()
    for _ in range(_STEPS):
        begun += 0
    others = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1.0, others, (time.perf_counter() - begun) / _QUIET_SECONDS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the ten slowest files of a run of more than ten files, with the seconds and tests of each."""
    seconds, tests = defaultdict[str, float](float), Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] += report.duration
                tests[file] += report.when == "call"
    if len(seconds) <= _FILES:
        return
    table = Table("seconds", "tests", "file", title=f"the {_FILES} slowest of {len(seconds)} files", box=None)
    for file, total in sorted(seconds.items(), key=itemgetter(1), reverse=True)[:_FILES]:
        table.add_row(f"{total:.0f}", str(tests[file]), file)
    table.add_row(f"{sum(seconds.values()):.0f}", str(sum(tests.values())), "all, in all processes")
    Console(width=120).print(table)
