"""Turns that keep no rows (`record_outcomes: false`): their counts are compared with the records of the log."""

import pytest

from tests.unit.verify.fabricated import History, plan, settlement, without_rows


def test_a_history_without_rows_passes_and_is_counted() -> None:
    report = without_rows().judged()
    assert (report.violations, report.totals["acked"], report.totals["dropped"]) == ([], 8, 1)


@pytest.mark.parametrize("acked", [7, 9])
def test_a_count_that_differs_from_the_records_is_found_i4(acked: int) -> None:
    assert without_rows(acked).violations() == [
        f"I4 orders[0]: turn 1 counts {acked + 1} outcomes of [0, 10), which holds 9 records"
    ]


def test_a_compacted_log_may_have_lost_records_since_they_were_counted_i4() -> None:
    more, fewer = without_rows(9), without_rows(7)
    more.aborted = fewer.aborted = []
    assert more.violations() == []
    assert fewer.violations() == ["I4 orders[0]: turn 1 counts 8 outcomes of [0, 10), which holds 9 records"]


def test_counts_that_are_not_stored_any_more_are_no_violation() -> None:
    assert without_rows(0, gaps=None).violations() == []


def test_a_range_that_no_turn_read_is_found_although_no_turn_kept_rows_i2() -> None:
    history = without_rows()
    history.plans = [plan(1, 0, 8, settings=history.plans[0]["settings"])]
    history.settlements[1] = settlement(1, 0, 10, 10, counts=[("acked", 7)], gaps=1)
    found = [line.split(":")[0] for line in history.violations() if line.startswith("I2")]
    assert found == ["I2 orders[0] offset 8", "I2 orders[0] offset 9"]


def test_a_turn_that_was_to_keep_no_rows_and_kept_some_is_judged_by_them_i4() -> None:
    history, settings = History(), without_rows().plans[0]["settings"]
    history.plans = [plan(1, 0, 10, settings=settings), plan(2, 10, 10, settings=settings)]
    assert history.violations() == []
    history.outcomes.remove(history.find(1, 4))
    assert any(line.startswith("I4 orders[0] offset 4") for line in history.violations())
