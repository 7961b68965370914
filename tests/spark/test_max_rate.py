"""`max_rate` on real tasks: no tier is faster, retries count, and a run that waits can be watched and cancelled."""

import threading
import time
from dataclasses import replace

import pytest

from ackline.errors import AcklineError
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.job import run_replay
from tests.conftest import MakeTopic
from tests.contract.kafka_log import fill
from tests.spark.bench import Bench

RATE, FRESH, RETRIES = 40, 60, 40


@pytest.mark.parametrize("handler", ["by_word", "arrow_words", "column_words"])
def test_all_tasks_together_are_not_faster_than_the_rate(bench: Bench, topic: MakeTopic, handler: str) -> None:
    name = topic(3)
    for partition in range(3):
        fill(bench.broker, name, 60, partition, lambda _: b"acked" if handler != "by_word" else b"ok")
    fresh = {TopicPartition(name, partition): (0, FRESH // 2) for partition in range(2)}
    retries = {TopicPartition(name, 2): dict.fromkeys(range(RETRIES), 2)}
    job = replace(bench.job(handler, fresh, retries), max_rate=RATE)
    started = time.monotonic()
    result = bench.run(job)
    took = time.monotonic() - started
    times = [row["handled_at"] for row in bench.rows(job)]
    assert result.calls == FRESH + RETRIES
    assert sum(counts[Outcome.ACKED] for counts in result.counts.values()) == FRESH + RETRIES
    assert took >= (FRESH + RETRIES) / RATE
    assert took < 30
    assert len(times) <= RATE * (max(times) - min(times)).total_seconds() + RATE, "a second's worth at once at most"


def test_a_run_that_waits_can_be_watched_and_is_cancelled_at_once(bench: Bench, topic: MakeTopic) -> None:
    """At this rate it would take a hundred seconds."""
    name = topic()
    fill(bench.broker, name, 100)
    job = replace(bench.job("ack", {TopicPartition(name, 0): (0, 100)}), max_rate=1)
    seen: list[tuple[int, int]] = []
    watched = threading.Event()

    def progress(done: int, tasks: int) -> None:
        seen.append((done, tasks))
        if len(seen) == 3:
            watched.set()
            bench.spark.sparkContext.cancelAllJobs()

    started = time.monotonic()
    with pytest.raises(AcklineError):
        run_replay(bench.spark, job, progress)
    assert watched.is_set()
    assert set(seen) == {(0, 1)}
    assert time.monotonic() - started < 30
