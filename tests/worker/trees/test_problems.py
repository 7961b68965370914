"""Whose records fail for a tuple or a row that gets nowhere: an unknown stream, a row that does not fit its table."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ackline.handler import Record
from ackline.ledger.turns import LIVE, TurnId
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import topology
from ackline.tuples import SOURCE, Emit, Tuple
from ackline.worker.outcomes import RowOutcome
from ackline.worker.settings import OutputTargets
from ackline.worker.trees.calls import TreeCalls
from ackline.worker.trees.output_rows import OutputRows
from tests.worker.trees.stages import NOW, SEEDS, TP, Lab, steps_of

STEP = steps_of({"name": "end", "input": "source", "group_by": "key"})
NEAR = steps_of({"name": "end", "input": "source"})
JOIN = steps_of({"name": "end", "input": "source", "group_by": "key", "join": True})
LOST = Emit("free", stream="nowhere", anchors=())


def classes(found: dict[int, RowOutcome | None]) -> dict[int, str | None]:
    return {offset: None if outcome is None else outcome.error_class for offset, outcome in found.items()}


def one(record: Record) -> Emit:
    """Emits the value of the record, under one key."""
    return Emit(record.value, key="k")


@pytest.mark.parametrize("steps", [STEP, NEAR, JOIN])
def test_a_tuple_without_anchors_to_an_unknown_stream_fails_the_records_of_its_call(steps: Any) -> None:
    def end(given: Tuple | Sequence[Tuple]) -> Emit | None:
        values = [each.value for each in given] if isinstance(given, Sequence) else [given.value]
        return LOST if "bad" in values else None

    of_join = "UnknownStream" if steps is JOIN else None
    assert classes(Lab(steps, one, [end]).run({0: "bad", 1: "good"})) == {0: "UnknownStream", 1: of_join}


def test_a_tuple_of_the_source_without_anchors_to_an_unknown_stream_fails_its_record() -> None:
    assert classes(Lab(STEP, lambda _: LOST, [lambda _: None]).run({0: ""})) == {0: "UnknownStream"}


def test_a_tuple_of_a_join_to_an_unknown_stream_fails_the_records_of_its_anchors_alone() -> None:
    def end(given: Sequence[Tuple]) -> Emit:
        return Emit("x", stream="nowhere", anchors=given[:1])

    assert classes(Lab(JOIN, one, [end]).run({0: "", 1: ""})) == {0: "UnknownStream", 1: None}


@pytest.mark.parametrize("tracked", [True, False])
def test_a_row_without_anchors_that_does_not_fit_fails_the_record_of_its_call_or_is_logged(
    tracked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_table = topology(
        [], [OutputBlock.model_validate({"from": SOURCE, "table": "t", "columns": {"value": "long"}})]
    )
    targets = OutputTargets(TurnId("shop", LIVE, 0, 1), f"{tmp_path}/staged", {0: {"value": "long"}})
    outputs = OutputRows(targets, [TP])
    calls = TreeCalls(with_table, (), [TP], lambda: NOW, outputs)
    for offset, value in enumerate(["bad", 1, "bad"]):
        record = Record(*TP, offset, None, None, value, (), 1)
        calls.call_source(lambda each: Emit(each.value, anchors=()), record, SEEDS if tracked else None)
    events = calls.end().events
    assert [int(events.rows["offset"][number]) for number in sorted(events.notes)] == ([0, 2] if tracked else [])
    assert [file.rows for file in outputs.close()] == [1]
    with caplog.at_level(logging.WARNING):
        calls.log_dropped()
    reason = "BadOutput: a row does not fit the table t: its value is no long"
    text = f"dropped 2 tuples or rows of calls without a tracked record; no record fails for them. The first: {reason}"
    assert caplog.messages == ([] if tracked else [text])
