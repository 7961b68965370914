"""The metrics and totals of a turn, the report of its tasks, and the figures of steps."""

import json
from datetime import timedelta
from typing import Any

import pytest

from ackline.handler import Durations, StepCounts
from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.metrics import (
    TOTALS,
    FetchTimes,
    StepFigures,
    TurnReport,
    due_retries,
    fetch_metrics,
    figures_over,
    oldest_pending,
    partition_metrics,
    steps_json,
    timed_fetches,
    totals_after,
)
from ackline.ledger.offsets import LogBounds, TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from tests.ledger.strategies import NOON

TP, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def retry(start: int, end: int, seconds: int) -> ValuedRange[Pending]:
    return ValuedRange(start, end, Pending(PendingKind.RETRY, 1, NOON + timedelta(seconds=seconds), "ValueError"))


def test_totals_are_those_before_plus_what_the_turn_adds() -> None:
    first = totals_after(None, {"acked": 5, "failed": 2}, 0)
    assert (list(first), first) == (list(TOTALS), dict.fromkeys(TOTALS, 0) | {"acked": 5, "failed": 2})
    assert totals_after(first, {"acked": 1, "dead": 1}, 2) == first | {"acked": 6, "dead": 1, "retries": 2}
    assert totals_after(first, {}, 0) == first
    assert totals_after({"acked": 5}, {"lost": 1}, 0)["lost"] == 1, "a stored total may lack a key"


def test_a_retry_counts_as_due_from_its_due_time_on() -> None:
    letter = ValuedRange(9, 10, Pending(PendingKind.DEAD_LETTER, 2, None, None))
    state = PartitionState(20, (retry(2, 5, 0), retry(7, 8, 1), letter))
    assert (due_retries(state, NOON), due_retries(state, NOON + timedelta(seconds=1))) == (3, 4)
    assert (oldest_pending(state), oldest_pending(PartitionState(20))) == (2, None)


def test_metrics_leave_out_what_is_not_known() -> None:
    rows = [
        OutcomeRow(3, 2, Outcome.FAILED, NOON),
        OutcomeRow(4, 1, Outcome.FAILED, NOON),
        OutcomeRow(0, 0, Outcome.EXPIRED, NOON, None, 3),
    ]
    state = PartitionState(10, (retry(3, 5, 60),))
    assert partition_metrics(state, LogBounds(3, 12), Committed(3, ""), rows, NOON, 4.5) == {
        "log_start": 3, "log_end": 12, "committed": 3, "read": 10, "lag": 9, "lag_seconds": 4.5, "pending_retry": 2,
        "pending_dead_letter": 0, "pending_in_flight": 0, "pending_held_back": 0, "due": 0, "oldest_pending": 3,
        "retries": 1, "expired_in_ranges": 3,
    }  # fmt: skip
    fewest = partition_metrics(PartitionState(10), None, None, [], NOON)
    kinds = {f"pending_{kind.value}" for kind in PendingKind}
    assert fewest.keys() == {"read", *kinds, "due", "retries"}


def test_fetch_metrics_are_those_of_the_last_turn_that_read() -> None:
    read = fetch_metrics(None, FetchTimes(4, 2.0, 1.5))
    assert read == {"fetches": 4, "fetch_seconds_mean": 0.5, "fetch_seconds_max": 1.5}
    assert fetch_metrics(read | {"lag": 3.0}) == fetch_metrics(read, FetchTimes()) == read
    assert fetch_metrics(None) == {}


def test_only_the_wait_for_the_source_is_timed_and_not_the_work_on_an_item() -> None:
    times = iter([0.0, 2.0, 10.0, 13.0, 20.0])  # a reading before and after each fetch; the last fetch finds the end
    fetched = list(timed_fetches(iter("ab"), lambda: next(times)))
    assert fetched == [("a", FetchTimes(1, 2.0, 2.0)), ("b", FetchTimes(1, 3.0, 3.0))]
    assert FetchTimes(1, 2.0, 2.0) + FetchTimes(2, 3.0, 1.0) == FetchTimes(3, 5.0, 2.0)


