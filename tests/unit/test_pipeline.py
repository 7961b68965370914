"""The pipeline file: what it may say, and what comes of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.backoff import RetryPolicy
from ackline.pipeline import Pipeline, load, parse_time
from ackline.pipeline_folder import load_folder
from ackline.retry import parse_duration
from tests.unit.pipeline_files import Write, writer
from tests.unit.strategies import REPEATABLE

EXAMPLES = Path(__file__).parents[2] / "include" / "pipelines"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pipeline file."""
    return writer(tmp_path)


# ---- what holds ---------------------------------------------------------------------------------------------------


def test_a_short_file_gets_the_defaults_of_the_design(write: Write) -> None:
    pipeline = load(write())

    assert pipeline.kafka.isolation == "read_committed"
    assert (pipeline.guarantee, pipeline.start) == ("at_least_once", "uncommitted_earliest")
    assert (pipeline.max_uncommitted, pipeline.max_records_per_run) == (10_000_000, 5_000_000)
    assert pipeline.tombstones == "skip"
    assert pipeline.dead_letter_topic == "orders.dead"
    assert pipeline.retry.policy() == RetryPolicy(
        timedelta(0), timedelta(minutes=1), 2.0, timedelta(hours=1), max_retries=5
    )


def test_each_example_of_the_project_loads() -> None:
    loaded = load_folder(EXAMPLES)
    assert loaded.pipelines
    assert not loaded.broken


def test_the_retry_block_is_the_policy_of_the_backoff(write: Write) -> None:
    block = "retry: {initial_delay: 100ms, period: 2s, multiplier: 3, max_delay: 1h30m, max_retries: 0}\n"
    assert load(write(more=block)).retry.policy() == RetryPolicy(
        timedelta(milliseconds=100), timedelta(seconds=2), 3.0, timedelta(minutes=90), 0
    )


def test_dead_letters_may_be_given_up_in_writing(write: Write) -> None:
    assert load(write(("{topic: orders.dead}", "none"))).dead_letter_topic is None


def test_a_time_limit_needs_a_process_of_its_own(write: Write) -> None:
    """Only a killed process stops a call that hangs in C."""
    assert not load(write()).isolated
    assert load(write(more="isolation: process\n")).isolated
    limited = load(write(more="record_timeout: 1m30s\n"))
    assert (limited.isolated, limited.settings()["record_timeout"]) == (True, "90s")


def test_s33_explicit_partitions_want_only_those(write: Write) -> None:
    kafka = load(write(("topics: [orders]", "partitions: {orders: [0, 2]}"))).kafka
    assert [kafka.wants("orders", n) for n in range(4)] == [True, False, True, False]
    assert not kafka.wants("payments", 0)
    assert kafka.named_topics == ("orders",)


def test_s32_a_pattern_takes_whole_names_only(write: Write) -> None:
    kafka = load(write(("topics: [orders]", 'pattern: "shop-.*"'))).kafka
    assert [kafka.wants_topic(name) for name in ("shop-orders", "my-shop-orders", "shop-")] == [True, False, True]
    assert kafka.named_topics is None


def test_i13_settings_for_tables_and_logs_hold_no_value_of_a_kafka_property(write: Write) -> None:
    settings = load(write(("  topics:", "  properties: {sasl.password: hunter2}\n  topics:"))).settings()
    assert "hunter2" not in str(settings)
    assert settings["kafka"]["properties"] == ["sasl.password"]
    assert settings["retry"]["period"] == "60s"


# ---- durations and times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("250ms", 0.25), ("90s", 90), ("1.5h", 5_400), ("1h30m", 5_400), ("2d", 172_800), ("1m500ms", 60.5)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "5", 5, 0, 1.5, None, True, "s", "-5s", "+5s", "5 s", " 5s", "5s ", "5S", "1e3s", "5y", "1h 30m", ["5s"]],
)  # fmt: skip
def test_anything_else_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="write a duration with its unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "1000000000d"])
def test_a_duration_longer_than_a_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than a calendar"):
        parse_duration(text)


@REPEATABLE
@given(st.integers(0, 10**9), st.sampled_from(["ms", "s"]))
def test_a_duration_in_the_settings_reads_back_as_itself(number: int, unit: str) -> None:
    kafka = {"connection": "k", "group_id": "g", "topics": ["t"]}
    retry = {"max_delay": f"{number}{unit}"}
    pipeline = Pipeline.model_validate(
        {"name": "a", "kafka": kafka, "handler": "h:h", "dead_letter": "none", "retry": retry}
    )
    assert parse_duration(pipeline.settings()["retry"]["max_delay"]) == pipeline.retry.max_delay


def test_a_time_has_a_zone() -> None:
    assert parse_time("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_time("2026-01-31T13:00:00+01:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00", "2026-01-31"):
        with pytest.raises(ValueError, match="has no time zone"):
            parse_time(text)
    with pytest.raises(ValueError, match="tomorrow"):
        parse_time("tomorrow")
