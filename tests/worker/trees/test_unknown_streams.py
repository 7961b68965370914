"""A tuple to a stream that no step and no output takes: whose record fails, and what its message names."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ackline.handler import Emit, Record, Tuple
from ackline.worker.outcomes import RowOutcome
from tests.worker.trees.stages import JOIN, ONE, Lab, nothing, steps_of

NEAR = steps_of({"name": "end", "input": "source"})
LOST = Emit("free", stream="nowhere", anchors=())


def classes(found: dict[int, RowOutcome | None]) -> dict[int, str | None]:
    return {offset: None if outcome is None else outcome.error_class for offset, outcome in found.items()}


def one(record: Record) -> Emit:
    """Emits the value of the record, under one key."""
    return Emit(record.value, key="k")


@pytest.mark.parametrize("steps", [ONE, NEAR, JOIN])
def test_a_tuple_without_anchors_to_an_unknown_stream_fails_the_records_of_its_call(steps: Any) -> None:
    def end(given: Tuple | Sequence[Tuple]) -> Emit | None:
        values = [each.value for each in given] if isinstance(given, Sequence) else [given.value]
        return LOST if "bad" in values else None

    of_join = "UnknownStream" if steps is JOIN else None
    assert classes(Lab(steps, one, [end]).run({0: "bad", 1: "good"})) == {0: "UnknownStream", 1: of_join}


def test_a_tuple_of_the_source_without_anchors_to_an_unknown_stream_fails_its_record() -> None:
    assert classes(Lab(ONE, lambda _: LOST, [lambda _: None]).run({0: ""})) == {0: "UnknownStream"}


def test_a_tuple_of_a_join_to_an_unknown_stream_fails_the_records_of_its_anchors_alone() -> None:
    def end(given: Sequence[Tuple]) -> Emit:
        return Emit("x", stream="nowhere", anchors=given[:1])

    assert classes(Lab(JOIN, one, [end]).run({0: "", 1: ""})) == {0: "UnknownStream", 1: None}


def test_a_misspelt_stream_is_named_with_the_streams_that_are_taken_the_nearest_first() -> None:
    """The name stands in the handler's source, so it is shown though the record holds that word too."""
    steps = steps_of({"name": "end", "input": "source.itmes"}, {"name": "all", "input": "source.all"})

    def source(record: Record) -> Iterator[Emit]:
        yield Emit("x", stream="items")

    (found,) = Lab(steps, source, [nothing, nothing]).run({0: "items"}).values()
    assert "emitted to source.items, which no step and no output takes; taken are source.itmes, source.all" in str(
        found
    )


def test_a_stream_that_is_named_by_the_record_stays_masked() -> None:
    def source(record: Record) -> Iterator[Emit]:
        yield Emit("x", stream=str(record.value))

    (found,) = Lab(ONE, source, [nothing]).run({0: "zebras"}).values()
    assert "zebras" not in str(found)
    assert "emitted to source.***, which no step and no output takes; taken are source.default" in str(found)
