"""Nothing quiet: what may lose records or go round in circles, and is allowed, is warned about by name."""

from datetime import timedelta
from typing import Any

import pytest

from ackline import setting_warnings
from ackline.backoff import RetryPolicy
from ackline.kafka.config import REQUIRED
from ackline.pipeline import Pipeline
from ackline.properties import ignored
from ackline.setting_warnings import TopicPolicy

WEEK = TopicPolicy(timedelta(days=7))


def pipeline(**settings: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": "orders",
            "kafka": {"bootstrap_servers": "x:1", "group_id": "orders-replay", "topics": ["orders"]},
            "handler": "handlers.orders:handle",
            "dead_letter": {"topic": "orders.dead"},
            **settings,
        }
    )


def of_topics(one: Pipeline, **topics: TopicPolicy) -> list[str]:
    return list(setting_warnings.of_topics(one, {name.replace("_", "."): policy for name, policy in topics.items()}))


def test_a_retry_budget_that_retention_will_overtake_is_named_with_both_times() -> None:
    """None, then 2, 4, 8, 16 and 32 minutes, then an hour each."""
    [said] = of_topics(pipeline(retry={"max_retries": 174}), orders=WEEK, payments=TopicPolicy(None))
    assert said.startswith(
        "retry: a record may wait 7 d 1 h for its last attempt, and the topic orders keeps it for 7 d"
    )
    assert "`expired`" in said
    assert of_topics(pipeline(retry={"max_retries": 170}), orders=WEEK) == []
    assert of_topics(pipeline(), orders=WEEK) == []


def test_the_class_of_errors_that_waits_longest_is_named() -> None:
    slow = {"TimeoutError": {"max_retries": 20, "period": "1d", "max_delay": "1d"}, "ValueError": "never"}
    [said] = of_topics(pipeline(retry={"by_error": slow}), orders=WEEK)
    assert "may wait 19 d for its last attempt (TimeoutError)" in said


def test_retries_that_wait_for_runs_that_are_days_apart_are_overtaken_too() -> None:
    [said] = of_topics(pipeline(schedule="@daily"), orders=TopicPolicy(timedelta(days=4)))
    assert said.startswith("retry: a record may wait 5 d for its last attempt, and the topic orders keeps it for 4 d")
    assert of_topics(pipeline(schedule="@hourly"), orders=TopicPolicy(timedelta(days=4))) == []


@pytest.mark.parametrize(
    ("schedule", "apart", "hours"),
    [("@weekly", "7 d", 24 * 6), ("* 9-17 * * 1-5", "2 d 15 h", 60), ("30 6 * * *", "1 d", 24),
     ("0 0 1 * *", "31 d", 24 * 30), ("@yearly", "366 d", 24 * 300), ("*/10 * * * *", "10 m", 0.1)],
)  # fmt: skip
def test_a_schedule_whose_runs_are_further_apart_than_retention_is_named(
    schedule: str, apart: str, hours: float
) -> None:
    keeps = TopicPolicy(timedelta(hours=hours))
    [said] = of_topics(pipeline(schedule=schedule, retry={"max_retries": 0}), orders=keeps, payments=TopicPolicy(None))
    assert said.startswith(f"schedule: its runs are up to {apart} apart, and the topic orders keeps records for ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("psycopg2.OperationalError", "goes by its own name, `OperationalError`, without its module"),
        ("Dead", "is never retried"),
        ("Skip", "is no failure"),
        ("Tombstone", "is no failure"),
        ("Unmatched", "is no failure"),
    ],
)
def test_a_policy_for_errors_that_never_come_under_that_name_is_named(name: str, said: str) -> None:
    [found] = setting_warnings.of_settings(pipeline(retry={"by_error": {name: "never", "ValueError": "never"}}))
    assert found.startswith(f"retry.by_error: `{name}` ")
    assert said in found


@pytest.mark.parametrize(
    "name", ["Timeout", "WorkerLost", "Undecodable", "InvalidOutcome", "requests.Timeout", "a.Dead"]
)
def test_a_policy_for_errors_that_come_under_that_name_is_not(name: str) -> None:
    """An exception whose name is one of ours is known with its module."""
    assert list(setting_warnings.of_settings(pipeline(retry={"by_error": {name: "never"}}))) == []


@pytest.mark.parametrize(
    "settings",
    [{"retry": {"class": "tests.unit.test_cautions:Own"}}, {"retry": {"max_retries": 0}},
     {"retry": {"max_retries": 10**6}, "guarantee": "no_guarantee", "dead_letter": "none"}],
    ids=["a class of one's own: no judgement", "no retry", "a guarantee without retries"],
)  # fmt: skip
def test_where_nothing_waits_or_nobody_knows_nothing_is_said(settings: dict[str, Any]) -> None:
    assert of_topics(pipeline(**settings), orders=TopicPolicy(timedelta(seconds=1))) == []


class Own:
    """A retry policy of a user's own."""

    def next_attempt(self, *_: object) -> None:
        return None


