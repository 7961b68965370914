"""Fewer runs of Python's cyclic garbage collector while a task handles tuples."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 50_000
"""Objects that are made, less those that are freed, between two runs of the collector. Python's default is 700."""


@contextmanager
def rarer_collection() -> Iterator[None]:
    """Makes the garbage collector run less often within the block.

    A task keeps thousands of tuples until they make a batch. They have no cycles, so they are freed without the
    collector; but each of its runs looks at all of them again, which took a third of a task's time. It still runs, for
    the sake of handlers that make cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
