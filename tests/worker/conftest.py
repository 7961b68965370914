"""A lab that runs the tasks of jobs in this process, and a module for the functions of a test."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ackline.delta.object_store import use_options
from tests.support import journal
from tests.worker.task_lab import TaskLab


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskLab:
    """Runs the tasks of jobs, and commits their files to an outcomes table of this test alone."""
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    use_options(None)  # those of a job stay with the process
    return TaskLab(tmp_path / "audit", tmp_path / "journal")


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module for the functions of a test; `handle` does nothing."""
    module = ModuleType("code_of_a_test")
    vars(module)["handle"] = lambda record: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module
