"""Hypothesis strategies for the pure core, and the settings under which each run of a property is the same."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from ackline.ledger.backoff import RetryPolicy
from ackline.ledger.offsets import OffsetRange, ValuedRange

V = TypeVar("V")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""The time at which the tests' clocks begin."""

HIGHEST = 60
"""The properties of ranges use offsets in `[0, HIGHEST)`: so few that ranges meet often."""

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=120)
"""The same examples on every machine and in every run."""


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@st.composite
def valued_ranges(draw: st.DrawFn, values: int = 3) -> list[ValuedRange[int]]:
    """Sorted, disjoint ranges as an algorithm may leave them: empty ones, and touching ones of equal value."""
    cuts = sorted(draw(st.lists(st.integers(0, HIGHEST), max_size=14)))
    ranges = []
    for start, end in pairwise(cuts):
        value = draw(st.integers(-1, values - 1))  # -1 leaves a hole
        if value >= 0:
            ranges.append(ValuedRange(start, end, value))
    return ranges


def offset_ranges() -> st.SearchStrategy[list[OffsetRange]]:
    """Sorted, disjoint ranges, touching and empty ones included."""
    return valued_ranges().map(lambda ranges: [OffsetRange(valued.start, valued.end) for valued in ranges])


def policies() -> st.SearchStrategy[RetryPolicy]:
    """Policies whose delays are whole seconds, so that a naive computation of them is exact."""
    seconds = st.integers(0, 30).map(lambda n: timedelta(seconds=n))
    return st.builds(RetryPolicy, seconds, seconds, st.sampled_from([1.0, 2.0, 3.0]), seconds, st.integers(0, 3))


def by_offset(ranges: Iterable[ValuedRange[V]]) -> dict[int, V]:
    return {offset: valued.value for valued in ranges for offset in range(valued.start, valued.end)}
