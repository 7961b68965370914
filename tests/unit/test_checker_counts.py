"""The checker and turns that keep no rows of outcomes: their counts are held against the records."""

import json

import pytest

from tests.unit.test_checker import History, plan, settlement

OFF = json.dumps({"record_outcomes": False})


def counted(acked: int = 8, gaps: int | None = 1) -> History:
    """Turn 1 read everything and kept no rows: one record was dropped."""
    history = History(turn=1, letters=[], outcomes=[])
    history.plans = [plan(1, 0, 10, settings=OFF)]
    counts = [("acked", acked), ("dropped", 1)]
    history.settlements = [
        settlement(0, 0, 0, 0, kind="genesis"),
        settlement(1, 0, 10, 10, counts=counts, gaps=gaps),
    ]
    history.calls = [(offset, 1) for offset in history.records]
    return history


def test_a_history_without_rows_passes_and_is_counted() -> None:
    report = counted().judged()
    assert report.violations == []
    assert (report.totals["acked"], report.totals["dropped"]) == (8, 1)


@pytest.mark.parametrize("acked", [7, 9])
def test_a_count_that_is_not_that_of_the_records_is_found_i4(acked: int) -> None:
    assert counted(acked).judged().violations == [
        f"I4 orders[0]: turn 1 counted {acked + 1} outcomes of [0, 10), which holds 9 records"
    ]


def test_counts_that_are_not_known_any_more_are_no_violation() -> None:
    assert counted(0, gaps=None).judged().violations == []


def test_a_range_that_no_turn_read_is_found_although_no_turn_kept_rows_i2() -> None:
    history = counted()
    history.plans = [plan(1, 0, 8, settings=OFF)]
    history.settlements[1] = settlement(1, 0, 10, 10, counts=[("acked", 7)], gaps=1)
    found = history.judged().violations
    assert [one.split(":")[0] for one in found if one.startswith("I2")] == [
        "I2 orders[0] offset 8", "I2 orders[0] offset 9",
    ]  # fmt: skip


def test_a_turn_that_was_to_keep_none_and_kept_rows_is_judged_by_them_i4() -> None:
    history = History()
    history.plans = [plan(1, 0, 10, settings=OFF), plan(2, 10, 10, settings=OFF)]
    assert history.judged().violations == []
    history.outcomes.remove(history.find(1, 4))
    assert any(one.startswith("I4 orders[0] offset 4") for one in history.judged().violations)
