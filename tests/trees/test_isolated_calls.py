"""Trees whose handlers run in a process of their own: real processes die or hang in the midst of calls."""

import select
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from ackline.errors import FatalError
from ackline.local.processes import wait_until
from ackline.pipeline.functions import load_steps
from ackline.pipeline.topology import SOURCE_STEP, Topology
from ackline.trees.answers import Emissions
from ackline.trees.calls import TreeCalls
from ackline.trees.isolated import CALLS_A_REQUEST, IsolatedTreeCalls, Returned, SentCall
from ackline.trees.rows import Edges
from ackline.trees.tuples import Packed, Tuples
from tests.trees import deadly_handlers
from tests.trees.stages import TP, Lab, steps_of, task_of
from tests.worker.isolation.lab import pids

HANDLERS = deadly_handlers.__name__


def steps(*blocks: dict[str, Any]) -> Topology:
    return steps_of(*({**block, "handler": f"{HANDLERS}:{block['name']}"} for block in blocks))


TREE = steps(
    {"name": "near", "input": "source"},
    {"name": "far", "input": "near", "group_by": "key"},
    {"name": "meet", "input": ["near", "far"], "group_by": "key", "join": True},
    {"name": "end", "input": "meet"},
)
FAR = steps({"name": "far", "input": "source", "group_by": "key"}, {"name": "end", "input": "far", "group_by": "key"})


def isolated_calls(topology: Topology, limit: float | None = None) -> IsolatedTreeCalls:
    task = task_of(topology, f"{HANDLERS}:source", isolated=True, record_timeout=limit)
    return IsolatedTreeCalls(task, lambda: 7, None, step=0)


def called(calls: IsolatedTreeCalls, *values: str) -> list[tuple[str, str | None]]:
    """Calls the first step of the topology with each value, as long as it may. Returns the error class and the message
    of each record."""
    made = calls.loop(FAR.steps[0], tuples_of(calls, *values), np.arange(len(values) + 1))
    failures = map(made.failures.get, range(len(made.counts)))
    return [("acked", None) if each is None else (str(each.error_class), each.error_message) for each in failures]


def tuples_of(calls: IsolatedTreeCalls, *values: str) -> Tuples:
    """Tuples with these values; each is of a record of its own."""
    count = len(values)
    ones = np.ones(count, np.int64)
    roots = calls.batch.roots.add(0 * ones, np.arange(count), ones)
    return Tuples(0 * ones, Edges(ones.astype(np.uint64), roots, ones), Packed(["k"] * count, list(values)))


def noted(folder: Path) -> list[str]:
    """The calls of handlers, without their processes, in their order."""
    return [line.rpartition(" ")[0] for line in (folder / "calls").read_text().splitlines()]


@pytest.fixture
def far(folder: Path) -> Iterator[IsolatedTreeCalls]:
    calls = isolated_calls(FAR, 0.5)
    yield calls
    calls.process.close()


def test_calls_that_kill_or_hang_their_process_fail_alone_and_none_is_made_twice(
    far: IsolatedTreeCalls, folder: Path
) -> None:
    """Faults 11 and 12."""
    deeds = {
        "ok": "acked", "kill in far": "WorkerLost", "spin in far": "Timeout", "fail in far": "ValueError",
        "segfault in far": "WorkerLost", "endless in far": "Timeout", "exit3 in far": "WorkerLost",
        "skip in far": "Skip", "exit in far": "SystemExit", "much in far": "acked", "stop in far": "Timeout",
        "ok too": "acked",
    }  # fmt: skip
    found = called(far, *deeds)
    assert [error_class for error_class, _ in found] == list(deeds.values())
    assert found[1][1] == "the handler's process was killed by SIGKILL"
    assert found[2][1] == "the handler did not return within 0.5 s"
    assert noted(folder) == [f"far k {deed}" for deed in deeds]


def test_a_copy_of_the_process_that_a_handler_forks_answers_nothing(far: IsolatedTreeCalls, folder: Path) -> None:
    assert called(far, "fork in far", "ok", "fork in far", "ok") == [("acked", None)] * 4
    assert noted(folder) == ["far k fork in far", "far k ok"] * 2


