"""Hypothesis strategies for the pure core, and the settings under which every run of a property is the same."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st

from ackline.backoff import RetryPolicy
from ackline.offsets import OffsetRange, Run, Runs

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""When the tests' clocks begin."""

HIGHEST = 60
"""Offsets of the range algebra's properties lie in `[0, HIGHEST)`: small, so that ranges meet often."""

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=120)
"""The same examples on every machine, whatever was found before."""


def after(seconds: float) -> datetime:
    """The time so many seconds after NOON."""
    return NOON + timedelta(seconds=seconds)


@st.composite
def loose_runs(draw: st.DrawFn, values: int = 3) -> list[Run[int]]:
    """Sorted, disjoint runs as an algorithm may leave them: empty ones, and touching ones of equal value."""
    cuts = sorted(draw(st.lists(st.integers(0, HIGHEST), max_size=14)))
    found = []
    for start, end in pairwise(cuts):
        value = draw(st.integers(-1, values - 1))  # -1 leaves a hole
        if value >= 0:
            found.append(Run(start, end, value))
    return found


def offset_ranges() -> st.SearchStrategy[list[OffsetRange]]:
    """Sorted, disjoint ranges, touching and empty ones included."""
    return loose_runs().map(lambda runs: [OffsetRange(run.start, run.end) for run in runs])


def offset_sets(highest: int = HIGHEST) -> st.SearchStrategy[set[int]]:
    """Sets of offsets."""
    return st.sets(st.integers(0, highest - 1))


def policies() -> st.SearchStrategy[RetryPolicy]:
    """Policies whose delays are whole seconds, so that a naive computation of them is exact."""
    seconds = st.integers(0, 30).map(lambda n: timedelta(seconds=n))
    return st.builds(RetryPolicy, seconds, seconds, st.sampled_from([1.0, 2.0, 3.0]), seconds, st.integers(0, 3))


def spread(runs: Runs[int] | list[Run[int]]) -> dict[int, int]:
    """What runs say, offset by offset."""
    return {offset: run.value for run in runs for offset in range(run.start, run.end)}
