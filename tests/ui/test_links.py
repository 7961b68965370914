"""The ready-made operator actions of the page."""

import json
import shlex

from airflow.sdk.definitions.param import ParamsDict

from ackline.actions.form import ACTIONS, check_entered
from ackline.airflow.backfill import backfill_params
from ackline.airflow.operate import operate_params
from ackline.backfill.form import request_of
from ackline.forms.arguments import OPTIONS, BackfillArguments
from ackline.forms.form import Entered
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.pipeline.pipeline import Pipeline
from ackline.ui.links import ActionMaker, Addresses, ReadyAction

TP = TopicPartition("orders", 3)
ADDRESSES = Addresses("/base/ackline/", "/base")


def test_an_act_links_to_its_dag_only_where_airflow_has_it() -> None:
    with_backfill = ActionMaker("orders", LIVE, {"replay__orders", "backfill__orders"}, ADDRESSES)
    retry, skip, backfill = with_backfill.of_record(TP, 1041, pending=True)
    assert (backfill.dag_url, retry.dag_url, skip.dag_url) == ("/base/dags/backfill__orders", None, None)
    assert json.loads(backfill.conf) == {"ranges": ["orders:3:1041-1042"], "confirm": False}


def test_the_command_of_an_act_is_safe_to_paste() -> None:
    hostile = "x'; rm -rf / #"
    [action] = ActionMaker("orders", LIVE, (), ADDRESSES).of_failures("retry", hostile)
    assert shlex.split(action.command) == ["ackline", "retry", "orders", "--error-class", hostile]
    assert json.loads(action.conf)["error_class"] == hostile


def test_a_settled_record_is_handled_again_only_by_a_backfill() -> None:
    [action] = ActionMaker("orders", LIVE, (), ADDRESSES).of_record(TP, 7, pending=False)
    assert shlex.split(action.command) == ["ackline", "backfill", "orders", "orders:3:7-8"]


def test_no_act_is_offered_that_would_change_nothing() -> None:
    maker = ActionMaker("orders", LIVE, (), ADDRESSES)
    assert verbs(maker.of_pipeline(waiting=False)) == ["pause", "backfill"]
    assert maker.of_partition(TP, 5120, 5120, waiting=False, pending=False) == []
    skip, backfill = maker.of_partition(TP, 5, 9, waiting=False)
    assert (shlex.split(skip.command)[1], shlex.split(backfill.command)[1]) == ("skip", "backfill")
    assert maker.of_pipeline(waiting=False, recent=False, paused=True) == []
    assert maker.of_record(TP, 5120, pending=False, exists=False) == []
    [skip] = maker.of_record(TP, 7, pending=True, waiting=False, exists=False)
    assert shlex.split(skip.command)[1] == "skip", "retention has taken it, and nothing reads it again"
    [backfill] = maker.of_partition(TP, 5, 9, waiting=False, pending=False, log_start=7)
    assert shlex.split(backfill.command)[3:] == ["orders:3:7-9"]
    assert maker.of_partition(TP, 5, 9, waiting=False, pending=False, log_start=9) == []
    assert [shlex.split(action.command)[1] for action in maker.of_record(TP, 7, pending=True, waiting=False)] == [
        "skip", "backfill",
    ]  # fmt: skip
    assert maker.of_failures("in_flight", "") == []


def verbs(actions: list[ReadyAction]) -> list[str]:
    return [shlex.split(action.command)[1] for action in actions]


def test_of_a_pipeline_that_fails_the_pause_is_first_and_the_retry_of_everything_last() -> None:
    maker = ActionMaker("orders", LIVE, (), ADDRESSES)
    assert verbs(maker.of_pipeline()) == ["retry", "pause", "backfill"]
    assert verbs(maker.of_pipeline(dead=True)) == ["retry", "pause", "dead", "backfill"]
    assert verbs(maker.of_pipeline(failing=True, dead=True)) == ["pause", "dead", "backfill", "retry"]
    assert verbs(maker.of_pipeline(failing=True, new_code=False)) == ["pause", "backfill"]
    for kind, verb in (("retry", "retry"), ("dead", "dead")):
        assert verbs(maker.of_failures(kind, "KeyError", failing=True)) == ["pause", verb]


