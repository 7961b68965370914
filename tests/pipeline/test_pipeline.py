"""A valid pipeline file: its defaults, and what its settings become. Refused files: test_pipeline_refusals.py."""

import json
from datetime import timedelta
from pathlib import Path

from ackline.ledger.backoff import FOREVER, RetryPolicy
from ackline.pipeline.blocks import RetryBlock
from ackline.pipeline.folder import load_folder
from ackline.pipeline.pipeline import load
from tests.support.pipeline_files import Write

EXAMPLES = Path(__file__).parents[2] / "include" / "pipelines"


def test_a_short_file_gets_the_default_settings(write_file: Write) -> None:
    pipeline = load(write_file())
    assert pipeline.kafka.isolation == "read_committed"
    assert (pipeline.guarantee, pipeline.start) == ("at_least_once", "uncommitted_earliest")
    assert (pipeline.max_uncommitted, pipeline.max_records_per_run) == (10_000_000, 5_000_000)
    assert pipeline.tombstones == "skip"
    assert pipeline.dead_letter_topic == "orders.dead"
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


def test_a_time_limit_needs_a_process_of_its_own(write_file: Write) -> None:
    """Only the end of its process ends a call that hangs in C."""
    assert not load(write_file()).isolated
    assert load(write_file(more="handler_isolation: process\n")).isolated
    limited = load(write_file(more="record_timeout: 1m30s\n"))
    assert (limited.isolated, limited.settings()["record_timeout"]) == (True, "90s")


def test_the_handlers_of_a_tree_may_have_a_process_of_their_own_and_a_time_limit(write_file: Write) -> None:
    tree = "steps:\n  - {name: a, handler: 'x:x', input: source}\noutputs:\n  - {from: a.b, table: c}\n"
    assert load(write_file(more=f"record_timeout: 1m\n{tree}")).isolated
    assert load(write_file(more=f"handler_isolation: process\n{tree}")).isolated


def test_i13_settings_for_tables_and_logs_hold_no_value_of_a_kafka_property(write_file: Write) -> None:
    settings = load(write_file(("  topics:", "  properties: {sasl.password: hunter2}\n  topics:"))).settings()
    assert "hunter2" not in str(settings)
    assert settings["kafka"]["properties"] == ["sasl.password"]
    assert settings["retry"]["period"] == "60s"


def test_records_in_flight_have_thirty_seconds_unless_the_file_says_otherwise(write_file: Write) -> None:
    connection = ("bootstrap_servers: 127.0.0.1:9092", "connection: shop")
    plain = load(write_file(connection, more="ack_topic: acks\n"))
    assert (plain.ack_topic, plain.in_flight.timeout, plain.in_flight.max) == ("acks", timedelta(seconds=30), None)
    none = load(write_file(connection, more="ack_topic: acks\nin_flight: {timeout: none, max: 5}\n"))
    assert (none.in_flight.timeout, none.in_flight.max) == (None, 5)
    assert none.settings()["in_flight"] == {"timeout": "none", "max": 5}
