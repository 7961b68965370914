"""The garbage collector within a task of a tree."""

import gc

import pytest

from ackline.spark.trees.collection import rarer_collection


def test_the_collector_runs_less_often_within_a_task_and_as_before_after_it() -> None:
    """Spark reuses its Python workers, also for tasks that are not Ackline's."""
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), rarer_collection():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0]
        raise ValueError("broken")
    assert gc.get_threshold() == before
