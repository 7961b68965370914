"""Figures and totals: pure, and the same whenever they are asked for."""

from datetime import timedelta

import pytest

from ackline.commit_rule import Committed
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.metrics import (
    TOTALS,
    Fetches,
    Report,
    due_retries,
    last_fetch,
    metrics_of,
    oldest_pending,
    totals_after,
    waited,
)
from ackline.offsets import LogBounds, Run, TopicPartition
from ackline.outcome import Outcome
from tests.unit.strategies import NOON

AT, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def retry(start: int, end: int, seconds: int) -> Run[Pending]:
    return Run(start, end, Pending(PendingKind.RETRY, 1, NOON + timedelta(seconds=seconds), "ValueError"))


def test_totals_are_those_before_and_what_the_turn_adds() -> None:
    first = totals_after(None, {"acked": 5, "failed": 2}, 0)
    assert list(first) == list(TOTALS)
    assert first == dict.fromkeys(TOTALS, 0) | {"acked": 5, "failed": 2}
    assert totals_after(first, {"acked": 1, "dead": 1}, 2) == first | {"acked": 6, "dead": 1, "retries": 2}
    assert totals_after(first, {}, 0) == first
    assert totals_after({"acked": 5}, {"lost": 1}, 0)["lost"] == 1, "another version may have counted less"


def test_only_retries_whose_time_has_come_are_due() -> None:
    letter = Run(9, 10, Pending(PendingKind.DEAD_LETTER, 2, None, None))
    state = PartitionState(20, (retry(2, 5, 0), retry(7, 8, 1), letter))
    assert due_retries(state, NOON) == 3
    assert due_retries(state, NOON + timedelta(seconds=1)) == 4
    assert (oldest_pending(state), oldest_pending(PartitionState(20))) == (2, None)


def test_figures_leave_out_what_is_not_known() -> None:
    rows = [
        OutcomeRow(3, 2, Outcome.FAILED, NOON),
        OutcomeRow(4, 1, Outcome.FAILED, NOON),
        OutcomeRow(0, 0, Outcome.EXPIRED, NOON, None, 3),
    ]
    state = PartitionState(10, (retry(3, 5, 60),))
    assert metrics_of(state, LogBounds(3, 12), Committed(3, ""), rows, NOON, 4.5) == {
        "log_start": 3, "log_end": 12, "committed": 3, "read": 10, "lag": 9, "lag_seconds": 4.5, "pending_retry": 2,
        "pending_dead_letter": 0, "pending_in_flight": 0, "due": 0, "oldest_pending": 3, "retries": 1,
        "expired_offsets": 3,
    }  # fmt: skip
    bare = metrics_of(PartitionState(10), None, None, [], NOON)
    assert bare.keys() == {"read", "pending_retry", "pending_dead_letter", "pending_in_flight", "due", "retries"}


def test_fetch_figures_are_those_of_the_last_turn_that_read() -> None:
    read = last_fetch(None, Fetches(4, 2.0, 1.5))
    assert read == {"fetches": 4, "fetch_seconds_mean": 0.5, "fetch_seconds_max": 1.5}
    assert last_fetch(read | {"lag": 3.0}) == last_fetch(read, Fetches()) == read
    assert last_fetch(None) == {}


def test_waits_are_those_for_the_source_and_not_for_its_taker() -> None:
    found = list(waited(iter("abc")))
    assert [one for one, _ in found] == ["a", "b", "c"]
    whole = sum((wait for _, wait in found), Fetches())
    assert whole.count == 3
    assert whole.longest <= whole.seconds
    assert Fetches(1, 2.0, 2.0) + Fetches(2, 3.0, 1.0) == Fetches(3, 5.0, 2.0)


def test_a_report_comes_back_as_it_was_said() -> None:
    report = Report({AT: {"acked": 5, "dropped": 1}, TWO: {}}, {AT: Fetches(3, 0.25, 0.125), TWO: Fetches()}, False)
    assert Report.decode(report.encode()) == report
    assert Report.decode(Report().encode()) == Report()


def test_a_report_of_a_thousand_partitions_stays_small() -> None:
    places = [TopicPartition("orders", number) for number in range(1000)]
    counts = {tp: {"acked": 123_456, "failed": 789} for tp in places}
    report = Report(counts, dict.fromkeys(places, Fetches(9, 1.5, 1)))
    assert len(report.encode()) < 128 * 1024


@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}", '{"topics": 5}', '{"topics": {"a": {"x": {}}}}', "null"])
def test_what_is_no_report_is_none(text: str) -> None:
    assert Report.decode(text) is None
