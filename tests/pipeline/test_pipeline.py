"""A valid pipeline file: its defaults, and what its settings become. Refused files: test_refusals.py."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.ledger.backoff import FOREVER, RetryPolicy, parse_duration
from ackline.pipeline.blocks import RetryBlock
from ackline.pipeline.field_types import parse_time
from ackline.pipeline.folder import load_folder
from ackline.pipeline.pipeline import load
from tests.ledger.strategies import REPEATABLE
from tests.support.pipeline_files import Write

EXAMPLES = Path(__file__).parents[2] / "include" / "pipelines"


def test_a_short_file_gets_the_default_settings(write_file: Write) -> None:
    pipeline = load(write_file())
    assert pipeline.kafka.isolation == "read_committed"
    assert (pipeline.guarantee, pipeline.start) == ("at_least_once", "uncommitted_earliest")
    assert (pipeline.max_uncommitted, pipeline.max_records_per_run) == (10_000_000, 5_000_000)
    assert (pipeline.tombstones, pipeline.dead_letter_topic) == ("skip", "orders.dead")
    assert pipeline.retry.policy() == RetryPolicy(
        timedelta(0), timedelta(minutes=1), 2.0, timedelta(hours=1), max_retries=5
    )


def test_each_example_of_the_project_is_valid() -> None:
    loaded = load_folder(EXAMPLES)
    assert loaded.pipelines
    assert not loaded.broken


def test_the_retry_block_is_the_policy_of_the_backoff(write_file: Write) -> None:
    block = "retry: {initial_delay: 100ms, period: 2s, multiplier: 3, max_delay: 1h30m, max_retries: 0}\n"
    assert load(write_file(more=block)).retry.policy() == RetryPolicy(
        timedelta(milliseconds=100), timedelta(seconds=2), 3.0, timedelta(minutes=90), 0
    )


def test_a_file_can_ask_for_retries_without_end_and_for_such_of_one_error_class(write_file: Write) -> None:
    block = "retry: {max_retries: forever, by_error: {KeyError: {max_retries: 2}}}\n"
    stored = load(write_file(more=block)).settings()["retry"]
    assert (stored["max_retries"], stored["by_error"]["KeyError"]["max_retries"]) == ("forever", 2)
    policy = RetryBlock.stored(json.loads(json.dumps(stored))).policy()
    assert isinstance(policy, RetryPolicy)
    assert (policy.max_retries, policy.by_error["KeyError"]) == (FOREVER, RetryPolicy(max_retries=2))
    of_class = load(write_file(more="retry: {by_error: {KeyError: {max_retries: forever}}}\n")).retry.policy()
    assert isinstance(of_class, RetryPolicy)
    assert (of_class.max_retries, of_class.by_error["KeyError"]) == (5, RetryPolicy(max_retries=FOREVER))


def test_a_file_can_do_without_a_dead_letter_topic(write_file: Write) -> None:
    assert load(write_file(("{topic: orders.dead}", "none"))).dead_letter_topic is None


@pytest.mark.parametrize(
    "tree", ["", "steps:\n  - {name: a, handler: 'x:x', input: source}\noutputs:\n  - {from: a.b, table: c}\n"]
)
def test_a_time_limit_needs_a_process_of_its_own(write_file: Write, tree: str) -> None:
    """Only the end of its process ends a call that hangs in C."""
    assert not load(write_file(more=tree)).isolated
    assert load(write_file(more=f"handler_isolation: process\n{tree}")).isolated
    limited = load(write_file(more=f"record_timeout: 1m30s\n{tree}"))
    assert (limited.isolated, limited.settings()["record_timeout"]) == (True, "90s")


def test_i13_settings_for_tables_and_logs_hold_no_value_of_a_kafka_property(write_file: Write) -> None:
    settings = load(write_file(("  topics:", "  properties: {sasl.password: hunter2}\n  topics:"))).settings()
    assert "hunter2" not in str(settings)
    assert (settings["kafka"]["properties"], settings["retry"]["period"]) == (["sasl.password"], "60s")


def test_records_in_flight_have_thirty_seconds_unless_the_file_says_otherwise(write_file: Write) -> None:
    connection = ("bootstrap_servers: 127.0.0.1:9092", "connection: shop")
    plain = load(write_file(connection, more="ack_topic: acks\n"))
    assert (plain.ack_topic, plain.in_flight.timeout, plain.in_flight.max) == ("acks", timedelta(seconds=30), None)
    none = load(write_file(connection, more="ack_topic: acks\nin_flight: {timeout: none, max: 5}\n"))
    assert (none.in_flight.timeout, none.in_flight.max) == (None, 5)
    assert none.settings()["in_flight"] == {"timeout": "none", "max": 5}


def test_s33_explicit_partitions_are_the_only_ones(write_file: Write) -> None:
    kafka = load(write_file(("topics: [orders]", "partitions: {orders: [0, 2]}"))).kafka
    assert [kafka.subscribes_to("orders", partition) for partition in range(4)] == [True, False, True, False]
    assert not kafka.subscribes_to("payments", 0)
    assert kafka.named_topics == ("orders",)


def test_s32_a_pattern_matches_whole_names_only(write_file: Write) -> None:
    kafka = load(write_file(("topics: [orders]", 'pattern: "shop-.*"'))).kafka
    topics = ("shop-orders", "my-shop-orders", "shop-")
    assert [kafka.subscribes_to_topic(topic) for topic in topics] == [True, False, True]
    assert kafka.named_topics is None


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