@pytest.mark.parametrize("report", [
    TurnReport(),
    TurnReport({TP: {"acked": 5, "dropped": 1}, TWO: {}}, {TP: FetchTimes(3, 0.25, 0.125), TWO: FetchTimes()}, False),
])  # fmt: skip
def test_a_report_is_read_back_as_it_was_stored(report: TurnReport) -> None:
    assert TurnReport.decode(report.encode()) == report


def test_a_report_of_a_thousand_partitions_stays_small() -> None:
    partitions = [TopicPartition("orders", number) for number in range(1000)]
    counts = {tp: {"acked": 123_456, "failed": 789} for tp in partitions}
    report = TurnReport(counts, dict.fromkeys(partitions, FetchTimes(9, 1.5, 1)))
    assert len(report.encode()) < 128 * 1024


@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}", '{"topics": 5}', '{"topics": {"a": {"x": {}}}}', "null"])
def test_a_text_that_holds_no_report_is_none(text: str) -> None:
    assert TurnReport.decode(text) is None


def figures(**steps: tuple[int, int, int, int, int]) -> StepFigures:
    """Figures of one turn. A step has executed, emitted, acked, failed and the milliseconds of its only call."""
    done = {
        name: StepCounts(executed, emitted, acked, failed, ms(time))
        for name, (executed, emitted, acked, failed, time) in steps.items()
    }
    return StepFigures(done, Durations(2, 30_000_000, 20_000_000))


def ms(time: int) -> Durations:
    return Durations(1, time * 1_000_000, time * 1_000_000)


def test_a_duration_keeps_number_sum_and_maximum() -> None:
    spans = Durations()
    for nanoseconds in (5, 1, 9, 3):
        spans.measure(nanoseconds)
    assert spans == Durations(4, 18, 9)
    spans.add(Durations(2, 20, 12))
    assert spans == Durations(6, 38, 12)


def test_the_figures_of_turns_are_added_up_for_the_steps_of_the_file() -> None:
    first = figures(source=(3, 9, 2, 1, 4), price=(9, 0, 8, 1, 6), gone=(1, 1, 1, 1, 1))
    second = figures(source=(1, 3, 1, 0, 2), price=(3, 0, 3, 0, 8))
    total = figures_over([first.encode(), None, second.encode()], ["price", "new"])
    assert (list(total.steps), total.turns) == (["source", "price", "new"], 2)
    assert steps_json(total) == {
        "steps": [
            {"step": "source", "executed": 4, "emitted": 12, "acked": 3, "failed": 1, "execute_ms": times(3.0, 4.0)},
            {"step": "price", "executed": 12, "emitted": 0, "acked": 11, "failed": 1, "execute_ms": times(7.0, 8.0)},
            {"step": "new", "executed": 0, "emitted": 0, "acked": 0, "failed": 0, "execute_ms": times(None, None)},
        ],
        "complete_latency_ms": times(15.0, 20.0),
    }


def times(mean: float | None, longest: float | None) -> dict[str, float | None]:
    return {"mean": mean, "max": longest}


def test_without_the_file_the_steps_are_those_of_the_newest_turn() -> None:
    stored = [figures(source=(1, 0, 1, 0, 1), gone=(1, 1, 1, 1, 1)), figures(source=(1, 0, 1, 0, 1))]
    assert list(figures_over([turn.encode() for turn in stored]).steps) == ["source"]
    assert figures_over([]) == StepFigures({}, turns=0)


def test_the_tables_hold_the_figures_to_a_nanosecond() -> None:
    stored = figures(source=(3, 9, 2, 1, 4))
    stored.steps["source"].execute = Durations(7, 1_000_000_001, 900_000_003)
    assert StepFigures.decode(stored.encode()) == stored
    assert json.loads(stored.encode())["steps"]["source"]["execute_ms_max"] == 900.000003


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "no json", '{"steps": {"a": 1}}', '{"steps": []}'])
def test_what_holds_no_figures_is_none(text: Any) -> None:
    assert StepFigures.decode(text) is None
