"""When a failed record is due again, when it gets no further attempt, and what a text of a duration is."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import FOREVER, RetryPolicy, parse_duration
from tests.ledger.pure_lane import naive_delay
from tests.ledger.strategies import NOON, REPEATABLE, policies


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.mark.parametrize(("policy", "delays"), [
    (RetryPolicy(initial_delay=s(1), period=s(4), max_delay=timedelta(days=1)), [1, 8, 16, 32]),
    (RetryPolicy(initial_delay=s(500), period=s(1), max_delay=s(2)), [2, 2]),
    (RetryPolicy(initial_delay=s(0.1), period=s(0.1), max_delay=s(2)), [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]),
], ids=["a period of 4 s doubles from the second attempt on", "the cap holds for the initial delay",
        "S12: 100 ms"])  # fmt: skip
def test_s11_s12_delays_double_from_the_second_attempt_on_and_none_exceeds_max_delay(
    policy: RetryPolicy, delays: list[float]
) -> None:
    assert [policy.delay(n) for n in range(1, len(delays) + 1)] == [s(delay) for delay in delays]


@pytest.mark.parametrize("attempts", [44, 45, 63, 64, 65, 1_024, 2**31, 10**100])
@pytest.mark.parametrize("multiplier", [1.0, 1.0000001, 2, 1_000])
def test_s11_no_number_of_attempts_overflows(attempts: int, multiplier: float) -> None:
    policy = RetryPolicy(period=s(4), multiplier=multiplier, max_delay=s(3_600))
    assert s(4) <= policy.delay(attempts) <= s(3_600)
    assert multiplier < 2 or policy.delay(attempts) == s(3_600)


@pytest.mark.parametrize("attempts", [2, 36, 37, 38, 39, 1_000])
def test_s11_the_longest_delay_there_is_does_not_overflow(attempts: int) -> None:
    policy = RetryPolicy(period=timedelta(days=999_999_999), multiplier=1.5, max_delay=timedelta.max)
    assert policy.delay(attempts) == timedelta.max
    assert policy.due_time(NOON, attempts) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("attempts", [2, 1_000, 1_025, 10**6, 10**100])
def test_s11_without_a_period_no_retry_waits(attempts: int) -> None:
    assert RetryPolicy(initial_delay=s(5), period=s(0), multiplier=2).delay(attempts) == s(0)


@REPEATABLE
@given(policies(), st.integers(1, 12))
def test_the_delay_is_the_formula(policy: RetryPolicy, attempts: int) -> None:
    assert policy.delay(attempts) == naive_delay(policy, attempts)


@REPEATABLE
@given(policies(), st.integers(2, 10**6))
def test_a_later_attempt_never_waits_less(policy: RetryPolicy, attempts: int) -> None:
    assert timedelta(0) <= policy.delay(attempts) <= policy.delay(attempts + 1) <= policy.max_delay


@REPEATABLE
@given(
    st.builds(
        RetryPolicy,
        initial_delay=st.timedeltas(timedelta(0), timedelta.max),
        period=st.timedeltas(timedelta(0), timedelta.max),
        multiplier=st.floats(1, 1_000),
        max_delay=st.timedeltas(timedelta(0), timedelta.max),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 10**9),
    st.datetimes(timezones=st.just(UTC)),
)
def test_any_policy_of_a_pipeline_file_has_a_due_time(policy: RetryPolicy, attempts: int, time: datetime) -> None:
    assert timedelta(0) <= policy.delay(attempts) <= policy.max_delay
    assert time <= policy.due_time(time, attempts, "seed") == policy.due_time(time, attempts, "seed")


@pytest.mark.parametrize("attempts", [1, 6, 70_000, FOREVER])
def test_with_retries_forever_an_attempt_always_follows_and_its_number_fits_the_tables(attempts: int) -> None:
    policy = RetryPolicy(max_retries=FOREVER)
    due = policy.next_attempt(attempts, NOON, "ValueError", "seed")
    assert due is not None
    assert NOON <= due <= NOON + timedelta(hours=1)
    assert pa.scalar(attempts + 1, pa.int32()).as_py() == attempts + 1
    assert policy.next_attempt(FOREVER + 1, NOON, "ValueError", "seed") is None, "the columns hold no higher number"


@pytest.mark.parametrize("attempts", [0, -1])
def test_attempts_count_from_one(attempts: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        RetryPolicy().delay(attempts)


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
