"""Settings that may lose records, or that have no effect, are named in a warning at every run."""

from datetime import timedelta
from typing import Any

import pytest

from ackline.kafka.config import REQUIRED
from ackline.ledger.backoff import RetryPolicy
from ackline.pipeline import warnings as setting_warnings
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.properties import ignored_properties
from ackline.pipeline.warnings import TopicPolicy, warnings_of_connection, warnings_of_settings, warnings_of_topics

WEEK = TopicPolicy(timedelta(days=7))


def pipeline(**settings: Any) -> Pipeline:
    kafka = {"bootstrap_servers": "x:1", "group_id": "orders-replay", "topics": ["orders"]}
    file = {"name": "orders", "kafka": kafka, "handler": "a:b", "dead_letter": {"topic": "orders.dead"}}
    return Pipeline.model_validate(file | settings)


def of_topics(pipeline: Pipeline, **topics: TopicPolicy) -> list[str]:
    return list(warnings_of_topics(pipeline, {name.replace("_", "."): policy for name, policy in topics.items()}))


@pytest.mark.parametrize(
    ("settings", "days", "warning"),
    [
        # The waits are none, then 2, 4, 8, 16 and 32 minutes, then an hour each.
        ({"retry": {"max_retries": 174}}, 7, "retry: a record may wait 7 d 1 h for its last attempt, and the topic"),
        ({"retry": {"by_error": {"TimeoutError": {"max_retries": 20, "period": "1d", "max_delay": "1d"}}}}, 7,
         "retry: a record may wait 19 d for its last attempt (TimeoutError), and the topic orders keeps it for 7 d"),
        ({"schedule": "@daily"}, 4, "retry: a record may wait 5 d for its last attempt, and the topic orders keeps"),
        ({"retry": {"max_retries": 2**31 - 3, "multiplier": 1.0000001, "max_delay": "900000000d", "jitter": 1.0}}, 7,
         "retry: "),
        ({"retry": {"max_retries": "forever"}}, 7, "retry: with `max_retries: forever` a record that always fails is "
         "retried until the topic orders deletes it, after 7 d (retention.ms): it is then `expired`"),
        ({"retry": {"by_error": {"KeyError": {"max_retries": "forever"}}}}, 7,
         "retry: with `max_retries: forever` (KeyError) a record"),
        ({"max_rate": 5}, 7, "max_rate: a run of max_records_per_run may take 11 d 13 h, and the topic orders keeps"),
    ],
    ids=["retries", "the slowest error class", "retries wait for runs", "a huge multiple of days", "without end",
         "without end for one error class", "a slow run"],
)  # fmt: skip
def test_retention_that_overtakes_retries_or_a_run_is_named_with_both_times(
    settings: dict[str, Any], days: int, warning: str
) -> None:
    [text] = of_topics(pipeline(**settings), orders=TopicPolicy(timedelta(days=days)), payments=TopicPolicy(None))
    assert text.startswith(warning)


@pytest.mark.parametrize(
    ("settings", "days"),
    [({}, 7), ({"retry": {"max_retries": 170}}, 7), ({"schedule": "@hourly"}, 4),
     ({"max_rate": 5, "max_records_per_run": 1000}, 7)],
)  # fmt: skip
def test_retention_that_is_long_enough_is_not_named(settings: dict[str, Any], days: int) -> None:
    assert of_topics(pipeline(**settings), orders=TopicPolicy(timedelta(days=days))) == []


@pytest.mark.parametrize(
    ("schedule", "apart", "hours"),
    [("@weekly", "7 d", 24 * 6), ("* 9-17 * * 1-5", "2 d 15 h", 60), ("30 6 * * *", "1 d", 24),
     ("0 0 1 * *", "31 d", 24 * 30), ("@yearly", "366 d", 24 * 300), ("*/10 * * * *", "10 m", 0.1)],
)  # fmt: skip
def test_a_schedule_whose_runs_are_further_apart_than_retention_is_named(
    schedule: str, apart: str, hours: float
) -> None:
    policy = TopicPolicy(timedelta(hours=hours))
    [text] = of_topics(pipeline(schedule=schedule, retry={"max_retries": 0}), orders=policy, payments=TopicPolicy(None))
    assert text.startswith(f"schedule: its runs are up to {apart} apart, and the topic orders keeps records for ")


@pytest.mark.parametrize(
    "settings",
    [{"retry": {"class": "tests.pipeline.retry_classes:Patient"}}, {"retry": {"max_retries": 0}},
     {"retry": {"max_retries": 10**6}, "guarantee": "no_guarantee", "dead_letter": "none"}],
    ids=["a retry class: its delays are not known", "no retry", "a guarantee without retries"],
)  # fmt: skip
def test_where_no_record_waits_for_a_known_time_there_is_no_warning(settings: dict[str, Any]) -> None:
    assert of_topics(pipeline(**settings), orders=TopicPolicy(timedelta(seconds=1))) == []


