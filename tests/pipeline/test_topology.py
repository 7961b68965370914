"""The steps of a pipeline file: their order, who takes a stream, and the files that are refused."""

import pytest
from pydantic import TypeAdapter
from pydantic_core import PydanticCustomError

from ackline.pipeline.topology import StepBlock, Topology, topology

STEPS = TypeAdapter(list[StepBlock])


def step(name: str, *inputs: str, **more: object) -> dict[str, object]:
    return {"name": name, "handler": "shop:step", "input": list(inputs), **more}


def built(*steps: dict[str, object]) -> Topology:
    return topology(STEPS.validate_python(list(steps)))


def order(*steps: dict[str, object]) -> list[str]:
    return [step.name for step in built(*steps).steps]


def test_steps_keep_the_order_of_the_file_except_that_each_follows_its_inputs() -> None:
    assert order(step("a", "source"), step("b", "source"), step("c", "a", "b")) == ["a", "b", "c"]
    assert order(step("c", "a", "b"), step("b", "a"), step("a", "source.items")) == ["a", "b", "c"]
    assert order() == []


def test_a_stream_goes_to_each_step_that_names_it_and_to_no_other() -> None:
    shop = built(
        step("price", "source.items"),
        step("total", "price", group_by="key", join=True),
        step("audit", "price", "source.items"),
    )
    takers = {str(stream): [step.name for step in steps] for stream, steps in shop.consumers.items()}
    assert takers == {"source.items": ["price", "audit"], "price": ["total", "audit"]}
    assert [(step.grouped, step.join) for step in shop.steps] == [(False, False), (True, True), (False, False)]


@pytest.mark.parametrize(
    ("steps", "key_path", "reason"),
    [
        ([step("a", "b"), step("b", "a")], ("steps", 0, "input"), "a cycle: a, b wait for one another"),
        ([step("a", "a")], ("steps", 0, "input"), "a cycle: a wait"),
        ([step("a", "source"), step("c", "b"), step("b", "c", "a")], ("steps", 1, "input"), "a cycle: c, b"),
        ([step("a", "b.items")], ("steps", 0, "input", 0), "no step is named b; write one of source, a"),
        ([step("a", "source"), step("a", "source")], ("steps", 1, "name"), "two steps are named a"),
        ([step("source", "source")], ("steps", 0, "name"), "rename the step"),
        ([step("a", "source", "source")], ("steps", 0, "input", 1), "is there twice"),
    ],
)
def test_a_graph_that_is_no_tree_of_steps_is_refused_by_key(
    steps: list[dict[str, object]], key_path: tuple[str | int, ...], reason: str
) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        built(*steps)
    assert caught.value.context is not None
    assert caught.value.context["key_path"] == key_path
    assert reason in str(caught.value)


def test_a_join_needs_a_key_to_group_by() -> None:
    with pytest.raises(ValueError, match="add `group_by: key`"):
        built(step("total", "source", join=True))