@pytest.mark.parametrize("multiplier", [1, 1.0001, 1.5, 2, 1000])
@pytest.mark.parametrize(
    ("initial", "period", "cap"), [(0, 60, 3600), (100, 0.1, 2), (500, 4, 2), (5, 0, 60), (1, 7, 7)]
)
@pytest.mark.parametrize("retries", [0, 1, 2, 5, 60, 500])
def test_the_sum_of_all_delays_is_that_of_the_policy(
    multiplier: float, initial: float, period: float, cap: float, retries: int
) -> None:
    seconds = [timedelta(seconds=one) for one in (initial, period, cap)]
    policy = RetryPolicy(seconds[0], seconds[1], multiplier, seconds[2], retries)
    total = sum(policy.delay(attempt).total_seconds() for attempt in range(1, retries + 1))
    assert setting_warnings._wait(policy) == pytest.approx(total, rel=1e-6, abs=1e-3)


def test_no_number_of_retries_is_too_large() -> None:
    retry = {"max_retries": 2**31 - 2, "multiplier": 1.0000001, "max_delay": "900000000d", "jitter": 1.0}
    [said] = of_topics(pipeline(retry=retry), orders=WEEK)
    assert said.startswith("retry: ")


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000"}, WEEK),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, TopicPolicy(None)),
        ({"cleanup.policy": "compact", "retention.ms": "604800000"}, TopicPolicy(None, compacted=True)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "604800000"}, TopicPolicy(WEEK.keeps, compacted=True)),
        ({"cleanup.policy": "delete", "retention.ms": str(2**63 - 1)}, TopicPolicy(None)),
        ({"cleanup.policy": None, "retention.ms": None}, TopicPolicy(None)),
        ({}, TopicPolicy(None)),
    ],
)
def test_how_a_topic_forgets_is_read_from_its_settings(settings: dict[str, str | None], policy: TopicPolicy) -> None:
    assert TopicPolicy.of({**settings, "local.retention.ms": "1"}) == policy


def test_a_run_that_is_slower_than_retention_is_named() -> None:
    [said] = of_topics(pipeline(max_rate=5), orders=WEEK)
    assert said.startswith("max_rate: a run of max_records_per_run may take 11 d 13 h, and the topic orders keeps")
    assert of_topics(pipeline(max_rate=5, max_records_per_run=1000), orders=WEEK) == []


def test_a_dead_letter_topic_that_is_compacted_is_named() -> None:
    [said] = of_topics(pipeline(), orders_dead=TopicPolicy(timedelta(seconds=1), compacted=True))
    assert said.startswith("dead_letter.topic: orders.dead is compacted")


def test_what_the_file_alone_shows() -> None:
    assert list(setting_warnings.of_settings(pipeline())) == []
    [dropped] = setting_warnings.of_settings(pipeline(guarantee="no_guarantee"))
    assert dropped.startswith("dead_letter.topic: under `guarantee: no_guarantee` a record that fails is `dropped`")
    [late] = setting_warnings.of_settings(pipeline(guarantee="at_most_once", dead_letter="none", max_rate=100))
    [breaker] = setting_warnings.of_settings(
        pipeline(guarantee="at_most_once", dead_letter="none", breaker={"failure_ratio": 0.5})
    )
    assert breaker.startswith("breaker: under `guarantee: at_most_once` it never trips")
    assert late.startswith("lost_after: 1 h is shorter than a run may take at `max_rate` (13 h 53 m")


QUIET = {"enable.auto.commit": "false", "auto.offset.reset": "error", "group.id": "orders-replay", "acks": "ALL",
         "isolation.level": "READ_COMMITTED", "security.protocol": "SSL", "linger.ms": 5, "sasl.password": "x",
         "bootstrap.servers": "x:1", "group.instance.id": None, **REQUIRED}  # fmt: skip
LOUD = {"enable.auto.commit": True, "group.id": "another", "interceptor.classes": "x.Y", "plugin.library.paths": "m",
        "auto.offset.reset": "latest", "enable.auto.offset.store": "true", "group.instance.id": "i",
        "partition.assignment.strategy": "range", "allow.auto.create.topics": True,
        "isolation.level": "read_uncommitted", "value.deserializer": "x.Z", "transactional.id": "t"}  # fmt: skip


def test_a_breaker_that_can_not_trip_is_named() -> None:
    [said] = setting_warnings.of_settings(pipeline(breaker={"failure_ratio": 1}))
    assert said.startswith("breaker: with `failure_ratio: 1` it never trips")
    assert not list(setting_warnings.of_settings(pipeline(breaker={"failure_ratio": 0})))


def test_a_connection_that_says_otherwise_is_named_property_by_property() -> None:
    """The same in the file is refused (test_kafka_config); a connection is shared, so it is said and not followed."""
    said = list(setting_warnings.of_connection(pipeline(), {**QUIET, **LOUD}))
    assert [text.split("`")[1] for text in said] == sorted(LOUD)
    assert all(text.startswith("connection: its `") and "is ignored: " in text for text in said)


def test_a_connection_that_says_what_is_done_anyway_is_no_news() -> None:
    assert ignored(QUIET, "orders-replay", "read_committed") == {}
