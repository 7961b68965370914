"""What a user asks of one run: checked again after the form, stored with the plan, and read from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.errors import ConfigError
from ackline.forms.form import EVERYTHING, Entered, RunRequest, run_request
from ackline.ledger.offsets import TopicPartition

PARTITIONS = st.frozensets(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31)), min_size=1
)

TABLES = st.lists(st.text(), max_size=3).map(tuple)


@given(st.builds(RunRequest, st.none() | st.integers(1, 2**40), st.booleans(), st.none() | PARTITIONS, TABLES))
def test_a_plan_stores_the_request(request: RunRequest) -> None:
    assert RunRequest.of_plan({"name": "orders", **request.settings()}) == request


def test_a_request_of_everything_is_not_stored() -> None:
    assert (EVERYTHING.settings(), RunRequest.of_plan({"name": "orders"})) == ({}, EVERYTHING)


@pytest.mark.parametrize(
    "values",
    [{"max_records": 0}, {"max_records": 101}, {"max_records": True}, {"max_records": "5"}, {"max_records": 1.5},
     {"only_retries": "yes"}, {"partitions": []}, {"partitions": "orders[0]"},
     {"partitions": ["orders"]}, {"partitions": ["orders[-1]"]}, {"partitions": ["orders[00]"]},
     {"partitions": ["orders[0]\n"]}, {"partitions": ["a b[0]"]}, {"partitions": [5]}],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        run_request(Entered(values, by_option=False), 100)
    assert caught.value.key == next(iter(values))


def test_values_of_other_fields_are_ignored() -> None:
    assert run_request(Entered({"max_records": 100, "handler": "os:system"}, by_option=False), 100) == RunRequest(100)
