"""A lab that runs the tasks of jobs in this process."""

from pathlib import Path

import pytest

from ackline.tables.object_store import use_options
from tests.support import journal
from tests.worker.task_lab import TaskLab


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskLab:
    """Runs the tasks of jobs, and commits their files to an outcomes table of this test alone."""
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    use_options(None)  # those of a job stay with the process
    return TaskLab(tmp_path / "audit", tmp_path / "journal", monkeypatch)
