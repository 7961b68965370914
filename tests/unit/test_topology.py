"""The steps of a pipeline file: their order, who takes a stream, and the files that are refused."""

import pytest
from pydantic import TypeAdapter
from pydantic_core import PydanticCustomError

from ackline.topology import OutputBlock, StepBlock, Stream, Topology, topology

STEPS = TypeAdapter(list[StepBlock])
OUTPUTS = TypeAdapter(list[OutputBlock])


def step(name: str, *inputs: str, **more: object) -> dict[str, object]:
    return {"name": name, "handler": "shop:step", "input": list(inputs), **more}


def built(*steps: dict[str, object], outputs: list[dict[str, str]] | None = None) -> Topology:
    return topology(STEPS.validate_python(list(steps)), OUTPUTS.validate_python(outputs or []))


def order(*steps: dict[str, object]) -> list[str]:
    return [step.name for step in built(*steps).steps]


def test_steps_keep_the_order_of_the_file_except_that_each_follows_its_inputs() -> None:
    assert order(step("a", "source"), step("b", "source"), step("c", "a", "b")) == ["a", "b", "c"]
    assert order(step("c", "a", "b"), step("b", "a"), step("a", "source.items")) == ["a", "b", "c"]
    assert order() == []


def test_a_stream_goes_to_each_step_and_output_that_names_it_and_to_no_other() -> None:
    shop = built(
        step("price", "source.items"),
        step("total", "price", group_by="key", join=True),
        step("audit", "price", "source.items"),
        outputs=[{"from": "price.rejected", "topic": "rejected"}, {"from": "total", "table": "totals"}],
    )
    takers = {str(stream): [step.name for step in steps] for stream, steps in shop.consumers.items()}
    assert takers == {"source.items": ["price", "audit"], "price": ["total", "audit"]}
    assert [output.topic for output in shop.outputs[Stream("price", "rejected")]] == ["rejected"]
    known = ("source.items", "price", "price.default", "price.rejected", "total")
    unknown = ("source", "price.other", "audit")
    assert [shop.is_known(Stream.parse(text)) for text in (*known, *unknown)] == [True] * 5 + [False] * 3
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


def test_an_output_of_a_step_that_does_not_exist_is_refused_by_key() -> None:
    with pytest.raises(PydanticCustomError, match="no step is named prices; write one of source, price"):
        built(step("price", "source"), outputs=[{"from": "prices", "table": "t"}])


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ({"from": "source"}, "write either `table` or `topic`"),
        ({"from": "source", "table": "t", "topic": "t"}, "write either `table` or `topic`"),
        ({"from": "a.b.c", "table": "t"}, "from"),
        ({"from": "source", "topic": "a b"}, "not a topic name"),
    ],
)
def test_an_output_has_one_stream_and_one_target(block: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OUTPUTS.validate_python([block])


def test_a_join_needs_a_key_to_group_by() -> None:
    with pytest.raises(ValueError, match="add `group_by: key`"):
        built(step("total", "source", join=True))
