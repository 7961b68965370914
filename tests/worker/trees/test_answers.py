"""What a handler may answer: any other answer fails the call, and what it does to an answer later has no effect."""

from collections.abc import Iterator
from typing import Any

import pytest

from ackline.handler import Record
from ackline.ledger.outcomes import Outcome
from ackline.tuples import Emit, Hold, Tuple
from tests.worker.trees.stages import Lab
from tests.worker.trees.test_calls import TWO, fail_on, nothing, ran, shown


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (1, "returned int"),
        (["text"], "yielded str"),
        (ValueError(), "returned an exception"),
        (Emit({1, 2}.__class__), "holds type"),
        (Emit(object()), "holds object"),
        (Emit("x", key=object()), "holds object"),
        (Emit("x", anchors=["not an input"]), "not given"),
        (Emit("x", stream=3), "no name of a stream"),  # type: ignore[arg-type]
        (Hold(Tuple(1, 1, "s", "s", ())), "yielded Hold"),
    ],
)
def test_an_answer_that_means_nothing_fails_the_record(answer: Any, reason: str) -> None:
    [(outcome, error_class, message)] = ran(TWO, lambda _: answer, nothing, r0=["a"]).values()
    assert (outcome, error_class) == (Outcome.FAILED, "InvalidOutcome")
    assert reason in str(message)


def test_a_list_of_anchors_that_is_changed_after_the_yield_changes_nothing() -> None:
    def source(record: Record) -> Iterator[Emit]:
        anchors: list[Any] = [record]
        yield Emit("bad", anchors=anchors)
        anchors.clear()

    assert shown(Lab(TWO, source, [fail_on("bad"), nothing]).run({0: []})[0])[0] == "failed"


def test_an_iterator_of_anchors_that_two_tuples_share_fails_the_call_because_the_second_finds_it_empty() -> None:
    def first(given: Tuple) -> Iterator[Emit]:
        anchors = iter([given])
        yield Emit("x", anchors=anchors)
        yield Emit("y", anchors=anchors)

    [(outcome, error_class, message)] = ran(TWO, first, nothing, r0=["a"]).values()
    assert (outcome, error_class) == (Outcome.FAILED, "InvalidOutcome")
    assert "share one iterator" in str(message)


@pytest.mark.parametrize("stream", ["\ud800", "a b", "", "a.b", "x" * 101])
def test_the_name_of_a_stream_is_a_name(stream: str) -> None:
    found = ran(TWO, lambda _: Emit(1, stream=stream), nothing, r0=["a"])
    assert found[0] == (
        "failed",
        "InvalidOutcome",
        "step first: the stream of an Emit is no name of a stream; 0 siblings acked",
    )
