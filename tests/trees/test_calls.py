"""What a call's answer means for the tree: acks, failures, holds, anchors, streams."""

import gc
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from ackline.handler import Dead, Emit, Fail, Hold, Origin, Record, Skip, Tuple
from ackline.ledger.outcomes import Outcome
from ackline.trees.calls import TreeCalls, rarer_collection
from ackline.trees.rows import Edges
from tests.trees.stages import (
    JOIN,
    ONE,
    SEEDS,
    TWO,
    Lab,
    SentTuple,
    each_item,
    fail_on,
    nothing,
    pass_on,
    ran,
    shown,
    steps_of,
)

ACKED = ("acked", None, None)


def test_s60_a_record_is_acked_when_all_that_came_of_it_is() -> None:
    assert ran(TWO, pass_on, nothing, r0=["a", "b", "c"], r1=["a"]) == {0: ACKED, 1: ACKED}


def test_s61_one_failed_child_fails_its_record_alone() -> None:
    found = ran(TWO, fail_on("bad"), nothing, r0=["a", "b", "bad"], r1=["a"])
    assert found == {0: ("failed", "ValueError", "step first: broken; 2 siblings acked"), 1: ACKED}


def test_s61_each_attempt_has_edges_of_its_own() -> None:
    assert not edges_of(1, attempt=1) & edges_of(1, attempt=2)


def test_the_same_attempt_has_the_same_edges_however_its_tuples_are_dealt() -> None:
    assert len(edges_of(1)) == 6
    assert edges_of(1) == edges_of(2)


def edges_of(seed: int, attempt: int = 1) -> set[int]:
    """The edges of the tuples that one record sends to the steps of TWO, dealt to tasks by a seed."""
    lab = Lab(TWO, each_item, [pass_on, nothing])
    lab.random.seed(seed)
    sent: list[int] = []

    def note(each: SentTuple) -> bool:
        sent.append(each.edges[0][1])
        return False

    lab.lose = note
    lab.run({0: ["a", "b", "c"]}, attempt)
    return set(sent)


def test_s62_the_reason_names_the_step_that_holds_the_tuple() -> None:
    lab = Lab(TWO, each_item, [pass_on, nothing], lose=lambda sent: sent.step == 1 and sent.key == b"sb")
    assert shown(lab.run({0: ["a", "b", "bb"]})[0]) == ("failed", "Unacked", "step second: did not ack 2 tuples")


