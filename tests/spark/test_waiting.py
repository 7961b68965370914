"""Calls that wait, in tasks of real Spark and in this process."""

import pytest

from ackline.errors import TransientError
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
