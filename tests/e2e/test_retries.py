"""Retries, end to end: what is due, and nothing else, is read again; what is exhausted is buried (S13–S19)."""

import pytest

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, fails

FAILS_ONCE = {"fail": 1}
ALWAYS = {"fail": -1}
MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_s13_attempts_one_to_four_then_dead_and_the_commit_passes_it(lab: MakeLab) -> None:
    one = lab(retry={"max_retries": 3, "period": "10s", "multiplier": 2})
    one.records(3, {1: ALWAYS})
    for _ in range(4):
        one.run()
        one.wait(80)
    assert [row for row in one.rows() if row.offset == 1] == [
        Row(1, 0, "dead"),
        Row(1, 1, "failed"),
        Row(1, 2, "failed"),
        Row(1, 3, "failed"),
        Row(1, 4, "failed"),
    ]
    assert one.committed() == 3
    assert len(one.letters()) == 1
    one.judge(settled=True)


def test_s13_without_retries_four_failures_are_four_dead_letters_and_commit_4(lab: MakeLab) -> None:
    one = lab(retry={"max_retries": 0})
    one.records(4, fails(range(4), -1))
    one.run()
    assert one.committed() == 4
    assert [letter.said()["offset"] for letter in one.letters()] == ["0", "1", "2", "3"]
    one.judge(settled=True)


def test_s14_the_next_run_handles_what_failed_and_nothing_else(lab: MakeLab) -> None:
    one = lab()
    one.records(20, {0: FAILS_ONCE})
    one.run()
    assert one.offsets() == list(range(20))
    assert one.committed() == 0
    assert one.run().calls == 1
    assert one.handled() == [(0, 2)]
    assert one.committed() == 20
    assert one.run().calls == 0
    one.judge(settled=True)


def test_s15_a_run_of_at_most_ten_handles_the_eleventh_record_once_in_all(lab: MakeLab) -> None:
    one = lab(max_records_per_run=10)
    one.records(11, {0: FAILS_ONCE})
    one.run()
    assert one.offsets() == list(range(10))
    one.run()
    assert one.handled() == [(0, 2), (10, 1)]
    assert one.committed() == 11
    assert one.run().calls == 0
    one.judge(settled=True)


def test_s16_exactly_those_that_failed_are_handled_by_the_next_due_run(lab: MakeLab) -> None:
    one = lab(retry=MINUTE)
    one.records(10, {5: FAILS_ONCE, 3: FAILS_ONCE, 2: FAILS_ONCE})
    one.run()
    one.offsets()
    one.wait(59)
    assert one.run().calls == 0
    one.wait(1)
    one.run()
    assert one.handled() == [(2, 2), (3, 2), (5, 2)]
    one.judge(settled=True)


def test_s17_a_failure_holds_the_commit_and_a_fix_releases_it(lab: MakeLab) -> None:
    one = lab()
    one.records(10, {1: FAILS_ONCE})
    one.run()
    assert one.offsets() == list(range(10))
    assert one.committed() == 1
    one.run()
    assert one.committed() == 10
    one.judge(settled=True)


def test_s18_only_what_is_due_is_read(lab: MakeLab) -> None:
    one = lab(retry=MINUTE, max_records_per_run=1)
    one.records(2, {0: FAILS_ONCE, 1: FAILS_ONCE})
    one.run()
    one.wait(30)
    one.run()
    assert one.offsets() == [0, 1]
    one.wait(30)
    one.run()
    assert one.handled() == [(0, 2)]
    one.wait(30)
    one.run()
    assert one.handled() == [(1, 2)]
    one.judge(settled=True)


def test_s19_two_topics_and_their_partitions_do_not_disturb_one_another(lab: MakeLab) -> None:
    one = lab(topics=2, partitions=2)
    first, second = one.topics
    one.records(6, {4: FAILS_ONCE, 1: FAILS_ONCE}, topic=first, partition=0)
    one.records(3, {0: ALWAYS}, topic=second, partition=1)
    one.run()
    assert [one.committed(p, t) for t in (first, second) for p in (0, 1)] == [1, 0, 0, 0]
    before = len(one.calls())
    one.run()
    retried = one.calls()[before:]
    assert [c.offset for c in retried if c.topic == first] == [1, 4]  # in the order of the log
    assert [(c.partition, c.offset) for c in retried if c.topic == second] == [(1, 0)]
    assert [one.committed(p, t) for t in (first, second) for p in (0, 1)] == [6, 0, 0, 0]


def test_skip_and_dead_settle_a_record_at_its_first_attempt(lab: MakeLab) -> None:
    one = lab()
    one.records(4, {1: {"skip": True}, 2: {"dead": True}})
    one.run()
    assert one.rows() == [
        Row(0, 1, "acked"),
        Row(1, 1, "skipped"),
        Row(2, 0, "dead"),
        Row(2, 1, "failed"),
        Row(3, 1, "acked"),
    ]
    assert one.letters()[0].said()["error_class"] == "Dead"
    one.judge(settled=True)


def test_without_a_dead_letter_topic_what_is_given_up_is_dead_all_the_same(lab: MakeLab) -> None:
    one = lab(dead_letter="none", retry={"max_retries": 0})
    one.records(2, {0: ALWAYS})
    one.run()
    assert one.rows() == [Row(0, 0, "dead"), Row(0, 1, "failed"), Row(1, 1, "acked")]
    one.judge(settled=True)


@pytest.mark.parametrize("hours", [1, 24 * 40])
def test_a_clock_that_jumps_neither_stalls_nor_hurries(lab: MakeLab, hours: int) -> None:
    """Fault 27: what was not due is due after the jump, once; attempts stay in their order (I5)."""
    one = lab(retry={"max_retries": 2, "period": "30m"})
    one.records(2, {0: {"fail": 2}})
    one.run()
    one.wait(3600 * hours)
    one.run()
    one.wait(3600 * hours)
    one.run()
    assert one.handled() == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert one.rows()[-1:] == all_of("acked", [1])
    one.judge(settled=True)
