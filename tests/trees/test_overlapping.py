"""Calls of a tree that overlap leave what they leave one after the other, and each is made once."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import TransientError
from ackline.handler import Emit, Record, Skip, Tuple
from ackline.pipeline.streams import Stream, Translation
from ackline.pipeline.topology import StepBlock, Topology, topology
from ackline.worker.ahead import Made, TaskCalls
from tests.trees.test_drawn_trees import DIGESTS, digest
from tests.worker.task_lab import TaskLab

TOGETHER = 8
_SECONDS = 20
_threads = threading.Barrier(TOGETHER)
seen: list[bytes | str] = []


def overlapping(numbers: range, lab: TaskLab, folder: Path) -> list[int]:
    """The numbers of the trees that leave something else if calls overlap."""
    return [number for number in numbers if digest(number, lab, folder, overlapping=True) != DIGESTS[number]]


def test_s60_trees_whose_calls_overlap_leave_the_same(tasks: TaskLab, tmp_path: Path) -> None:
    assert overlapping(range(20), tasks, tmp_path) == []


@pytest.mark.deep
@pytest.mark.parametrize("first", range(20, len(DIGESTS), 180))
def test_s60_each_tree_whose_calls_overlap_leaves_the_same(tasks: TaskLab, tmp_path: Path, first: int) -> None:
    assert overlapping(range(first, min(first + 180, len(DIGESTS))), tasks, tmp_path) == []


# ---- what the handlers below do -------------------------------------------------------------------------------------


def split(record: Record) -> Iterator[Emit]:
    """Emits as many tuples as the value says."""
    assert record.value is not None
    for number in range(int(record.value)):
        yield Emit(f"{record.offset}.{number}", key=str(number))


def meet(given: Tuple) -> None:
    """Waits for seven other threads."""
    _threads.wait(_SECONDS)


class Meet:
    """Waits for seven other calls on the loop, with what the loop was opened with."""

    async def open(self) -> None:
        self.barrier = asyncio.Barrier(TOGETHER)

    async def __call__(self, given: Tuple) -> None:
        await asyncio.wait_for(self.barrier.wait(), _SECONDS)
        seen.append(given.value)

    async def close(self) -> None:
        del self.barrier
        seen.append("closed")


class NeverOpens(Meet):
    async def open(self) -> None:
        raise ConnectionResetError("the peer is gone")


async def meet_source(record: Record) -> Emit:
    """Waits for the calls for three other records, and emits."""
    waiting.append(record.offset)
    while len(waiting) < 4:
        await asyncio.sleep(0)
    return Emit("x")


waiting: list[int] = []


def large(record: Record) -> Iterator[Emit]:
    """Emits what fills a batch after a few records."""
    seen.append(str(record.offset))
    for number in range(3):
        yield Emit(f"{record.offset}.{number}" + "x" * 1_000_000)


def note(given: Tuple) -> None:
    """Notes the record of a tuple, and fails some."""
    seen.append(given.value[:6].rstrip("x"))


def changed(given: Tuple) -> Iterator[Emit]:
    """Changes an Emit and its value after it was yielded."""
    emit = Emit(["before"], "kept")
    yield emit
    emit.value.append("after")
    emit.value = "after"
    if given.key == "1":
        yield Emit(object(), "kept")
        raise ValueError("behind what is refused")
    if given.key == "2":
        raise Skip("behind what was emitted")


def keep(given: Tuple) -> None:
    """Notes a value."""
    seen.append(repr(given.value))


def wants(record: Record) -> bool:
    """A filter that takes no record with 9, and fails for 8."""
    if record.value == 8:
        raise KeyError("broken")
    return bool(record.value != 9)


async def one(record: Record) -> Emit:
    """Emits one tuple."""
    seen.append(str(record.value))
    return Emit(record.value)


def steps(*blocks: dict[str, Any]) -> Topology:
    here = [{"input": "source", **block, "handler": f"{__name__}:{block['handler']}"} for block in blocks]
    return topology([StepBlock.model_validate(block) for block in here])


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()
    waiting.clear()


# ---- in the tasks of a job ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_by", [None, "key"])
@pytest.mark.parametrize("handler", ["meet", "Meet"])
def test_calls_of_a_step_are_under_way_at_once(tasks: TaskLab, handler: str, group_by: str | None) -> None:
    of = steps({"name": "meets", "handler": handler, "group_by": group_by, "concurrency": TOGETHER})
    job = tasks.ran(f"{__name__}:split", {tasks.put(b"5", b"5", b"6"): (0, 3)}, topology=of)
    assert [outcome for _, outcome, _ in tasks.outcomes(job)] == ["acked"] * 3
    assert seen[-1:] == (["closed"] if handler == "Meet" else [])


def test_calls_for_records_are_under_way_at_once_before_steps(tasks: TaskLab) -> None:
    of = steps({"name": "notes", "handler": "note"})
    job = tasks.ran(f"{__name__}:meet_source", {tasks.put(*[b"x"] * 10): (0, 10)}, topology=of, concurrency=4)
    assert [outcome for _, outcome, _ in tasks.outcomes(job)] == ["acked"] * 10
    assert sorted(waiting) == [*range(10)]


def test_an_open_of_a_step_that_fails_is_no_outcome_of_a_tuple(tasks: TaskLab) -> None:
    of = steps({"name": "never", "handler": "NeverOpens", "group_by": "key"})
    with pytest.raises(TransientError, match=r"`open` of .*NeverOpens failed: ConnectionReset"):
        tasks.ran(f"{__name__}:split", {tasks.put(b"2"): (0, 1)}, topology=of)


@pytest.mark.parametrize("group_by", [None, "key"])
def test_records_that_fill_batches_are_each_called_once_and_in_order(tasks: TaskLab, group_by: str | None) -> None:
    of = steps({"name": "notes", "handler": "note", "group_by": group_by})
    job = tasks.ran(f"{__name__}:large", {tasks.put(*[b"x"] * 20): (0, 20)}, topology=of, concurrency=3)
    assert [outcome for _, outcome, _ in tasks.outcomes(job)] == ["acked"] * 20
    records, tuples = [text for text in seen if "." not in text], [text for text in seen if "." in text]
    assert sorted(records, key=int) == [str(offset) for offset in range(20)]
    assert tuples == [f"{offset}.{number}" for offset in range(20) for number in range(3)]


def test_what_a_call_yields_counts_as_it_was_then_and_up_to_its_first_fault(tasks: TaskLab) -> None:
    of = steps(
        {"name": "changes", "handler": "changed", "concurrency": 3},
        {"name": "keeps", "handler": "keep", "input": "changes.kept"},
    )
    job = tasks.ran(f"{__name__}:split", {tasks.put(b"1", b"2", b"3"): (0, 3)}, topology=of)
    assert tasks.outcomes(job) == [(0, "acked", None), (1, "failed", "InvalidOutcome"), (2, "failed", "InvalidOutcome")]
    assert seen == ["['before']"] * 3


def test_filters_and_decoders_run_in_order_before_calls_that_overlap(tasks: TaskLab) -> None:
    stream = Stream("", f"{__name__}:one", f"{__name__}:wants", value="json")
    of = steps({"name": "keeps", "handler": "keep"})
    tp = tasks.put(b"1", b"9", b"{", b"8", None, b"2")
    job = tasks.ran(f"{__name__}:one", {tp: (0, 6)}, topology=of, translation=Translation((stream,)))
    assert tasks.outcomes(job) == [
        (0, "acked", None), (1, "skipped", "Unmatched"), (2, "failed", "Undecodable"), (3, "failed", "KeyError"),
        (4, "skipped", "Tombstone"), (5, "acked", None),
    ]  # fmt: skip
    assert sorted(map(str, seen)) == ["1", "1", "2", "2"]


# ---- how far calls go on --------------------------------------------------------------------------------------------


def test_a_slow_call_stops_the_others_once_four_times_the_limit_have_begun() -> None:
    begun, go_on, seventh = [], threading.Event(), threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == 7:
            seventh.set()
        if number == 0:
            assert go_on.wait(_SECONDS)

    task = TaskCalls(lambda: 1)
    calls = task.of([call], 2, 2)
    made: list[Made] = []
    reader = threading.Thread(target=lambda: made.extend(calls.over((call, number, None) for number in range(20))))
    reader.start()
    assert seventh.wait(_SECONDS)
    assert sorted(begun) == [*range(8)]
    go_on.set()
    reader.join(_SECONDS)
    task.close()
    assert [each.argument for each in made] == [*range(20)]
    assert sorted(begun) == [*range(20)]


def test_what_is_large_or_enough_stops_calls_earlier_and_loses_none() -> None:
    task, begun = TaskCalls(lambda: 1), list[int]()
    calls = task.of([begun.append], 2, 2)

    def most(size: int) -> int:
        """The most calls that have begun beyond those that are read."""
        numbers, found, asked = iter(range(40)), 0, 0

        def jobs() -> Iterator[Any]:
            nonlocal asked
            for number in numbers:
                asked += 1
                yield begun.append, number, None

        for read, _ in enumerate(calls.over(jobs())):
            found = max(found, asked - read) if read > 8 else found
            calls.weigh(size, is_full=read == 30)
        assert asked < 40
        assert sorted(begun) == [*range(asked)]
        begun.clear()
        return found

    assert (most(10), most(4 << 20)) == (8, 2)
    task.close()
