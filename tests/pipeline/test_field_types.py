"""Times in a pipeline file and in the command's options have a zone. Refused names: test_pipeline_refusals.py.

Durations in a pipeline file: a number with its unit, and nothing else.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.pipeline.blocks import RetryBlock
from ackline.pipeline.field_types import parse_duration, parse_time
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("250ms", 0.25), ("90s", 90), ("1.5h", 5_400), ("1h30m", 5_400), ("2d", 172_800), ("1m500ms", 60.5)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "5", 5, 0, 1.5, None, True, "s", "-5s", "+5s", "5 s", " 5s", "5s ", "5S", "1e3s", "5y", "1h 30m", ["5s"]],
)
def test_anything_else_is_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError, match="write a duration with its unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 60 + "s", "1000000000d"])
def test_a_duration_longer_than_a_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration(text)


def test_a_text_of_more_than_64_characters_is_refused_without_being_looked_at() -> None:
    assert parse_duration("0" * 63 + "s") == timedelta()
    for text in ("0" * 64 + "s", "1" * 1_000_000, "1s" * 33):
        with pytest.raises(ValueError, match=f"write a duration with its unit.* not a text of {len(text)} characters"):
            parse_duration(text)


@REPEATABLE
@given(st.integers(0, 10**9), st.sampled_from(["ms", "s"]))
def test_a_duration_in_the_settings_reads_back_as_itself(number: int, unit: str) -> None:
    block = RetryBlock.model_validate({"max_delay": f"{number}{unit}"})
    assert parse_duration(block.model_dump(mode="json")["max_delay"]) == block.max_delay