@pytest.mark.parametrize("multiplier", [1, 1.0001, 1.5, 2, 1000])
@pytest.mark.parametrize(
    ("initial", "period", "cap"), [(0, 60, 3600), (100, 0.1, 2), (500, 4, 2), (5, 0, 60), (1, 7, 7)]
)
@pytest.mark.parametrize("retries", [0, 1, 2, 5, 60, 500])
def test_the_sum_of_all_delays_is_that_of_the_policy(
    multiplier: float, initial: float, period: float, cap: float, retries: int
) -> None:
    delay, later, longest = (timedelta(seconds=seconds) for seconds in (initial, period, cap))
    policy = RetryPolicy(delay, later, multiplier, longest, retries)
    total = sum(policy.delay(attempt).total_seconds() for attempt in range(1, retries + 1))
    assert setting_warnings._sum_of_delays(policy) == pytest.approx(total, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(("settings", "policy"), [
    ({"cleanup.policy": "delete", "retention.ms": "604800000"}, WEEK),
    ({"cleanup.policy": "delete", "retention.ms": "-1"}, TopicPolicy(None)),
    ({"cleanup.policy": "compact", "retention.ms": "604800000"}, TopicPolicy(None, compacted=True)),
    ({"cleanup.policy": "compact,delete", "retention.ms": "604800000"}, TopicPolicy(WEEK.retention, True)),
    ({"cleanup.policy": "delete", "retention.ms": str(2**63 - 1)}, TopicPolicy(None)),
    ({"cleanup.policy": None, "retention.ms": None}, TopicPolicy(None)),
    ({}, TopicPolicy(None)),
])  # fmt: skip
def test_how_a_topic_deletes_records_is_read_from_its_settings(
    settings: dict[str, str | None], policy: TopicPolicy
) -> None:
    assert TopicPolicy.of({**settings, "local.retention.ms": "1"}) == policy


def test_a_dead_letter_topic_that_is_compacted_is_named() -> None:
    [text] = of_topics(pipeline(), orders_dead=TopicPolicy(timedelta(seconds=1), compacted=True))
    assert text.startswith("dead_letter.topic: orders.dead is compacted")


@pytest.mark.parametrize(("settings", "warning"), [
    ({"guarantee": "no_guarantee"},
     "dead_letter.topic: under `guarantee: no_guarantee` a record that fails is `dropped`, and no dead letter"),
    ({"guarantee": "at_most_once", "dead_letter": "none", "max_rate": 100},
     "lost_after: 1 h is shorter than a run may take at `max_rate` (13 h 53 m for max_records_per_run)"),
    ({"guarantee": "at_most_once", "dead_letter": "none", "breaker": {"failure_ratio": 0.5}},
     "breaker: under `guarantee: at_most_once` it never trips"),
    ({"breaker": {"failure_ratio": 1}}, "breaker: with `failure_ratio: 1` it never trips"),
    *(
        ({"retry": {"by_error": {name: "never", "ValueError": "never"}}}, f"retry.by_error: `{name}` {why}")
        for name, why in [
            ("psycopg2.OperationalError",
             "matches no exception: an exception is recorded under its bare name, `OperationalError`"),
            ("Dead", "is never retried"), ("Skip", "is no failure"), ("Tombstone", "is no failure"),
            ("Unmatched", "is no failure"),
        ]
    ),
])  # fmt: skip
def test_a_setting_of_the_file_without_effect_is_named(settings: dict[str, Any], warning: str) -> None:
    [text] = warnings_of_settings(pipeline(**settings))
    assert text.startswith(warning)


@pytest.mark.parametrize("settings", [
    {},
    {"breaker": {"failure_ratio": 0}},
    *(
        {"retry": {"by_error": {name: "never"}}}
        # An exception whose bare name is one of Ackline's own is recorded with its module.
        for name in ["Timeout", "WorkerLost", "Undecodable", "InvalidOutcome", "requests.Timeout", "a.Dead"]
    ),
])  # fmt: skip
def test_a_setting_of_the_file_that_has_its_effect_is_not_named(settings: dict[str, Any]) -> None:
    assert list(warnings_of_settings(pipeline(**settings))) == []


SAME = {"enable.auto.commit": "false", "auto.offset.reset": "error", "group.id": "orders-replay", "acks": "ALL",
        "isolation.level": "READ_COMMITTED", "security.protocol": "SSL", "linger.ms": 5, "sasl.password": "x",
        "bootstrap.servers": "x:1", "group.instance.id": None, **REQUIRED}  # fmt: skip
IGNORED = {"enable.auto.commit": True, "group.id": "another", "interceptor.classes": "x.Y", "plugin.library.paths": "m",
           "auto.offset.reset": "latest", "enable.auto.offset.store": "true", "group.instance.id": "i",
           "partition.assignment.strategy": "range", "allow.auto.create.topics": True,
           "isolation.level": "read_uncommitted", "value.deserializer": "x.Z", "transactional.id": "t"}  # fmt: skip


def test_each_property_of_the_connection_that_is_ignored_is_named() -> None:
    """A pipeline file with the same property is refused (test_kafka_config)."""
    warnings = list(warnings_of_connection(pipeline(), {**SAME, **IGNORED}))
    assert [text.split("`")[1] for text in warnings] == sorted(IGNORED)
    assert all(text.startswith("connection: its `") and "is ignored: " in text for text in warnings)


def test_a_property_of_the_connection_with_the_value_that_is_used_anyway_is_not_named() -> None:
    assert ignored_properties(SAME, "orders-replay", "read_committed") == {}
