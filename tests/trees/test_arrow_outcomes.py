"""What the answer of an Arrow step means for the tuples that it got: outcomes, rows without an input, joins."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ackline.handler import Dead, Emit, arrow_handler
from tests.trees.stages import (
    ACKED,
    JOIN,
    LOCAL,
    NEAR,
    Lab,
    Seen,
    Yields,
    each_item,
    emit_all,
    outcome_of,
    ran,
    shown,
    steps_of,
)  # fmt: skip


def words(*of: str | None, **more: Sequence[str | None]) -> Yields:
    """Says these outcomes of the rows of the batch, in the order of their values."""

    def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
        order = pc.sort_indices(batch.column("value"))
        return pa.record_batch({"_input": order, "outcome": list(of), **more})

    return answer


def test_a_call_that_answers_nothing_acks_all_its_tuples_and_so_does_one_of_which_no_row_speaks() -> None:
    assert outcome_of(lambda _: None, "a", "b") == ACKED
    empty = pa.record_batch({"_input": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
    assert outcome_of(lambda _: empty, "a", "b") == ACKED


@pytest.mark.parametrize(("said", "more", "outcome"), [
    (["acked", "failed"], {}, ("failed", "Fail", "step end: Fail; 1 sibling acked")),
    (["acked", "failed"], {"error_class": [None, "Gone"]}, ("failed", "Gone", "step end: Gone; 1 sibling acked")),
    (["acked", "failed"], {"error_message": ["", "none"]}, ("failed", "Fail", "step end: none; 1 sibling acked")),
    (["acked", "skipped"], {}, ("skipped", "Skip", "step end: Skip")),
    (["skipped", "dead"], {}, ("failed", "Dead", "step end: Dead; 0 siblings acked")),
    (["acked", "acked"], {}, ACKED),
])  # fmt: skip
def test_a_row_says_the_outcome_of_the_tuple_that_it_came_from(said: Any, more: Any, outcome: Any) -> None:
    assert outcome_of(words(*said, **more), "a", "b") == outcome


def test_of_several_outcomes_of_one_tuple_the_worst_counts() -> None:
    answer = pa.record_batch({"_input": [0, 0, 0], "outcome": ["skipped", "dead", "failed"]})
    assert outcome_of(lambda _: answer, "a")[1] == "Dead"


def test_the_reason_of_a_failure_quotes_no_value() -> None:
    found = outcome_of(words("failed", error_class=["customer77"], error_message=["no customer77 here"]), "customer77")
    assert found == ("failed", "Exception", "step end: no *** here; 0 siblings acked")


@pytest.mark.parametrize(
    ("error", "error_class"), [(ValueError("broken"), "ValueError"), (Dead("x"), "ackline.handler.Dead")]
)
def test_a_call_that_raises_fails_all_its_tuples_and_delivers_nothing(error: Exception, error_class: str) -> None:
    given: list[Any] = []

    def answer(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch
        raise error

    lab = Lab(LOCAL, each_item, [arrow_handler(answer), lambda each: given.append(each)])
    found = lab.run({0: ["a", "b"]})
    assert shown(found[0])[:2] == ("failed", error_class)
    assert not given


def test_sys_exit_is_the_outcome_of_its_call_alone() -> None:
    def answer(_: pa.RecordBatch) -> None:
        raise SystemExit(0)

    assert outcome_of(answer, "a")[1] == "SystemExit"


ONE_ROW = {"value": ["x"]}


@pytest.mark.parametrize(("answer", "reason"), [
    ({**ONE_ROW, "_input": [2]}, "_input names a row that the call was not given; its rows are 0 to 1"),
    ({**ONE_ROW, "_input": [-1]}, "_input names a row that the call was not given; its rows are 0 to 1"),
    ({**ONE_ROW, "_input": pa.array([None], pa.int64())}, "_input holds something else than numbers of rows"),
    ({**ONE_ROW, "_input": ["0"]}, "_input holds something else than numbers of rows"),
    ({**ONE_ROW, "_input": pa.array([None], pa.list_(pa.int64()))}, "_input holds a null; write an empty list"),
    ({**ONE_ROW, "_input": [[None]]}, "_input holds something else than numbers of rows"),
    ({**ONE_ROW, "_input": [[0, 1]]}, "which only a step with `join: true` may do"),
    (ONE_ROW, "a batch of 1 rows came of a call with 2, or in another order: add the column _input"),
    ({"value": ["x", "y"], "_tuple": [1, 0]}, "or in another order: add the column _input"),
    ({"outcome": ["acked", None]}, "an outcome is null, or not one of acked, failed, skipped, dead"),
    ({"outcome": ["acked", "ok"]}, "an outcome is null, or not one of acked, failed, skipped, dead"),
    ({"outcome": ["acked", "held"]}, "an outcome is held, which only a step with `join: true` may answer"),
    ({"outcome": ["failed"], "_input": pa.array([[]], pa.list_(pa.int64()))}, "_input names no row for it"),
    ({**ONE_ROW, "_input": [0], "stream": ["no name"]}, "the stream of an Emit is no name of a stream"),
    ({**ONE_ROW, "_input": [0], "stream": [b"\xff"]}, "stream holds something else than names of streams"),
])  # fmt: skip
def test_an_invalid_answer_fails_all_tuples_of_the_call(answer: Any, reason: str) -> None:
    found = ran(NEAR, arrow_handler(lambda _: pa.record_batch(answer)), r0=["a", "b"])[0]
    assert found[:2] == ("failed", "InvalidOutcome")
    assert reason in found[2]


@pytest.mark.parametrize(("answer", "reason"), [
    (Emit(1), "the handler returned Emit; yield a pyarrow.RecordBatch, or return nothing"),
    ([Emit(1)], "the handler yielded Emit; yield a pyarrow.RecordBatch"),
    ({"value": [1]}, "the handler returned dict; yield a pyarrow.RecordBatch, or return nothing"),
    (False, "the handler returned False"),
    (["acked"], "the handler yielded str; yield a pyarrow.RecordBatch"),
    (ValueError("x"), "the handler returned an exception: raise it"),
    (pa.table([[1], [2]], names=["value", "value"]), "two columns of the yielded batch have one name"),
])  # fmt: skip
def test_what_is_no_batch_fails_the_call(answer: Any, reason: str) -> None:
    found = outcome_of(lambda _: answer, "a")
    assert found[:2] == ("failed", "InvalidOutcome")
    assert reason in found[2]


def loose(**more: Any) -> Yields:
    """Emits one row that belongs to no tuple."""
    return lambda _: pa.record_batch({"value": ["x"], "_input": pa.array([[]], pa.list_(pa.int64())), **more})


def test_a_row_without_an_input_that_can_not_be_delivered_fails_all_records_of_its_call() -> None:
    found = ran(NEAR, arrow_handler(loose(stream=["nowhere"])), r0=["a"])
    assert found[0][1] == "UnknownStream"
    lab = Lab(NEAR, each_item, [arrow_handler(loose(stream=["nowhere"]))], tracked=False)
    assert lab.run({0: ["a"]}) == {}


def test_a_join_gets_all_tuples_of_a_key_one_after_the_other_in_the_order_of_their_records() -> None:
    seen = Seen()
    lab = Lab(JOIN, emit_all, [seen.handler])
    records = {offset: [(offset, "k1"), (offset, "k2"), (offset, "k1")] for offset in range(20)}
    assert set(lab.run(dict(records)).values()) == {None}
    of_keys: dict[str, list[Any]] = {}
    for batch in seen.batches:
        keys = batch.column("key").to_pylist()
        for key in dict.fromkeys(keys):
            assert key not in of_keys, "all tuples of a key are in one call"
            first, count = keys.index(key), keys.count(key)
            of_keys[key] = batch.slice(first, count).to_pylist()
            assert {row["key"] for row in of_keys[key]} == {key}
    assert {key: [row["value"] for row in rows] for key, rows in of_keys.items()} == {
        "k1": [offset for offset in range(20) for _ in range(2)],
        "k2": list(range(20)),
    }


def test_equal_keys_are_one_key_whatever_their_types() -> None:
    seen = Seen()
    sources = {0: [("a", 1)], 1: [("b", 1.0)], 2: [("c", Decimal(1))]}
    assert set(Lab(JOIN, emit_all, [seen.handler]).run(sources).values()) == {None}
    assert [batch.num_rows for batch in seen.batches] == [3]


def test_a_row_of_a_join_comes_from_tuples_of_one_key() -> None:
    def answer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"value": [1], "_input": [list(range(batch.num_rows))]})

    lab = Lab(JOIN, emit_all, [arrow_handler(answer)])
    found = lab.run({0: [("a", key) for key in range(200)]})
    reason = "step join: _input names rows of several keys at once; a join emits rows of one key each"
    assert shown(found[0]) == ("failed", "InvalidOutcome", f"{reason}; 0 siblings acked")


def test_tuples_of_a_key_that_have_no_batch_together_fail_and_other_keys_do_not() -> None:
    seen = Seen()
    sources = {0: [("a", "k")], 1: [(1, "k")], 2: [(2, "l")], 3: [("b", "m")]}
    found = Lab(JOIN, emit_all, [seen.handler]).run(sources)
    assert [shown(found[offset])[1] for offset in range(4)] == ["Undecodable", "Undecodable", None, None]
    assert sorted(str(row["value"]) for row in seen.rows) == ["2", "b"]


def test_a_field_that_neighbours_had_in_an_earlier_batch_does_not_part_the_tuples_of_a_key() -> None:
    """Row by row, a step emits null for each field that a tuple lacks, with the type that its neighbours have."""
    topology = steps_of(
        {"name": "left", "input": "source"}, {"name": "right", "input": "source"},
        {"name": "join", "input": ["left", "right"], "group_by": "key", "join": True},
    )  # fmt: skip

    def left(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("size", pa.array([None if key == "k" else 1 for key in batch["key"].to_pylist()]))

    def right(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("size", pa.array([None if key == "k" else "L" for key in batch["key"].to_pylist()]))

    seen = Seen()
    handlers = [arrow_handler(left), arrow_handler(right), seen.handler]
    found = Lab(topology, emit_all, handlers).run({0: [({"n": 1}, "k"), ({"n": 2}, "l")]})
    reason = (
        "the tuples of its key have several types in one field, or more than 1 GB, and a join gets them in one batch"
    )
    assert shown(found[0]) == ("failed", "Undecodable", f"step join: {reason}; 2 siblings acked")
    assert [(row["key"], row["size"]) for row in seen.rows] == [("k", None)] * 2
