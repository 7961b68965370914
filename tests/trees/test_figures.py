"""What the tasks measure of steps and trees: times of calls, the latency of trees, stories, and sampled edges."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from ackline.handler import Emit, Hold, Record, Skip, Tuple
from ackline.ledger.explain import StepStory, decode_story
from ackline.ledger.outcomes import Outcome
from ackline.trees.batch import EdgeLog, edge_log_of
from ackline.trees.calls import TreeCalls
from ackline.trees.events import stories_of_acked
from tests.trees.stages import LOCAL, NOW, SEEDS, TP, Lab, each_item, steps_of, task_of

JOIN = steps_of(
    {"name": "price", "input": "source", "group_by": "key"},
    {"name": "total", "input": "price", "group_by": "key", "join": True},
)
NEAR = steps_of({"name": "near", "input": "source"})


def record(offset: int, value: object) -> Record:
    return Record(TP.topic, TP.partition, offset, None, None, value, (), 1)


def work(given: Tuple) -> Emit | None:
    """Fails for `bad`, skips for `skip`, and emits anything else."""
    if given.value == "bad":
        raise ValueError("broken")
    if given.value == "skip":
        raise Skip
    return Emit(given.value, key=given.key)


def join(given: list[Tuple]) -> Iterator[Hold]:
    """Holds each tuple `held`."""
    yield from (Hold(each) for each in given if each.value == "held")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock of the calls, in nanoseconds; handlers move it."""
    now = [1_000]
    monkeypatch.setattr("ackline.trees.calls.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr("ackline.trees.batch.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr("ackline.trees.batch.time_ns", lambda: 5_000_000)
    return now


def test_each_call_counts_with_its_own_time_whether_it_fails_or_not(clock: list[int]) -> None:
    def source(given: Record) -> Iterator[Emit]:
        for item in given.value:
            clock[0] += 10
            yield Emit(item)

    def near(given: Tuple) -> None:
        clock[0] += 100 * given.value
        if given.value == 3:
            raise ValueError

    calls = TreeCalls(NEAR, [near], [TP], lambda: NOW)
    calls.call_source(source, record(0, [1, 2, 3]), SEEDS)
    calls.call_source(source, record(1, []), SEEDS)
    calls.end()
    spans = {name: counts.execute for name, counts in calls.figures.counts.items()}
    assert {name: (of.count, of.total, of.longest) for name, of in spans.items()} == {
        "source": (2, 30, 30),
        "near": (3, 600, 300),
    }


def test_a_source_that_raises_is_timed_too(clock: list[int]) -> None:
    def source(_: Record) -> None:
        clock[0] += 7
        raise ValueError("broken")

    calls = TreeCalls(NEAR, [work], [TP], lambda: NOW)
    with pytest.raises(ValueError, match="broken"):
        calls.call_source(source, record(0, []), SEEDS)
    calls.end()
    assert calls.figures.counts["source"].execute.total == 7
    assert calls.figures.latency.count == 0


def test_the_latency_of_a_tree_that_ends_in_its_task_lasts_until_its_last_step_returned(clock: list[int]) -> None:
    """The step gets the tuples of several records after one another, so a tree ends when the last one has returned."""

    def near(given: Tuple) -> None:
        clock[0] += 50
        if given.value == "bad":
            raise ValueError

    calls = TreeCalls(NEAR, [near], [TP], lambda: NOW)
    calls.call_source(each_item, record(0, ["a", "b"]), SEEDS)
    calls.call_source(each_item, record(1, ["bad"]), SEEDS)  # no acked tree
    calls.call_source(each_item, record(2, []), SEEDS)
    calls.end()
    assert (calls.figures.latency.count, calls.figures.latency.total, calls.figures.latency.longest) == (2, 150, 150)


def test_a_tree_that_goes_on_elsewhere_takes_the_time_of_its_first_call_along(clock: list[int]) -> None:
    calls = TreeCalls(LOCAL, [work, work], [TP], lambda: NOW)
    clock[0] += 300
    calls.call_source(each_item, record(0, ["a"]), SEEDS)
    [begun] = calls.end().events.rows["begun"]
    assert begun == 5_000_000 + 300
    assert calls.figures.latency.count == 0


def stories(*handlers: object, **records: list[str]) -> dict[int, object]:
    found = Lab(JOIN, each_item, handlers).run({int(name[1:]): items for name, items in records.items()})  # type: ignore[arg-type]
    return {offset: None if outcome is None else decode_story(outcome.tree) for offset, outcome in found.items()}


def test_a_record_that_is_not_acked_has_the_numbers_of_each_step() -> None:
    assert stories(work, join, r0=["a", "bad", "b", "bad"], r1=["a", "held"], r2=["a"], r3=["skip", "c"]) == {
        0: {"price": StepStory(2, 2, 0), "total": StepStory(2, 0, 0)},
        1: {"price": StepStory(2, 0, 0), "total": StepStory(1, 0, 1)},
        2: None,
        3: {"price": StepStory(1, 0, 0), "total": StepStory(1, 0, 0)},
    }


def test_a_tuple_that_got_lost_is_missing() -> None:
    lab = Lab(JOIN, each_item, [work, join], lose=lambda sent: sent.step == 1)
    outcome = lab.run({0: ["a", "b"]})[0]
    assert outcome is not None
    assert decode_story(outcome.tree) == {"price": StepStory(2, 0, 0), "total": StepStory(0, 0, 2)}
    assert outcome.outcome is Outcome.FAILED


def test_acked_records_have_the_numbers_of_each_step_and_one_text_for_each_pattern_of_them() -> None:
    found = stories_of_acked(np.array([[3, 1, 0, 3, 2], [3, 0, 0, 3, 0]]), JOIN)
    assert found is not None
    assert [decode_story(text) for text in found.to_pylist()] == [
        {"price": StepStory(3, 0, 0), "total": StepStory(3, 0, 0)},
        {"price": StepStory(1, 0, 0)},
        None,
        {"price": StepStory(3, 0, 0), "total": StepStory(3, 0, 0)},
        {"price": StepStory(2, 0, 0)},
    ]
    assert len(found.dictionary) == 4
    assert stories_of_acked(np.zeros((2, 3), np.int64), JOIN) is None
    assert stories_of_acked(np.zeros((0, 3), np.int64), steps_of()) is None


def logged(caplog: pytest.LogCaptureFixture, sample: float, offsets: range) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        calls = TreeCalls(
            LOCAL, [work, work], [TP], lambda: NOW, edge_log=EdgeLog(sample, task_of(LOCAL, debug_sample=sample))
        )
        for offset in offsets:
            calls.call_source(each_item, record(offset, ["secret"] if offset else ["bad", "secret"]), SEEDS)
        calls.end()
    return [line.getMessage() for line in caplog.records]


def test_an_edge_is_a_line_without_key_and_value(caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(caplog, 1, range(1))
    assert [line.partition(", edge ")[0] for line in lines] == [
        "orders[0] offset 0 attempt 1: source -> near emitted",
        "orders[0] offset 0 attempt 1: source -> near emitted",
        "orders[0] offset 0 attempt 1: source -> near failed (ValueError)",
        "orders[0] offset 0 attempt 1: source -> near acked",
        "orders[0] offset 0 attempt 1: near -> far emitted",
    ]
    edges = [line.partition(", edge ")[2] for line in lines]
    assert edges[0] == edges[2] != edges[1] == edges[3]
    assert all(len(edge) == 16 and int(edge, 16) for edge in edges)
    assert not any("secret" in line or "broken" in line for line in lines)


def test_a_sampled_record_is_logged_in_every_task_or_in_none(caplog: pytest.LogCaptureFixture) -> None:
    lines = logged(caplog, 0.1, range(1, 1001))
    chosen = [line.split()[2] for line in lines]
    assert 50 < len(set(chosen)) < 200
    assert {chosen.count(offset) for offset in chosen} == {3}  # to near, acked there, and to far
    assert logged(caplog, 0.1, range(1, 1001)) == lines


def test_without_debug_there_is_no_log_of_edges() -> None:
    assert edge_log_of(task_of(LOCAL)) is None
    assert edge_log_of(task_of(LOCAL, debug_sample=0.5)) is not None
