"""Which timestamps of records are times, and what is made of attempts that the clock of another host has stamped."""

from datetime import UTC, datetime, timedelta

import pytest

from ackline.ledger.outcomes import LATEST_MILLISECOND, Outcome, OutcomeColumns, OutcomeRow, timestamp_of
from ackline.ledger.pending import microseconds


@pytest.mark.parametrize(("milliseconds", "time"), [
    (0, datetime(1970, 1, 1, tzinfo=UTC)),
    (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)),
    (LATEST_MILLISECOND, datetime.max.replace(tzinfo=UTC, microsecond=999_000)),
    (LATEST_MILLISECOND + 1, None),
    (1_700_000_000_000_000, None),
    (2**63 - 1, None),
    (-1, None),
    (-62_135_596_800_000, None),
    (-(2**63), None),
])  # fmt: skip
def test_a_timestamp_is_a_time_from_1970_to_9999(milliseconds: int, time: datetime | None) -> None:
    assert timestamp_of(milliseconds) == time


def test_the_latest_time_is_the_last_millisecond_that_a_datetime_holds() -> None:
    latest = timestamp_of(LATEST_MILLISECOND)
    assert latest is not None
    with pytest.raises(OverflowError):
        latest + timedelta(milliseconds=1)


def test_an_attempt_counts_as_handled_when_it_was_reported_at_the_latest_and_its_deadline_moves_along() -> None:
    noon, second = datetime(2026, 3, 1, 12, tzinfo=UTC), timedelta(seconds=1)
    rows = [
        OutcomeRow(0, 1, Outcome.FAILED, noon - second, "E"),
        OutcomeRow(1, 1, Outcome.FAILED, noon + 3 * second, "E"),
        OutcomeRow(2, 1, Outcome.IN_FLIGHT, noon + 3 * second, None, due=noon + 33 * second),
        OutcomeRow(3, 0, Outcome.EXPIRED, noon + 3 * second, None, 9),
    ]
    columns = OutcomeColumns.of(rows)
    moved = list(columns.not_after(microseconds(noon)))
    assert [row.handled_at for row in moved] == [noon - second, noon, noon, noon + 3 * second]
    assert [row.due for row in moved] == [None, None, noon + 30 * second, None]
    assert list(columns) == rows
    assert columns.not_after(microseconds(noon + 9 * second)) is columns
