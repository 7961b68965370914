"""How far a task is: each record is counted once, whatever becomes of it, and a count is never too high."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.spark.progress import read_counts
from ackline.worker import progress
from ackline.worker.progress import COUNT, TaskProgress, calls_under_way
from ackline.worker.settings import ReplayJob
from tests.spark.tree_jobs import ITEMS, SPLIT, TWO, values
from tests.worker.task_lab import TaskLab

HANDLER, ARROW = "code_of_a_test:handle", "arrow_words"


def counts_of(tasks: TaskLab, job: ReplayJob, folder: Path) -> dict[int, int]:
    folder.mkdir()
    tasks.replayed(replace(job, progress=str(folder)))
    return read_counts(path.name for path in folder.iterdir())


@pytest.mark.parametrize("isolated", [False, True])
def test_fresh_records_retries_failures_and_tombstones_count_once(
    tasks: TaskLab, tmp_path: Path, isolated: bool
) -> None:
    tp = tasks.put(b"", b"fail", None, b"skip", *[b""] * 196)
    job = tasks.job("by_word", {tp: (50, 200)}, {tp: dict.fromkeys(range(50), 2)}, isolated=isolated)
    assert counts_of(tasks, job, tmp_path / "counts") == {-1: 200}


def test_records_of_an_arrow_handler_count(tasks: TaskLab, tmp_path: Path) -> None:
    tp = tasks.put(*[b"acked"] * 30)
    assert counts_of(tasks, tasks.job(ARROW, {tp: (0, 30)}), tmp_path / "counts") == {-1: 30}


@pytest.mark.parametrize("isolated", [False, True])
def test_records_and_the_tuples_of_each_step_count_apart(tasks: TaskLab, tmp_path: Path, isolated: bool) -> None:
    """Records whose trees end elsewhere count where they are handled: the acker counts none again."""
    tp = tasks.put(*values([ITEMS] * 40), *values([[]] * 5))
    job = tasks.job(SPLIT, {tp: (0, 45)}, topology=TWO, isolated=isolated)
    assert counts_of(tasks, job, tmp_path / "counts") == {-1: 45, 0: 120, 1: 120}


def test_calls_of_the_batch_under_way_count_and_are_never_too_many(tasks: TaskLab, code: Any, tmp_path: Path) -> None:
    """A slow handler may take hours for a batch of Spark's source, so the groups of its calls are counted."""
    seen: list[tuple[int, int]] = []
    code.handle = lambda record: seen.append((record.offset, calls_under_way()))
    tp = tasks.put(*[b""] * 150)
    assert counts_of(tasks, tasks.job(HANDLER, {tp: (0, 150)}), tmp_path / "counts") == {-1: 150}
    assert all(counted <= offset for offset, counted in seen)
    assert seen[-1] == (149, 128)
    assert calls_under_way() == 0


def test_a_count_is_written_while_a_call_waits(
    tasks: TaskLab, code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DISK_SECONDS", 0.01)
    written = threading.Event()
    write = TaskProgress._write

    def noting(self: TaskProgress, *arguments: Any) -> None:
        write(self, *arguments)
        if arguments[-1]:
            written.set()

    monkeypatch.setattr(TaskProgress, "_write", noting)
    code.handle = lambda record: record.offset < 100 or written.wait(20)
    tp = tasks.put(*[b""] * 101)
    folder = tmp_path / "counts"
    assert counts_of(tasks, tasks.job(HANDLER, {tp: (0, 101)}), folder) == {-1: 101}
    assert written.is_set()
    assert [path.name for path in folder.iterdir()] == [f"{COUNT}0-0-exact-101"]  # each name replaces the one before


def test_no_count_is_written_where_no_run_shows_it(tasks: TaskLab, tmp_path: Path) -> None:
    before = threading.active_count()
    with_none = TaskProgress(None, -1, "0")
    with_none.start()
    assert threading.active_count() == before
    with_none.end()


def test_a_folder_that_is_gone_costs_the_task_nothing(tasks: TaskLab, tmp_path: Path) -> None:
    tp: TopicPartition = tasks.put(b"", b"")
    result = tasks.replayed(replace(tasks.job("ack", {tp: (0, 2)}), progress=str(tmp_path / "gone")))
    assert result.calls == 2
