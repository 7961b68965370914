"""How many records the task that reads them handles at once, and what it holds of their tuples meanwhile."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from ackline.handler import Emit, Record, Tuple
from ackline.spark.lineage import tasks_of_chain
from ackline.trees import answers, calls, delivery, stages, tuples
from ackline.trees.batch import Ended
from ackline.trees.calls import TreeCalls
from ackline.worker.settings import ReplayJob
from tests.support.memory_adapters import MemoryAdapters
from tests.trees.stages import steps_of
from tests.worker import disk_handlers
from tests.worker.disk_lane import lane_of
from tests.worker.task_lab import TaskLab

SIZE = 500
MANY = f"{__name__}:many"
seen: list[tuple[int, int, bytes]] = []


def many(record: Record) -> Iterator[Emit]:
    """Emits as many tuples as the value says, and fails after them if the key says so."""
    for number in range(int(record.value or b"0")):
        yield Emit(bytes([number % 256]) * SIZE, key=str(number % 7))
    if record.key == b"fail":
        raise ValueError("no")


def end(given: Tuple) -> None:
    """Fails the tuples that hold the byte 3."""
    seen.append((given.origins[0].offset, len(given.value), given.value[:1]))
    if given.value[:1] == b"\3":
        raise ValueError("three")


STEPS = steps_of({"name": "end", "handler": f"{__name__}:end", "input": "source", "group_by": "key"})


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tuples each batch of the task held at its end."""
    counts: list[int] = []
    end_batch = TreeCalls.end

    def counted(of_task: TreeCalls) -> Ended:
        ended = end_batch(of_task)
        parcels = [payload for rows in ended.rows for payload in rows.column("payload").to_pylist()]
        counts.append(sum(pa.ipc.open_stream(payload).read_all().num_rows for payload in parcels))
        return ended

    monkeypatch.setattr(TreeCalls, "end", counted)
    return counts


@pytest.mark.parametrize("isolated", [False, True])
def test_a_batch_holds_no_more_tuples_than_it_should(tasks: TaskLab, held: list[int], isolated: bool) -> None:
    tp = tasks.put(*[b"400"] * 60)
    job = tasks.ran(MANY, {tp: (0, 60)}, topology=STEPS, isolated=isolated)
    assert len(tasks.outcomes(job)) == 60
    assert 400 <= max(held) <= 10_000


@pytest.mark.parametrize("deliver_tombstones", [False, True])
def test_a_batch_ends_with_the_record_that_fills_it_although_those_before_it_were_small(
    tasks: TaskLab, held: list[int], deliver_tombstones: bool
) -> None:
    """Each of 300 records emits one tuple of 500 B. Then each of five emits 6,000, with a tombstone after each one."""
    tp = tasks.put(*[b"1"] * 300, *[b"6000", None] * 5)
    job = tasks.ran(MANY, {tp: (0, 310)}, topology=STEPS, deliver_tombstones=deliver_tombstones)
    assert [count for count in held if count][:3] == [12_300, 12_000, 6_000]
    assert [offset for offset, _, _ in tasks.outcomes(job)] == list(range(310))
    assert [outcome for _, outcome, _ in tasks.outcomes(job)][300:] == [
        "failed",
        "acked" if deliver_tombstones else "skipped",
    ] * 5


def test_a_batch_ends_by_bytes(tasks: TaskLab, held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuple counts as about its 500 B and 100 B more."""
    for module in (calls, delivery):
        monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(tuples, "LEAST_BYTES", 100)
    monkeypatch.setattr(answers, "LEAST_BYTES", 100)
    tp = tasks.put(*[b"1"] * 100, *[b"700"] * 60)
    tasks.ran(MANY, {tp: (0, 160)}, topology=STEPS)
    assert 700 <= max(held) <= 2_500


def test_the_length_of_a_portion_changes_no_outcome_and_no_tuple(
    tasks: TaskLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for longest in (1, 2, 500):
        monkeypatch.setattr(stages, "_MAX_PORTION", longest)
        seen.clear()
        tp = tasks.put(b"0", b"3", b"4", b"300", b"x", b"1", b"2")
        tasks.put_records(tp, [(b"fail", b"2"), (None, b"3")])
        job = tasks.ran(MANY, {tp: (0, 9)}, topology=STEPS)
        found.append((tasks.outcomes(job), sorted(seen)))
    assert found[0] == found[1] == found[2]
    assert {outcome for _, outcome, _ in found[0][0]} == {"acked", "failed"}


@pytest.mark.parametrize(("records", "tuples", "parts"), [
    (1_000, None, 1),
    (20_000, None, 4),
    (500_000, None, 10),
    (1_000, 400, 4),
    (5_000, 400, 4),
    (5_000, 4_000, 40),
    (500_000, 4_000, 64),
    (5_000_000, 400, 100),
    (500_000, 0.5, 10),
])  # fmt: skip
def test_an_exchange_is_divided_by_the_tuples_that_records_had_in_the_turn_before(
    records: int, tuples: float | None, parts: int
) -> None:
    """On four cores. Without a turn before, ten tuples a record."""
    assert tasks_of_chain(records, 4, tuples) == parts


def test_a_turn_knows_how_many_tuples_a_record_had_in_the_turn_before() -> None:
    step = {"name": "next", "handler": "tests.worker.disk_handlers:step", "input": "source", "group_by": "key"}
    outputs = [{"from": "next", "table": "totals"}]
    with lane_of({"handler": "tests.worker.disk_handlers:emit", "steps": [step], "outputs": outputs}) as lane:
        known: list[float | None] = []
        adapters = lane.adapters

        def noting(**changes: Any) -> MemoryAdapters:
            found = adapters(**changes)

            def run_job(spark: Any, job: ReplayJob, on_progress: Any) -> Any:
                known.append(job.tuples_a_record)
                return found.run_job(spark, job, on_progress)

            return replace(found, run_job=run_job)

        for emitted in (30, 1, 0):
            for offset in range(lane.log().end, lane.log().end + 2):
                disk_handlers.ANSWERS[offset] = partial(iter, [Emit({"id": n}, key="k") for n in range(emitted)])
            lane.produce(b"{}", b"{}")
            lane.run(noting())
    assert known == [None, 30.0, 1.0]
