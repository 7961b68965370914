"""What a run shows while its Spark job works: records, the rate and the time left, and never more than is handled."""

import errno
from datetime import date
from pathlib import Path

import pytest

from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.topology import Topology
from ackline.spark import progress
from ackline.spark.progress import Handled, Pace, _Reporter, read_counts, reporting
from ackline.worker.files import OutcomeTarget
from ackline.worker.settings import KafkaSettings, ReplayJob, ReplaySettings
from tests.spark.tree_jobs import TWO

TP = TopicPartition("orders", 0)


def job(topology: Topology | None = None) -> ReplayJob:
    """Three hundred fresh offsets, and a hundred retries."""
    settings = ReplaySettings("tests.spark.handlers:ack", False, Outcome.FAILED, None, topology=topology)
    target = OutcomeTarget("nowhere", TurnId("orders", LIVE, 0, 1), date(2024, 5, 6), "run-1")
    fresh, retries = {TP: OffsetRange(100, 400)}, {TP: (ValuedRange(0, 100, 2),)}
    return ReplayJob(target, settings, KafkaSettings({}, "read_committed"), fresh, retries)


def shown(of: ReplayJob, *counts: tuple[float, dict[int, int]]) -> list[str]:
    """What is shown after each of the counts, which come at a time in seconds."""
    lines: list[str] = []
    reporter = _Reporter(of, lambda handled: lines.append(handled.text()))
    for now, of_steps in counts:
        reporter.report(of_steps, now)
    return lines


def test_the_rate_and_the_time_left_are_shown_once_there_are_two_counts() -> None:
    assert shown(job(), (0, {}), (5, {-1: 40}), (5.5, {-1: 40}), (6, {-1: 60}), (13, {-1: 200})) == [
        "0 of 400 records",
        "40 of 400 records",
        "40 of 400 records",
        "60 of 400 records · 20/s · 17 s left",
        "200 of 400 records · 20/s · 10 s left",
    ]


def test_a_job_that_stands_still_gets_slower_by_what_is_shown() -> None:
    *_, slower, last = shown(job(), (0, {-1: 100}), (1, {-1: 200}), (100, {-1: 200}), (1_000, {-1: 200}))
    assert (slower, last) == (
        "200 of 400 records · 1/s · 3 min 20 s left",
        "200 of 400 records · 0.1/s · 33 min 20 s left",
    )


def test_a_step_shows_its_tuples_and_rate_alone_because_their_number_is_not_known() -> None:
    assert shown(job(TWO), (0, {-1: 100}), (1, {-1: 200}), (2, {-1: 400, 0: 50}), (3, {-1: 400, 0: 1_250}),
                 (4, {-1: 400, 0: 1_250, 1: 1})) == [
        "step source: 100 of 400 records",
        "step source: 200 of 400 records · 100/s · 2 s left in this step",
        "step first: 50 tuples",
        "step first: 1,250 tuples · 1,200/s",
        "step second: 1 tuple",
    ]  # fmt: skip


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace.rate(second, 1 + 1_000 * second)
    for second in range(100, 139):
        pace.rate(second, 99_001 + second - 99)
    assert pace.rate(139, 99_041) == pytest.approx(1, rel=0.01)


def test_a_batch_that_takes_longer_than_half_a_minute_has_a_rate() -> None:
    pace = Pace()
    assert [pace.rate(now, done) for now, done in ((0, 64), (64, 64), (128, 128), (192, 192), (256, 256))] == [
        None, None, 0.5, 1.0, 1.0,
    ]  # fmt: skip


def test_the_highest_count_of_a_task_is_its_own() -> None:
    """A task writes a name before it removes the last one, and a second attempt begins anew. Markers are no counts."""
    names = ["done-0-0-fresh-10", "done-0-0-fresh-20", "done-0-0-exact-5", "done-0-1-fresh-7", "done-3-0-9",
             "part-0-fresh", "driver-1", "done-0-x", "done-0-0-fresh-"]  # fmt: skip
    assert read_counts(names) == {-1: 32, 2: 9}


@pytest.mark.parametrize(("handled", "text"), [
    (Handled(0, 1), "0 of 1 record"),
    (Handled(1_200, 4_000, 400.4), "1,200 of 4,000 records · 400/s · 7 s left"),
    (Handled(1_200, 400_000, 9.96), "1,200 of 400,000 records · 10/s · 11 h 7 min left"),
    (Handled(4_000, 4_000, 5.0), "4,000 of 4,000 records · 5/s · 0 s left"),
    (Handled(5, 10, 0.0), "5 of 10 records · 0/s"),
    (Handled(5, None, 0.25), "5 tuples · 0.25/s"),
])  # fmt: skip
def test_the_figures_are_one_line(handled: Handled, text: str) -> None:
    assert handled.text() == text


def test_a_job_runs_without_its_counts_where_their_folder_can_not_be_made_or_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(progress, "mkdtemp", full)
        with reporting(job(), None, print) as counted:
            assert counted.progress is None
    monkeypatch.setattr(progress, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr("os.rmdir", full)  # as where a task that was cancelled still writes a count
    with reporting(job(), None, print) as counted:
        assert counted.progress == str(tmp_path)
