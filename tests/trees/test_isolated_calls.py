"""Trees whose handlers run in a process of their own: real processes die or hang in the midst of calls."""

import select
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ackline.errors import FatalError
from ackline.handler import Origin
from ackline.local.processes import wait_until
from ackline.pipeline.functions import load_steps
from ackline.pipeline.topology import SOURCE_STEP, Stream, Topology
from ackline.trees.answers import Input, input_of
from ackline.trees.calls import TreeCalls
from ackline.trees.isolated import CALLS_A_REQUEST, IsolatedTreeCalls
from ackline.trees.payload import pack
from ackline.trees.stages import StepRun
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


def inputs(*values: str) -> list[Input]:
    """Tuples for the first step with these values; each is of a record of its own."""
    return [input_of(*pack("k", value), Stream("source"), (Origin(*TP, n),), (n,)) for n, value in enumerate(values)]


def called(calls: IsolatedTreeCalls, *values: str) -> list[tuple[str, str | None]]:
    """Calls the first step of the topology with each value. Returns the error class and the message of each record."""
    step = FAR.steps[0]
    found: list[tuple[str, str | None]] = []
    waiting = inputs(*values)
    calls.call_ahead(step, waiting)
    for given in waiting:
        outcome, _ = calls.answers_of_step(step, given.tuple, (given,))
        found.append(("acked", None) if outcome is None else (str(outcome.error_class), outcome.error_message))
    return found


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
        with pytest.raises(FatalError, match="SIGSEGV, 3 times before it was given a record"):
            called(calls, "ok")
    finally:
        calls.process.close()


class CallsAhead:
    """Notes which calls are made ahead. What the first so many calls have emitted is enough for a batch."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.ahead: list[int] = []
        self.delivered = 0

    @property
    def full(self) -> bool:
        return self.delivered >= self.enough

    def call_ahead(self, _: object, chunk: list[Input]) -> None:
        self.ahead.append(len(chunk))

    def call_step(self, *_: object) -> None:
        self.delivered += 1


@pytest.mark.parametrize(
    ("enough", "ahead"),
    [(1000, [CALLS_A_REQUEST, CALLS_A_REQUEST, 3]), (CALLS_A_REQUEST + 1, [CALLS_A_REQUEST, CALLS_A_REQUEST])],
)
def test_calls_ahead_are_few_and_each_of_them_is_delivered_before_the_batch_ends(enough: int, ahead: list[int]) -> None:
    """What they emit waits in memory; a call whose answer is dropped would be made twice."""
    run, calls = StepRun.__new__(StepRun), CallsAhead(enough)
    run._step = FAR.steps[0]
    done = run._call_ahead(calls, iter(inputs(*["ok"] * (2 * CALLS_A_REQUEST + 3))))  # type: ignore[arg-type]
    assert calls.ahead == ahead
    assert done == calls.delivered == sum(ahead)


class IsolatedLab(Lab):
    """A lab all tasks of which have their steps in the same process."""

    isolated: IsolatedTreeCalls

    def _calls(self, step: int = SOURCE_STEP, part: int = 0) -> TreeCalls:
        calls = IsolatedTreeCalls.__new__(IsolatedTreeCalls)
        TreeCalls.__init__(calls, self.topology, (), [TP], lambda: 1_000_000, step=step, part=part)
        calls.process, calls._called_ahead, calls._limit = self.isolated.process, {}, None
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
