"""The garbage collector within a task of a tree."""

import gc

import pytest

from ackline.worker.trees.calls import rarer_collection


def test_the_collector_runs_less_often_within_a_task_and_as_before_after_it() -> None:
    """Spark reuses its Python workers, also for tasks that are not Ackline's."""
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), rarer_collection():
        fail_if_rare(before[0])
    assert gc.get_threshold() == before


def fail_if_rare(before: int) -> None:
    """Raises ValueError if the collector is on and runs less often than before."""
    if gc.isenabled() and gc.get_threshold()[0] > before:
        raise ValueError("broken")
