"""Calls that wait, in tasks of real Spark and in this process."""

import pytest

from ackline.errors import TransientError
from ackline.ledger.order import Order, Waiting
from ackline.pipeline.properties import key_hash
from ackline.pipeline.topology import StepBlock, topology
from tests.spark.lab import Lab, each_runner
from tests.spark.waiting import TOGETHER

WAITING = "tests.spark.waiting"


@each_runner
@pytest.mark.parametrize("handler", ["Meet", "meet"])
def test_calls_of_fresh_records_and_of_retries_are_under_way_at_once(lab: Lab, handler: str) -> None:
    tp, other = lab.partitions(2)
    for each in (tp, other):
        lab.put_records(each, [(b"k", b"x")] * 3 * TOGETHER)
    retries = dict.fromkeys(range(TOGETHER), 2)
    job = lab.job(f"{WAITING}:{handler}", {tp: (TOGETHER, 3 * TOGETHER)}, {other: retries}, concurrency=TOGETHER)
    assert lab.run(job).calls == 3 * TOGETHER
    assert {outcome for _, outcome, _ in lab.outcomes(job)} == {"acked"}


@each_runner
def test_calls_of_a_step_and_of_the_source_before_it_are_under_way_at_once(lab: Lab) -> None:
    step = StepBlock(
        name="meets", handler=f"{WAITING}:Meet", input=["source"], group_by="key", concurrency=TOGETHER
    )  # fmt: skip
    tp = lab.put(*[b"x"] * 3 * TOGETHER)
    job = lab.job(
        f"{WAITING}:meet_and_emit", {tp: (0, 3 * TOGETHER)}, topology=topology([step]), concurrency=TOGETHER
    )  # fmt: skip
    result = lab.run(job)
    assert result.steps is not None
    assert {name: done.acked for name, done in result.steps.steps.items()}["meets"] == 3 * TOGETHER
    assert {outcome for _, outcome, _ in lab.outcomes(job)} == {"acked"}


@each_runner
def test_a_close_that_fails_ends_the_job_before_its_outcomes_are_stored(lab: Lab) -> None:
    tp = lab.put(b"x")
    with pytest.raises(TransientError, match=r"`close` of .*:NeverCloses failed: ConnectionReset"):
        lab.run(lab.job(f"{WAITING}:NeverCloses", {tp: (0, 1)}))


@each_runner
def test_a_call_that_hangs_fails_alone_and_needs_no_process_of_its_own(lab: Lab) -> None:
    """Fault 12, for an asynchronous handler. In a process of its own it means the same."""
    tp = lab.put(b"acked", b"hang", b"fail", b"exit", b"skip")
    expected = [
        (0, "acked", None), (1, "failed", "Timeout"), (2, "failed", "ValueError"), (3, "failed", "SystemExit"),
        (4, "skipped", "Skip"),
    ]  # fmt: skip
    for reason in ("", "it has killed its worker"):
        job = lab.job(
            f"{WAITING}:by_word_later", {tp: (0, 5)}, isolated=True, isolated_for_timeout=True, record_timeout=0.5,
            isolation_reason=reason,
        )  # fmt: skip
        lab.run(job)
        assert lab.outcomes(job) == expected, reason


@each_runner
@pytest.mark.parametrize("concurrency", [None, TOGETHER])
def test_s81_one_task_handles_all_records_of_a_partition_in_their_order(
    lab: Lab, concurrency: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an order, each of these partitions would be read by many tasks: by Spark's source, and exactly."""
    for name, size in (("MAX_RECORDS_PER_TASK", 50), ("_MIN_RECORDS_PER_TASK", 20), ("_SMALL", 10)):
        monkeypatch.setattr(f"ackline.spark.lineage.{name}", size)
    monkeypatch.setattr("ackline.worker.tasks._OFFSETS_PER_TASK", 50)
    secret, count = b"a secret of the tests", 400
    fresh, mixed = lab.partitions(2)
    words = [b"acked", b"fail", *[b"acked"] * (count - 2)]
    for tp in (fresh, mixed):  # keys a, b, c in turn, and none
        lab.put_records(tp, [((b"a", b"b", b"c", None)[n % 4], word) for n, word in enumerate(words)])
    waiting = {fresh: Waiting(False, {key_hash(secret)(b"c"): 100})}
    job = lab.job(
        "by_word", {fresh: (0, count), mixed: (10, count)}, {mixed: dict.fromkeys(range(10), 2)}, waiting=waiting,
        order=Order.KEY, key_hash_secret=secret, concurrency=concurrency,
    )  # fmt: skip
    result = lab.run(job)
    held = {fresh: {n for n in range(count) if (n % 4 == 1 and n > 1) or (n % 4 == 2 and n > 100)}}
    held[mixed] = {n for n in range(count) if n % 4 == 1 and n > 1}
    rows = {tp: [row for row in lab.rows(job) if row["partition"] == tp.partition] for tp in held}
    for tp, of_tp in rows.items():
        expected = ["failed" if n == 1 else "held_back" if n in held[tp] else "acked" for n in range(count)]
        assert [row["outcome"] for row in of_tp] == expected
        assert {row["attempt"] for row in of_tp if row["offset"] in held[tp]} == {0}
        assert of_tp[5]["error_message"] == "behind offset 1 of the same key"
    assert result.calls == 2 * count - len(held[fresh]) - len(held[mixed])
    assert result.counts[fresh]["held_back"] == len(held[fresh])  # type: ignore[index]
