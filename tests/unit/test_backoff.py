"""Backoff: when a failed record is due again, and when it never is."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.backoff import RetryPolicy
from tests.unit.naive_ledger import naive_delay
from tests.unit.strategies import NOON, REPEATABLE, after, policies


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_s10_the_last_failure_counts_not_the_first() -> None:
    policy = RetryPolicy(initial_delay=s(1), period=s(1), multiplier=1, max_delay=s(1))

    assert policy.due(after(0), 1) == after(1)
    assert policy.due(after(0.5), 2) == after(1.5)


def test_s11_period_4_s_doubles_from_the_second_attempt() -> None:
    policy = RetryPolicy(initial_delay=s(1), period=s(4), max_delay=timedelta(days=1))

    assert [policy.delay(n) for n in (1, 2, 3, 4)] == [s(1), s(8), s(16), s(32)]


def test_s11_the_cap_holds_for_the_initial_delay_too() -> None:
    assert RetryPolicy(initial_delay=s(500), max_delay=s(2)).delay(1) == s(2)


@pytest.mark.parametrize("attempts", [44, 45, 63, 64, 65, 1_024, 2**31, 10**100])
@pytest.mark.parametrize("multiplier", [1.0, 1.0000001, 2, 1_000])
def test_s11_no_number_of_attempts_overflows(attempts: int, multiplier: float) -> None:
    policy = RetryPolicy(period=s(4), multiplier=multiplier, max_delay=s(3_600))

    assert s(4) <= policy.delay(attempts) <= s(3_600)
    assert multiplier < 2 or policy.delay(attempts) == s(3_600)


@pytest.mark.parametrize("attempts", [2, 36, 37, 38, 39, 1_000])
def test_s11_not_even_under_the_longest_cap_there_is(attempts: int) -> None:
    policy = RetryPolicy(period=timedelta(days=999_999_999), multiplier=1.5, max_delay=timedelta.max)

    assert policy.delay(attempts) == timedelta.max
    assert policy.due(NOON, attempts) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize("attempts", [2, 1_000, 1_025, 10**6, 10**100])
def test_s11_without_a_period_no_retry_waits(attempts: int) -> None:
    assert RetryPolicy(initial_delay=s(5), period=s(0), multiplier=2).delay(attempts) == s(0)


def test_s12_the_multiplier_form() -> None:
    policy = RetryPolicy(initial_delay=s(0.1), period=s(0.1), multiplier=2, max_delay=s(2))

    assert [policy.delay(n) for n in range(1, 8)] == [s(0.1), s(0.2), s(0.4), s(0.8), s(1.6), s(2), s(2)]


def test_s13_max_retries_3_means_four_attempts() -> None:
    policy = RetryPolicy(max_retries=3)

    assert [policy.exhausted(n) for n in (1, 2, 3, 4)] == [False, False, False, True]
    assert RetryPolicy(max_retries=0).exhausted(1)


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
    ),
    st.integers(1, 10**9),
    st.datetimes(timezones=st.just(UTC)),
)
def test_whatever_a_pipeline_file_may_say_has_a_due_time(policy: RetryPolicy, attempts: int, tp: datetime) -> None:
    assert timedelta(0) <= policy.delay(attempts) <= policy.max_delay
    assert policy.due(tp, attempts) >= tp


@pytest.mark.parametrize("attempts", [0, -1])
def test_attempts_count_from_one(attempts: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        RetryPolicy().delay(attempts)


def test_a_time_beyond_the_calendar_is_the_end_of_time() -> None:
    last_day = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)

    assert RetryPolicy(initial_delay=s(60)).due(last_day, 1) == datetime.max.replace(tzinfo=UTC)
