"""Times in a pipeline file and in the command's options have a zone. Refused names: test_pipeline_refusals.py."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import parse_duration
from ackline.pipeline.blocks import RetryBlock
from ackline.pipeline.field_types import parse_time
from tests.ledger.strategies import REPEATABLE


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"])
def test_a_time_with_its_zone_is_read_as_utc(text: str) -> None:
    time = parse_time(text)
    assert (time, time.tzinfo) == (datetime(2026, 1, 31, 12, tzinfo=UTC), UTC)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("2026-01-31T12:00:00", "no time zone"), ("2026-01-31", "no time zone"), ("tomorrow", "'tomorrow' is not a time")],
)
def test_a_time_without_a_zone_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_time(text)


@REPEATABLE
@given(st.integers(0, 10**9), st.sampled_from(["ms", "s"]))
def test_a_duration_in_the_settings_reads_back_as_itself(number: int, unit: str) -> None:
    block = RetryBlock.model_validate({"max_delay": f"{number}{unit}"})
    assert parse_duration(block.model_dump(mode="json")["max_delay"]) == block.max_delay
