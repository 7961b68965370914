"""The form that triggers `replay__NAME`: its fields have descriptions and schemas, and the task checks them again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow import operators
from ackline.airflow.operate import run_params
from ackline.airflow.operators import PlanOperator, airflow_errors
from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.form import EVERYTHING, SETTING, Entered, RunRequest, run_request
from ackline.pipeline.pipeline import Pipeline
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import OK, TP, MemoryLane
from tests.support.pipeline_files import GOOD

LIMIT = 100


@pytest.fixture
def params() -> ParamsDict:
    pipeline = Pipeline.model_validate({**yaml.safe_load(GOOD), "max_records_per_run": LIMIT})
    return ParamsDict(run_params(pipeline))


def test_each_field_has_a_title_and_a_description(params: ParamsDict) -> None:
    assert set(params) == {"max_records", "only_retries", "partitions", "confirm_offsets"}
    for name in params:
        schema = params.get_param(name).schema
        assert schema["title"]
        assert params.get_param(name).description


def test_a_scheduled_run_has_the_defaults_and_asks_for_everything(params: ParamsDict) -> None:
    assert run_request(Entered(params.validate(), by_option=False), LIMIT) == EVERYTHING


VALID: list[tuple[dict[str, Any], RunRequest]] = [
    ({"max_records": 100}, RunRequest(100)),
    ({"only_retries": True}, RunRequest(only_retries=True)),
    ({"partitions": ["orders[0]", "a.b_c-d[12]"]},
     RunRequest(partitions=frozenset({TopicPartition("orders", 0), TopicPartition("a.b_c-d", 12)}))),
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    {"max_records": 0}, {"max_records": 101}, {"max_records": "5"}, {"max_records": 1.5}, {"only_retries": "yes"},
    {"partitions": []}, {"partitions": "orders[0]"}, {"partitions": ["orders"]}, {"partitions": ["orders[-1]"]},
]  # fmt: skip


@pytest.mark.parametrize(("values", "request_"), VALID, ids=["max_records", "only_retries", "partitions"])
def test_the_form_and_the_task_take_the_same_values(
    params: ParamsDict, values: dict[str, Any], request_: RunRequest
) -> None:
    params.update(values)
    assert run_request(Entered(params.validate(), by_option=False), LIMIT) == request_


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_a_wrong_value_is_refused_in_the_form_and_again_in_the_task(params: ParamsDict, values: dict[str, Any]) -> None:
    def trigger() -> None:
        params.update(values)
        params.validate()

    with pytest.raises(Exception, match="Invalid input for param"):
        trigger()
    with pytest.raises(AirflowFailException), airflow_errors():
        run_request(Entered(values, by_option=False), LIMIT)


# ---- the task -------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemoryLane]:
    """Runs the plan task of a run with these params on a lane; returns the lane."""

    def run(lane: MemoryLane, **values: Any) -> MemoryLane:
        @contextmanager
        def opened(*_: object) -> Iterator[MemoryAdapters]:
            yield lane.adapters()

        monkeypatch.setattr(operators, "opened", opened)
        monkeypatch.setattr(operators, "DriverHook", lambda *_, **__: None)
        monkeypatch.setattr("ackline.pipeline.functions.check_functions", lambda *_: None)
        context: Any = {"run_id": "manual__1", "params": values}
        PlanOperator(task_id="plan", pipeline=lane.adapters().pipeline).execute(context)
        return lane

    return run


def test_the_plan_of_a_triggered_run_reads_what_its_params_allow_and_stores_them(
    plan: Callable[..., MemoryLane],
) -> None:
    lane = plan(MemoryLane(OK, OK, OK), max_records=2, only_retries=False, partitions=["orders[0]"])
    open_plan = lane.adapters().store.open_plan(lane.newest())
    assert open_plan is not None
    assert len(open_plan.partitions[TP].fresh) == 2
    assert open_plan.settings[SETTING] == {"max_records": 2, "partitions": ["orders[0]"]}


def test_params_that_come_past_the_form_are_refused_before_anything_is_stored(
    plan: Callable[..., MemoryLane],
) -> None:
    lane = MemoryLane(OK)
    with pytest.raises(AirflowFailException, match="max_records: not valid"):
        plan(lane, max_records=-1)
    assert lane.adapters().store.newest() is None


def test_a_plan_that_is_open_stays_as_it_is_and_the_log_names_that(
    plan: Callable[..., MemoryLane], capsys: pytest.CaptureFixture[str]
) -> None:
    lane = MemoryLane(OK, OK)
    before = lane.plan()
    plan(lane, only_retries=True)
    assert lane.adapters().store.open_plan(lane.newest()) == before
    assert "the params of this run do not apply to it" in capsys.readouterr().out
