"""What an Arrow step gets, and what it emits."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ackline.handler import Tuple, arrow_handler
from ackline.pipeline.topology import Topology
from tests.trees.stages import (
    ACKED,
    NEAR,
    ONE,
    TWO,
    Lab,
    Seen,
    Yields,
    emit_all,
    outcome_of,
    ran,
    seen_of,
    shown,
    steps_of,
)  # fmt: skip


@pytest.mark.parametrize("of", [NEAR, ONE])
def test_a_batch_has_a_column_for_each_field_then_the_key_and_the_number_of_the_tuple(of: Topology) -> None:
    [batch] = seen_of(({"n": 1, "half": 0.5}, "k"), of=of).batches
    assert batch.to_pydict() == {"n": [1], "half": [0.5], "key": ["k"], "_tuple": [0]}
    assert batch.schema.types == [pa.int64(), pa.float64(), pa.string(), pa.int64()]


def test_what_is_no_mapping_is_in_the_column_value_and_a_field_that_a_tuple_lacks_is_null() -> None:
    [batch] = seen_of(("a", 1), ({"n": 1}, 2), ({"n": None}, None)).batches
    assert batch.to_pydict() == {
        "value": ["a", None, None], "n": [None, 1, None], "key": [1, 2, None], "_tuple": [0, 1, 2],
    }  # fmt: skip


def test_whole_numbers_beside_fractions_are_doubles_and_times_with_a_zone_are_in_utc() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    [batch] = seen_of(({"n": 1, "at": noon, "price": Decimal("1.5")}, None), ({"n": 0.5}, None)).batches
    assert batch.schema.types[:3] == [pa.float64(), pa.timestamp("us", "UTC"), pa.decimal128(2, 1)]
    assert batch.column("at").to_pylist() == [noon, None]


def test_tuples_whose_types_do_not_fit_together_come_in_calls_of_their_own() -> None:
    seen = seen_of(("a", None), (1, None), ("b", None), (b"c", None), (True, None))
    assert [batch.column("value").to_pylist() for batch in seen.batches] == [["a", "b"], [1], [b"c"], [True]]


@pytest.mark.parametrize(("value", "reason"), [
    (2**63, "its value holds a number of more than 64 bits"),
    ([1, "a"], "values of several types are in one field or list"),
    ({1: 2}, "its value is a mapping with a name that is not text"),
    ({"a": {1: 2}}, "its value holds a mapping with a name that is not text"),
    ({"key": 1}, "its value has a field key, which is a column that Ackline adds; rename the field"),
    ("\ud800", "Arrow has no type for its value"),
    (Decimal("NaN"), "Arrow has no type for its value"),
])  # fmt: skip
@pytest.mark.parametrize("of", [NEAR, ONE])
def test_what_no_column_can_hold_fails_alone_and_the_step_does_not_get_it(
    value: Any, reason: str, of: Topology
) -> None:
    seen = Seen()
    found = Lab(of, emit_all, [seen.handler]).run({0: [("a", None), (value, None)], 1: [("b", None)]})
    step = of.steps[0].name
    assert shown(found[0]) == ("failed", "Undecodable", f"step {step}: {reason}; 1 sibling acked")
    assert found[1] is None
    assert [row["value"] for row in seen.rows] == ["a", "b"]


def emitted_by(answer: Yields, *pairs: tuple[Any, Any]) -> list[tuple[Any, Any]]:
    """Values and keys that the step after an Arrow step gets, each of a record of its own."""
    given: list[tuple[Any, Any]] = []

    def keep(each: Tuple) -> None:
        given.append((each.value, each.key))
        assert len(each.origins) == 1

    found = Lab(TWO, emit_all, [arrow_handler(answer), keep]).run({n: [pair] for n, pair in enumerate(pairs)})
    assert set(found.values()) == {None}, found
    return sorted(given, key=str)


def test_without_input_row_n_comes_from_row_n_and_the_key_is_that_of_the_batch() -> None:
    pairs: list[tuple[Any, Any]] = [({"n": 1}, "a"), ({"n": 2}, "b")]
    assert emitted_by(lambda batch: batch, *pairs) == pairs
    assert emitted_by(lambda batch: batch.select(["n"]), *pairs) == [({"n": 1}, None), ({"n": 2}, None)]


def test_a_batch_with_the_field_value_alone_emits_what_is_no_mapping() -> None:
    assert emitted_by(lambda batch: pa.table({"value": batch.column("key")}), ("x", "a")) == [("a", None)]


@pytest.mark.parametrize("column", [[0, 0], pa.array([0, 0], pa.uint8()), [[0], [0]]])
def test_a_row_may_be_emitted_several_times(column: Any) -> None:
    answer = {"value": ["first", "second"], "_input": column}
    assert emitted_by(lambda _: pa.record_batch(answer), ("x", "a")) == [("first", None), ("second", None)]


def test_a_step_may_yield_several_batches_and_each_row_of_each_has_an_edge_of_its_own() -> None:
    def answer(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch
        yield batch.slice(0, 0).append_column("_input", pa.array([], pa.int64()))
        yield batch

    assert emitted_by(answer, ("x", "a")) == [("x", "a"), ("x", "a")]


def test_rows_go_to_the_streams_that_they_name_and_a_null_is_the_default_stream() -> None:
    topology = steps_of(
        {"name": "first", "input": "source", "group_by": "key"}, {"name": "usual", "input": "first"},
        {"name": "odd", "input": "first.odd", "group_by": "key"},
    )  # fmt: skip
    given: dict[str, list[Any]] = {"usual": [], "odd": []}
    batch = pa.record_batch({"value": [1, 2, 3], "_input": [0, 0, 0], "stream": ["odd", None, "odd"]})
    handlers = [
        arrow_handler(lambda _: batch),
        lambda each: given["usual"].append(each.value),
        lambda each: given["odd"].append(each.value),
    ]  # fmt: skip
    assert ran(topology, *handlers, r0=["a"]) == {0: ACKED}
    assert (given["usual"], sorted(given["odd"])) == ([2], [1, 3])


def test_memory_that_a_handler_writes_anew_after_it_has_yielded_it_changes_nothing() -> None:
    def answer(_: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        numbers = np.zeros(1)
        for number in range(3):
            numbers[0] = number
            yield pa.record_batch({"value": pa.array(numbers), "_input": [0]})

    assert emitted_by(answer, ("x", None)) == [(0.0, None), (1.0, None), (2.0, None)]


@pytest.mark.parametrize(("column", "value"), [
    (pa.array(["a"]).dictionary_encode(), "a"),
    (pa.array(["a"], pa.large_string()), "a"),
    (pa.array(["a"], pa.string_view()), "a"),
    (pa.array([1], pa.int8()), 1),
    (pa.array([0.5], pa.float32()), 0.5),
    (pa.array([[1, None]]), [1, None]),
    (pa.array([{"a": b"b"}]), {"a": b"b"}),
    (pa.array([1], pa.timestamp("s")), datetime(1970, 1, 1, 0, 0, 1)),  # noqa: DTZ001
    (pa.array([Decimal("1.50")]), Decimal("1.50")),
    (pa.array([None]), None),
])  # fmt: skip
def test_values_of_these_types_are_emitted(column: pa.Array, value: Any) -> None:
    assert emitted_by(lambda _: pa.record_batch({"value": column}), ("x", None)) == [(value, None)]


@pytest.mark.parametrize(("column", "reason"), [
    (pa.array([date(2026, 1, 1)]), "has the type date32[day], which no tuple may hold; cast it in the handler"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "has the type map<string, int64>, which no tuple"),
    (pa.array([1], pa.timestamp("ns")), "does not fit the type timestamp[us]; cast it in the handler"),
    (pa.array([{"at": 1 << 62}], pa.struct([("at", pa.timestamp("us"))])), "holds a time beyond the years"),
])  # fmt: skip
def test_values_of_other_types_fail_the_call(column: pa.Array, reason: str) -> None:
    found = outcome_of(lambda _: pa.record_batch({"value": column}), "a", of=TWO)
    assert found[1] == "InvalidOutcome"
    assert f"its column value {reason}" in found[2]


@pytest.mark.parametrize("key", [b"k", "k", 1, (1, 2)])
def test_a_join_gets_all_tuples_of_a_key_whatever_keys_the_batches_of_other_tasks_have(key: Any) -> None:
    """A batch with a key that is null has another column of keys."""
    join = steps_of({"name": "join", "input": "source", "group_by": "key", "join": True})
    seen = Seen()
    records = {offset: [(str(offset), key)] + [("none", None)] * (offset % 2) for offset in range(20)}
    assert Lab(join, emit_all, [seen.handler]).run(records) == dict.fromkeys(records)
    calls = [sum(value != "none" for value in batch.column("value").to_pylist()) for batch in seen.batches]
    assert sorted(filter(None, calls)) == [20]