def test_a_process_that_a_thread_ends_between_two_requests_fails_no_call(far: IsolatedTreeCalls, folder: Path) -> None:
    assert called(far, "ok", "soon in far") == [("acked", None)] * 2
    assert wait_until(lambda: bool(select.select([far.process._control], [], [], 0)[0]), 10)
    assert called(far, "ok", "ok") == [("acked", None)] * 2
    assert noted(folder) == ["far k ok", "far k soon in far", "far k ok", "far k ok"]


def test_a_step_that_dies_at_its_import_fails_the_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILLERS_IMPORT", "segfault")
    topology = steps_of(
        {"name": "far", "handler": "tests.worker.isolation.killers_at_import:handle", "input": "source"}
    )
    calls = isolated_calls(topology)
    try:
        with pytest.raises(FatalError, match="SIGSEGV, 3 times while it had no record to handle"):
            called(calls, "ok")
    finally:
        calls.process.close()


@pytest.mark.parametrize(("room", "requests"), [(1 << 20, [20, 20, 3]), (41, [20, 20, 3]), (40, [20, 20])])
def test_calls_of_one_request_are_few_and_each_of_them_counts_before_the_batch_ends(
    room: int, requests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they emit waits in memory; a call whose answer is dropped would be made twice."""
    calls, sent = isolated_calls(FAR), list[int]()

    def make(_: object, chunk: Sequence[SentCall]) -> list[Returned]:
        sent.append(len(chunk))
        return [Returned(0, 1, Emissions([0], ["k"], ["v"], size=1)) for _ in chunk]

    monkeypatch.setattr(calls, "_make_calls", make)
    monkeypatch.setattr(type(calls), "room", room)
    found = called(calls, *["ok"] * (2 * CALLS_A_REQUEST + 3))
    assert sent == requests
    assert len(found) == len(calls.reader(FAR.steps[0]).emitted) == sum(requests)


class IsolatedLab(Lab):
    """A lab all tasks of which have their steps in the same process."""

    isolated: IsolatedTreeCalls

    def _calls(self, step: int = SOURCE_STEP, part: int = 0) -> TreeCalls:
        calls = IsolatedTreeCalls.__new__(IsolatedTreeCalls)
        TreeCalls.__init__(calls, self.topology, (), [TP], lambda: 1_000_000, step=step, part=part)
        calls.process, calls._limit = self.isolated.process, None
        return calls


def test_an_isolated_tree_has_the_events_and_outcomes_of_one_that_is_not(folder: Path) -> None:
    """Random trees of records with chained, grouped and joined steps; their handlers fail, hold, skip and emit to
    unknown streams and to some or none of their inputs."""
    deeds = ["ok", "fail in near", "skip in far", "dead in end", "nowhere in far", "free in near"]
    deeds += ["hold in meet", "reject in meet", "some in meet", "exit in far"]
    process = isolated_calls(TREE)
    try:
        for seed in range(10):
            random = Random(seed)
            records = {
                n: [(random.choice("abc"), random.choice(deeds)) for _ in range(random.randrange(5))] for n in range(20)
            }
            labs = [kind(TREE, deadly_handlers.source, load_steps(TREE), Random(seed)) for kind in (Lab, IsolatedLab)]
            labs[1].isolated = process  # type: ignore[attr-defined]
            plain, isolated = (lab.run(records) for lab in labs)
            assert isolated == plain
            assert {name: done.numbers() for name, done in labs[1].counts.items()} == {
                name: done.numbers() for name, done in labs[0].counts.items()
            }
            assert {name: done.execute.count for name, done in labs[1].counts.items()} == {
                name: done.execute.count for name, done in labs[0].counts.items()
            }
            events = [
                sorted(
                    (root, int(of.rows["xor"][0]), of.rows["open"].tolist(), of.rows["acked"].tolist(), of.notes.get(0))
                    for root, of in lab.events
                )
                for lab in labs
            ]
            assert events[0] == events[1]
        assert len(pids(folder)) == 2, "this process and one of its own"
    finally:
        process.process.close()