def test_dead_records_are_handled_again_by_a_redrive_of_the_lane_that_has_them() -> None:
    [redrive] = ActionMaker("orders", LIVE, (), ADDRESSES).of_pipeline(False, False, dead=True, paused=True)
    assert (redrive.command, redrive.dag_id) == ("ackline dead orders --redrive", "backfill__orders")
    assert json.loads(redrive.conf) == {"all": True, "outcome": "dead", "confirm": False}
    [redrive] = ActionMaker("orders", "backfill-a", (), ADDRESSES).of_failures("dead", "KeyError")
    assert redrive.command == "ackline dead orders --redrive --error-class KeyError --lane backfill-a"


def test_an_act_on_another_lane_names_it() -> None:
    retry, *_ = ActionMaker("orders", "backfill-a", (), ADDRESSES).of_partition(TP, 5, 9)
    assert retry.command.endswith("--lane backfill-a")


def test_the_form_of_the_dag_takes_the_configuration_of_each_act() -> None:
    """The DAG checks it by the same schema, and then asks for the reason alone."""
    every = {"backfill__orders", "operate__orders"}
    maker = ActionMaker("orders", LIVE, every, ADDRESSES)
    actions = [*maker.of_pipeline(), *maker.of_partition(TP, 5, 9), *maker.of_record(TP, 5, pending=True)]
    actions += maker.of_failures("retry", "HTTPError")
    operated = [action for action in actions if action.dag_id == "operate__orders"]
    assert {json.loads(action.conf)["action"] for action in operated} == {"retry", "skip", "pause"}
    for action in operated:
        assert action.dag_url is not None
        params = ParamsDict(operate_params())
        params.update(json.loads(action.conf) | {"reason": "as in the runbook"})
        params.validate()
        assert set(json.loads(action.conf)) <= set(operate_params())
        check_entered(ACTIONS[params["action"]], Entered(dict(params), by_option=False))


def test_the_form_of_the_backfill_takes_the_configuration_of_each_act() -> None:
    """Each key is a field of the form, and the task reads the values as the command reads the action's own options."""
    kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]}
    pipeline = Pipeline.model_validate({"name": "orders", "handler": "a:b", "dead_letter": "none", "kafka": kafka})
    maker = ActionMaker("orders", LIVE, {"backfill__orders"}, ADDRESSES)
    actions = [*maker.of_pipeline(), *maker.of_partition(TP, 5, 9), *maker.of_record(TP, 5, pending=False)]
    actions += [*maker.of_failures("dead", "HTTPError"), *maker.of_pipeline(False, False, dead=True, paused=True)]
    backfills = [action for action in actions if action.dag_id == "backfill__orders"]
    assert len(backfills) == 5
    for action in backfills:
        conf = json.loads(action.conf)
        assert set(conf) <= set(backfill_params(pipeline))
        assert conf["confirm"] is False, "a dry run, until the operator confirms it"
        params = ParamsDict(backfill_params(pipeline))
        params.update(conf)
        params.validate()
        arguments = request_of(Entered(dict(params), by_option=False), "manual-1").arguments
        arguments.check()
        # The DAG has --all as well, which changes nothing beside an outcome.
        shown = [word for word in shlex.split(action.command)[3:] if word != "--all"]
        words = [word for word in _words(arguments) if word != "--all"]
        if shown[:1] == ["--redrive"]:
            shown, words = shown[1:], [word for word in words if word not in ("--outcome", "dead")]
        assert shown == words


def _words(arguments: BackfillArguments) -> list[str]:
    words = list(arguments.ranges)
    for name, option in OPTIONS.items():
        value = getattr(arguments, name)
        if name not in ("ranges", "of") and value not in (None, False):
            words += [option] if value is True else [option, value]
    return words
