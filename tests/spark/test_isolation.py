"""Faults 11 and 12 on real Spark: a handler in processes of its own, beside Spark's Python workers."""

import json

from ackline.ledger.offsets import TopicPartition
from tests.kafka.kafka_log import put
from tests.spark.lab import Lab
from tests.worker.isolation.test_isolated_tasks import EXPECTED, GROUPED, SPLIT, WORDS, items


def test_what_kills_or_hangs_its_process_fails_alone(lab: Lab) -> None:
    """Fresh records of one partition and retries of another, in one job."""
    name = lab.topic(2)
    for partition in range(2):
        put(lab.broker, name, [(b"k", word) for word in WORDS], partition)
    fresh, retries = TopicPartition(name, 0), TopicPartition(name, 1)
    attempts = {retries: dict.fromkeys(range(1, 6), 2)}
    job = lab.job("by_deed", {fresh: (0, 6)}, attempts, isolated=True, record_timeout=3.0)
    result = lab.run(job)
    assert (lab.outcomes(job), result.calls) == (EXPECTED + EXPECTED[1:], 9)


def test_a_tuple_that_kills_its_process_fails_its_record_alone(lab: Lab) -> None:
    """In the task of a step behind an exchange, at most once."""
    records = [items({}, {}), items({}, {"second": "segfault"}, {}), items({}, {})]
    tp = lab.put(*(json.dumps({"items": record}).encode() for record in records))
    job = lab.ran(SPLIT, {tp: (0, 3)}, topology=GROUPED, isolated=True, once=True)
    assert lab.outcomes(job) == [(0, "acked", None), (1, "failed", "WorkerLost"), (2, "acked", None)]
    assert set(lab.calls(tp.topic).values()) == {1}
