"""The settings of a backfill lane: those of the pipeline file, with the lane's handler and dead letters."""

import pytest

from ackline.backfill.run import backfill_pipeline
from ackline.errors import ConfigError
from ackline.pipeline.arguments import BackfillArguments
from ackline.pipeline.pipeline import Pipeline


def pipeline(**settings: object) -> Pipeline:
    kafka = {"bootstrap_servers": "b:1", "group_id": "g", "topics": ["orders"]}
    return Pipeline.model_validate(
        {"name": "p", "handler": "a:b", "kafka": kafka, "dead_letter": {"topic": "dead"}, **settings}
    )


def test_without_arguments_the_lane_runs_the_file_and_keeps_each_outcome_as_a_row() -> None:
    once = pipeline(guarantee="at_most_once", record_outcomes=False, on_expired="fail")
    lane = backfill_pipeline(once, BackfillArguments())
    assert (lane.handler, lane.dead_letter_topic, lane.guarantee) == ("a:b", "dead", "at_most_once")
    assert (lane.record_outcomes, lane.on_expired) == (True, "record")


def test_another_handler_must_be_allowed_and_replaces_handler_and_streams() -> None:
    streams = [{"name": "s", "handler": "a:s", "topics": ["orders"]}]
    file = pipeline(streams=streams, backfill={"handlers": ["v2:handle"]})
    lane = backfill_pipeline(file, BackfillArguments(handler="v2:handle"))
    assert (lane.handler, lane.streams) == ("v2:handle", None)
    assert backfill_pipeline(file, BackfillArguments(handler="a:b")).handler == "a:b"
    with pytest.raises(ConfigError, match=r"--handler os:system is not allowed: .*allowed are a:s, a:b, v2:handle"):
        backfill_pipeline(file, BackfillArguments(handler="os:system"))


def test_dead_letters_go_to_another_topic_or_to_none_and_never_to_one_that_is_read() -> None:
    assert backfill_pipeline(pipeline(), BackfillArguments(dead_letter="other")).dead_letter_topic == "other"
    assert backfill_pipeline(pipeline(), BackfillArguments(dead_letter="none")).dead_letter_topic is None
    with pytest.raises(ConfigError, match="the pipeline reads this topic"):
        backfill_pipeline(pipeline(), BackfillArguments(dead_letter="orders"))


def test_max_rate_is_that_of_the_run_where_it_is_given() -> None:
    assert backfill_pipeline(pipeline(max_rate=5), BackfillArguments(), 7).max_rate == 7
    assert backfill_pipeline(pipeline(max_rate=5), BackfillArguments()).max_rate == 5
