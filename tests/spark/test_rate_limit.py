"""The rate limit on real tasks: no tier exceeds it, retries count, and a waiting run can be watched and cancelled."""

import threading
import time

import pytest

from ackline.errors import AcklineError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.spark.job import run_replay
from tests.kafka.kafka_log import fill
from tests.spark.lab import Lab, each_tier

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


def test_a_run_that_waits_can_be_watched_and_is_cancelled_at_once(lab: Lab) -> None:
    """At this rate the run would take a hundred seconds."""
    tp = lab.fill(100)
    job = lab.job("ack", {tp: (0, 100)}, max_rate=1)
    reports: list[tuple[int, int]] = []
    cancelled = threading.Event()

    def on_progress(done: int, tasks: int) -> None:
        reports.append((done, tasks))
        if len(reports) == 3:
            cancelled.set()
            lab.spark.sparkContext.cancelAllJobs()

    started = time.monotonic()
    with pytest.raises(AcklineError):
        run_replay(lab.spark, job, on_progress)
    assert cancelled.is_set()
    assert set(reports) == {(0, 1)}
    assert time.monotonic() - started < 30
