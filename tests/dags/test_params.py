"""The form that triggers `replay__NAME`: its fields have descriptions and schemas, and the task checks them again."""

from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException

from ackline.airflow.dags import run_params
from ackline.airflow.operators import airflow_errors
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.run_request import EVERYTHING, RunRequest, parse_request
from tests.unit.pipeline_files import GOOD

LIMIT = 100


@pytest.fixture
def params() -> ParamsDict:
    import yaml

    pipeline = Pipeline.model_validate({**yaml.safe_load(GOOD), "max_records_per_run": LIMIT})
    return ParamsDict(run_params(pipeline))


def test_each_field_has_a_title_and_a_description(params: ParamsDict) -> None:
    assert set(params) == {"max_records", "only_retries", "partitions"}
    for name in params:
        schema = params.get_param(name).schema
        assert schema["title"]
        assert params.get_param(name).description


def test_a_scheduled_run_has_the_defaults_and_asks_for_everything(params: ParamsDict) -> None:
    assert parse_request(params.validate(), LIMIT) == EVERYTHING


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


@pytest.mark.parametrize(("values", "request_"), VALID, ids=str)
def test_the_form_and_the_task_take_the_same_values(
    params: ParamsDict, values: dict[str, Any], request_: RunRequest
) -> None:
    params.update(values)
    assert parse_request(params.validate(), LIMIT) == request_


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_a_wrong_value_is_refused_in_the_form_and_again_in_the_task(params: ParamsDict, values: dict[str, Any]) -> None:
    def trigger() -> None:
        params.update(values)
        params.validate()

    with pytest.raises(Exception, match="Invalid input for param"):
        trigger()
    with pytest.raises(AirflowFailException), airflow_errors():
        parse_request(values, LIMIT)
