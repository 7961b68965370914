"""The rate limit on real tasks: no tier exceeds it, retries count, and a waiting run can be watched and cancelled."""

import time

import pytest

from ackline.delta.folder import Folder
from ackline.errors import AcklineError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark import progress
from ackline.spark.job import run_replay
from ackline.spark.progress import Handled, read_counts
from tests.kafka.kafka_log import fill
from tests.spark.lab import Lab, each_tier
from tests.spark.tree_jobs import ITEMS, SPLIT, TWO, values

RATE, FRESH, RETRIES = 40, 60, 40


@each_tier
def test_all_tasks_together_are_not_faster_than_the_rate(lab: Lab, handler: str) -> None:
    name = lab.topic(3)
    for partition in range(3):
        fill(lab.broker, name, 60, partition, lambda _: b"acked" if handler != "by_word" else b"ok")
    fresh = {TopicPartition(name, partition): (0, FRESH // 2) for partition in range(2)}
    job = lab.job(handler, fresh, {TopicPartition(name, 2): dict.fromkeys(range(RETRIES), 2)}, max_rate=RATE)
    started = time.monotonic()
    result = lab.run(job)
    seconds = time.monotonic() - started
    times = [row["handled_at"] for row in lab.rows(job)]
    assert result.calls == FRESH + RETRIES
    assert sum(counts[Outcome.ACKED] for counts in result.counts.values()) == FRESH + RETRIES
    assert (FRESH + RETRIES) / RATE <= seconds < 30
    most = RATE * (max(times) - min(times)).total_seconds() + RATE  # a second's worth at once
    assert len(times) <= most + 1, "the clock reads a little later than a wait ends"


def test_a_run_that_waits_shows_what_it_has_handled_and_is_cancelled_at_once(lab: Lab) -> None:
    """At this rate the run would take fifty seconds."""
    tp = lab.fill(200)
    job = lab.job("ack", {tp: (0, 100)}, {tp: dict.fromkeys(range(100, 200), 2)}, max_rate=4)
    reports: list[Handled] = []
    cancelled: list[float] = []

    def on_progress(handled: Handled) -> None:
        reports.append(handled)
        if handled.left is not None and not cancelled:
            cancelled.append(time.monotonic())
            lab.spark.sparkContext.cancelAllJobs()

    with pytest.raises(AcklineError):
        run_replay(lab.spark, job, on_progress)
    assert time.monotonic() - cancelled[0] < 30
    done = [handled.done for handled in reports]
    assert done == sorted(done)
    assert {handled.total for handled in reports} == {200}
    assert 0 < (reports[-1].rate or 0) < 3 * 4


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """The last counts of each job: they are read when it has ended, before their folder goes."""
    found: list[dict[int, int]] = []
    remove = progress.remove_counts

    def remove_counts(uri: str) -> None:
        found.append(read_counts(Folder(uri).names()))
        remove(uri)

    monkeypatch.setattr(progress, "remove_counts", remove_counts)
    return found


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_each_tier_counts_each_record(lab: Lab, handler: str, counts: list[dict[int, int]]) -> None:
    tp = lab.fill(60, lambda _: b"acked" if handler != "by_word" else b"ok")
    lab.run(lab.job(handler, {tp: (0, 40)}, {tp: dict.fromkeys(range(40, 60), 2)}), lambda _: None)
    assert counts == [{-1: 60}]


def test_the_records_and_the_tuples_of_each_step_count(lab: Lab, counts: list[dict[int, int]]) -> None:
    tp = lab.put(*values([ITEMS] * 40))
    lab.run(lab.job(SPLIT, {tp: (0, 40)}, topology=TWO), lambda _: None)
    assert counts == [{-1: 40, 0: 120, 1: 120}]
