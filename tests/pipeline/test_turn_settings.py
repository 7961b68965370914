"""What an open turn runs by: its plan's settings, but for the keys that come from the file as it is now."""

import json
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.ledger.backoff import FOREVER
from ackline.ledger.turns import Plan, TurnId, TurnKind
from ackline.pipeline.pipeline import FROM_FILE, Pipeline, pipeline_of_turn
from tests.ledger.strategies import NOON

FILE: dict[str, Any] = {
    "name": "orders",
    "kafka": {"connection": "kafka_default", "group_id": "orders-replay", "topics": ["orders"]},
    "handler": "handlers.orders:handle",
    "dead_letter": {"topic": "orders.dead"},
}
OTHER: dict[str, Any] = {
    "steps": [{"name": "price", "handler": "handlers.shop:price", "input": "source"}],
    "outputs": [{"from": "price", "table": "prices", "columns": {"value": "decimal(5, 2)"}, "partition_by": []}],
    "tracking": False,
    "guarantee": "no_guarantee",
    "order": "partition",
    "record_outcomes": False,
    "retry": {"max_retries": "forever", "by_error": {"KeyError": "never", "OSError": {"max_delay": "90s"}}},
    "dead_letter": "none",
    "tombstones": "deliver",
    "ack_topic": "orders.acks",
    "in_flight": {"timeout": "none", "max": 7},
}
"""A value that is not the default, for each key that an open turn takes from its plan."""


PIPELINE = Pipeline.model_validate(FILE)


def of_turn(file: Pipeline = PIPELINE, **changes: Any) -> Pipeline:
    """Returns what an open turn runs by whose plan was stored with these changes to the settings of the file."""
    settings = {**PIPELINE.settings(), **changes}
    return pipeline_of_turn(
        file, Plan(TurnId("orders", "live", 0, 3), TurnKind.RUN, "run", NOON, {}, "read_committed", settings)
    )


def test_every_key_but_those_of_the_list_comes_from_the_plan() -> None:
    assert OTHER.keys() | FROM_FILE == Pipeline.model_fields.keys()
    assert not OTHER.keys() & FROM_FILE
    turn, stored = of_turn(**OTHER), json.loads(json.dumps(PIPELINE.settings() | OTHER))
    for key in OTHER:
        assert getattr(turn, key) != getattr(PIPELINE, key), key
        assert of_turn(turn, **stored) == turn
    assert (turn.retry.max_retries, turn.in_flight.max, turn.dead_letter_topic) == (FOREVER, 7, None)
    assert turn.topology is not None
    assert turn.topology.all_outputs[0].columns == {"value": "decimal(5,2)"}


def test_the_keys_of_the_list_come_from_the_file() -> None:
    file = Pipeline.model_validate(FILE | {"handler": "handlers.orders:mended", "max_rate": 5, "lost_after": "1s"})
    turn = of_turn(file, max_rate=9)
    assert all(getattr(turn, key) == getattr(file, key) for key in FROM_FILE)
    assert (turn.handler, turn.max_rate) == ("handlers.orders:mended", 5)


def test_dead_letters_of_an_open_turn_are_read_under_the_isolation_level_of_its_plan() -> None:
    """Else the record of an aborted transaction that the turn has handled would look compacted."""
    turn = TurnId("orders", "live", 0, 3)
    plan = Plan(turn, TurnKind.RUN, "run", NOON, {}, "read_uncommitted", PIPELINE.settings())
    assert (PIPELINE.kafka.isolation, pipeline_of_turn(PIPELINE, plan).kafka.isolation) == (
        "read_committed", "read_uncommitted"
    )  # fmt: skip


def test_a_step_of_the_plan_calls_the_handler_that_the_file_names_for_it_now() -> None:
    mended = [{"name": "price", "handler": "handlers.shop:mended", "input": "source.items", "concurrency": 9}]
    steps = of_turn(Pipeline.model_validate(FILE | {"steps": mended}), steps=OTHER["steps"]).steps
    assert steps is not None
    assert [(step.handler, step.input, step.concurrency) for step in steps] == [("handlers.shop:mended", ["source"], 9)]
    assert [step.handler for step in of_turn(steps=OTHER["steps"]).steps or []] == ["handlers.shop:price"]


def test_keys_of_another_version_are_ignored_and_its_missing_keys_have_their_defaults() -> None:
    file = Pipeline.model_validate(FILE | {"tombstones": "deliver"})
    plan = Plan(TurnId("orders", "live", 0, 3), TurnKind.RUN, "run", NOON, {}, "read_committed", {})
    turn = pipeline_of_turn(file, plan)
    assert (turn.tombstones, turn.dead_letter_topic) == ("skip", "orders.dead")
    retry = {"max_retries": 2, "by_error": {"KeyError": {"max_retries": 1, "later": 1}}, "later": 1}
    turn = of_turn(retry=retry, later=1)
    assert (turn.retry.max_retries, list(turn.retry.by_error)) == (2, ["KeyError"])


def test_settings_that_cannot_be_read_are_refused_by_turn_and_key() -> None:
    with pytest.raises(ConfigError, match=r"turn 3 .*is open, and this version can't read .* \(retry\)"):
        of_turn(retry={"max_retries": "often"})