def test_two_edges_with_the_same_id_do_not_ack_a_record_whose_tuples_got_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The XOR of both edges is 0, as if they had been closed. The counts say no."""
    monkeypatch.setattr("ackline.trees.rows.edge_ids", lambda ids, _: np.full(len(ids), 7, np.uint64))
    lab = Lab(ONE, each_item, [nothing], lose=lambda _: True)
    assert shown(lab.run({0: ["a", "b"]})[0]) == ("failed", "Unacked", "step end: did not ack 2 tuples")


def test_counts_that_agree_do_not_ack_a_record_whose_ids_do_not() -> None:
    lab = Lab(ONE, each_item, [nothing])
    lab.run({0: ["a"]})
    lab.events[0][1].rows["xor"] ^= 1
    assert shown(lab.outcomes()[0]) == ("failed", "Unacked", "the ids of the edges do not cancel each other")


@pytest.mark.parametrize(("first", "second", "worst"), [
    (ValueError("broken"), Dead("hopeless"), "Dead"),
    (Dead("hopeless"), ValueError("broken"), "Dead"),
    (Skip("unwanted"), ValueError("broken"), "ValueError"),
    (ValueError("broken"), Skip("unwanted"), "ValueError"),
    (ValueError("first"), KeyError("second"), "ValueError"),
])  # fmt: skip
def test_the_worst_outcome_of_a_tree_wins_then_the_first_step_of_the_file(
    first: Exception, second: Exception, worst: str
) -> None:
    found = ran(TWO, fail_on("a", error=first), fail_on("b", error=second), r0=["a", "b"])
    assert found[0][1] == worst


def test_a_value_that_is_changed_after_it_was_yielded_arrives_as_it_was() -> None:
    arrived: list[Any] = []

    def reuses(record: Record) -> Iterator[Emit]:
        item: dict[str, int] = {}
        for number in range(3):
            item["n"] = number
            yield Emit(item)

    topology = steps_of({"name": "near", "input": "source"}, {"name": "beside", "input": "source"})
    near: Any = lambda given: given.value.clear()  # noqa: E731
    Lab(topology, reuses, [near, lambda given: arrived.append(given.value)]).run({0: []})
    assert arrived == [{"n": 0}, {"n": 1}, {"n": 2}]


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


def test_a_tuple_that_is_anchored_to_nothing_has_no_origin() -> None:
    def source(record: Record) -> Iterator[Emit]:
        yield Emit("anchored")
        yield Emit("free", anchors=())

    origins: list[Any] = []
    Lab(ONE, source, [lambda given: origins.append(given.origins)]).run({0: []})
    assert sorted(origins) == [(), (Origin("orders", 0, 0),)]


def test_without_tracking_the_record_is_acked_by_its_own_call_alone() -> None:
    lab = Lab(ONE, each_item, [fail_on("a")], tracked=False)
    assert lab.run({0: ["a"]}) == {}
    assert lab.counts["end"].failed == 1


def test_a_join_gets_all_tuples_of_a_key_in_the_order_of_their_records() -> None:
    calls: list[list[tuple[Any, Any]]] = []

    def join(given: Sequence[Tuple]) -> None:
        calls.append([(each.value, each.origins[0].offset) for each in given])

    assert ran(JOIN, join, r0=["a0", "b0"], r1=["a1"], r2=["a2", "c2"]) == {0: ACKED, 1: ACKED, 2: ACKED}
    assert sorted(calls) == [[("a0", 0), ("a1", 1), ("a2", 2)], [("b0", 0)], [("c2", 2)]]


def test_s66_a_join_acks_holds_and_fails_single_tuples() -> None:
    def join(given: Sequence[Tuple]) -> Iterator[Any]:
        for each in given:
            if each.value.endswith("hold"):
                yield Hold(each)
            if each.value.endswith("fail"):
                yield Fail(each, "unwanted")

    found = ran(JOIN, join, r0=["a"], r1=["a hold"], r2=["a fail"], r3=["a", "b hold"])
    assert found == {
        0: ACKED,
        1: ("failed", "Unacked", "step join: did not ack 1 tuple"),
        2: ("failed", "Fail", "step join: unwanted; 0 siblings acked"),
        3: ("failed", "Unacked", "step join: did not ack 1 tuple"),
    }


def test_a_join_that_holds_all_its_tuples_and_emits_to_an_unknown_stream_fails_by_the_stream() -> None:
    """It closes no edge, and what it has emitted counts all the same."""

    def join(given: Sequence[Tuple]) -> Iterator[Any]:
        yield from map(Hold, given)
        yield Emit("x", stream="nowhere")

    message = "step join: emitted to join.nowhere, which no step and no output takes"
    assert ran(JOIN, join, r0=["a"], r1=["a"]) == dict.fromkeys((0, 1), ("failed", "UnknownStream", message))


def test_s67_a_tuple_of_several_records_fails_them_all() -> None:
    topology = steps_of(
        {"name": "join", "input": "source", "group_by": "key", "join": True},
        {"name": "end", "input": "join", "group_by": "key"},
    )
    origins: list[Any] = []

    def join(given: Sequence[Tuple]) -> Emit:
        return Emit(len(given), key=given[0].key)

    def end(given: Tuple) -> None:
        origins.append([origin.offset for origin in given.origins])
        if given.value == 2:
            raise ValueError("broken")

    found = ran(topology, join, end, r0=["a"], r1=["a"], r2=["b"])
    assert {offset: outcome[0] for offset, outcome in found.items()} == {0: "failed", 1: "failed", 2: "acked"}
    assert sorted(origins) == [[0, 1], [2]]


def test_an_error_that_escapes_a_delivery_ends_the_task_and_gives_no_record_an_outcome() -> None:
    """A delivery is no part of a call, so no call can take its error for one of the handler."""
    calls = Lab(ONE, each_item, [nothing])._calls()
    calls.deliver = None  # type: ignore[method-assign, assignment]
    calls.call_source(each_item, Record("orders", 0, 0, None, None, ["a"], (), 1), SEEDS)
    with pytest.raises(TypeError):
        calls.end()


def test_a_failure_of_the_source_comes_before_those_of_all_steps() -> None:
    def source(record: Record) -> Iterator[Emit]:
        yield Emit("bad")
        yield Emit("x", stream="nowhere")

    found = Lab(TWO, source, [fail_on("bad"), nothing]).run({0: []})
    message = "step source: emitted to source.nowhere, which no step and no output takes; taken are source.default"
    assert shown(found[0]) == ("failed", "UnknownStream", message)


def test_neither_an_error_nor_an_unknown_stream_shows_what_the_tuple_held() -> None:
    def breaks(given: Tuple) -> None:
        mail = given.value.pop("mail")
        raise ValueError(f"bad {mail}")

    def source(record: Record) -> Emit:
        return Emit({"mail": "alice@example.org"})

    secret: Any = lambda given: Emit(1, stream=given.value["mail"][:5])  # noqa: E731
    for handler in (breaks, secret):
        message = str(shown(Lab(TWO, source, [handler, nothing]).run({0: []})[0])[2])
        assert "alice" not in message, message


def test_a_message_has_at_most_200_characters_and_keeps_the_step_and_the_siblings() -> None:
    found = ran(TWO, fail_on("bad", error=ValueError("x" * 500)), nothing, r0=["bad"])
    assert len(found[0][2]) == 200
    assert found[0][2].startswith("step first: xxx")
    assert found[0][2].endswith("; 0 siblings acked")


class Unreadable(str):
    def __str__(self) -> str:
        raise RuntimeError("no text")


NO_TEXT = {
    "long": 10**5000, "inside": {"a": 10**5000}, "exponent": Decimal("1E+999999"), "sNaN": Decimal("sNaN"),
    "nan": math.nan, "inf": math.inf,
}  # fmt: skip


@pytest.mark.parametrize("value", NO_TEXT.values(), ids=NO_TEXT)
def test_a_tuple_whose_value_has_no_text_fails_as_any_other(value: Any) -> None:
    def breaks(given: Tuple) -> None:
        raise ValueError("broken")

    found = Lab(ONE, lambda record: Emit(value, key=value), [breaks]).run({0: []})
    assert shown(found[0]) == ("failed", "ValueError", "step end: broken; 0 siblings acked")


def test_a_reason_of_fail_that_has_no_text_fails_the_join_and_not_the_task() -> None:
    for reason in (10**5000, Unreadable("x")):
        found = ran(JOIN, lambda given, reason=reason: Fail(given[0], reason), r0=["a"])
        assert found[0][0] == "failed"


def test_many_reasons_of_fail_take_no_longer_than_the_tuples() -> None:
    def join(given: Sequence[Tuple]) -> Iterator[Any]:
        for number, each in enumerate(given):
            yield Fail(each, f"reason {number}")

    found = Lab(JOIN, lambda record: Emit("a" * 50), [join]).run({offset: [] for offset in range(3000)})
    assert {shown(outcome)[1] for outcome in found.values()} == {"Fail"}


def test_a_join_that_names_tuples_in_another_order_still_sorts_by_record() -> None:
    topology = steps_of(
        {"name": "join", "input": "source", "group_by": "key", "join": True},
        {"name": "end", "input": "join", "group_by": "key", "join": True},
    )
    order: list[Any] = []

    def join(given: Sequence[Tuple]) -> Emit:
        return Emit(given[0].value, key="all", anchors=given[::-1])

    def end(given: Sequence[Tuple]) -> None:
        order.extend(each.origins[0].offset for each in given)

    ran(topology, join, end, r0=["a"], r1=["b"], r2=["a"], r3=["b"])
    assert order == [0, 1]


@pytest.mark.parametrize(("answer", "reason"), [
    (1, "returned int"),
    (["text"], "yielded str; yield Emit(value)"),
    (False, "returned False, which is no outcome: return nothing to ack the record"),
    (Emit, "returned Emit; yield Emit(value), or return nothing"),
    ([Emit(1), Dead("why")], "yielded Dead; raise it"),
    ([Emit(1), OSError()], "yielded OSError; raise it"),
    (ValueError(), "returned an exception"),
    (Emit({1, 2}.__class__), "holds type"),
    (Emit(object()), "holds object"),
    (Emit("x", key=object()), "holds object"),
    (Emit("x", anchors=["not an input"]), "not given"),
    (Emit("x", stream=3), "no name of a stream"),  # type: ignore[arg-type]
    (Hold(Tuple(1, 1, "s", "s", ())), "yielded Hold"),
])  # fmt: skip
def test_an_answer_that_means_nothing_fails_the_record(answer: Any, reason: str) -> None:
    [(outcome, error_class, message)] = ran(TWO, lambda _: answer, nothing, r0=["a"]).values()
    assert (outcome, error_class) == (Outcome.FAILED, "InvalidOutcome")
    assert reason in str(message)


def test_i17_a_value_that_no_row_of_spark_holds_fails_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackline.trees.answers._MOST_BYTES", 1000)
    found = ran(TWO, lambda given: Emit(given.value * 900, key="k"), nothing, r0=["a"], r1=["aa"])
    assert {offset: outcome[:2] for offset, outcome in found.items()} == {0: ACKED[:2], 1: ("failed", "InvalidOutcome")}


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


def test_the_collector_runs_less_often_within_a_task_and_as_before_after_it() -> None:
    """Spark reuses its Python workers, also for tasks that are not Ackline's."""
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), rarer_collection():
        fail_if_rare(before[0])
    assert gc.get_threshold() == before


def fail_if_rare(before: int) -> None:
    """Raises ValueError if the collector is on and runs less often than before."""
    if gc.isenabled() and gc.get_threshold()[0] > before:
        raise ValueError("broken")


def test_a_record_that_emits_many_tuples_costs_each_of_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that ends early is begun again with the rest. If it prepares the whole rest each time, that is quadratic:
    50,000 tuples took minutes."""
    prepared = list[int]()
    origins = TreeCalls.origins

    def counting(calls: TreeCalls, edges: Edges) -> Sequence[tuple[Origin, ...]]:
        prepared.append(len(edges))
        return origins(calls, edges)

    monkeypatch.setattr(TreeCalls, "origins", counting)
    near = steps_of({"name": "first", "input": "source"}, {"name": "second", "input": "first"})
    lab = Lab(near, each_item, [pass_on, nothing])
    assert shown(lab.run({0: [str(number) for number in range(5_000)]})[0]) == ACKED
    assert 10_000 <= sum(prepared) <= 20_000
