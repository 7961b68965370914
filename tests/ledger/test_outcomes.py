"""Which timestamps of records are times."""

from datetime import UTC, datetime, timedelta

import pytest

from ackline.ledger.outcomes import LATEST_MILLISECOND, timestamp_of


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
