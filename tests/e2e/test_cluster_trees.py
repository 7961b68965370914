"""A shuffle that is lost between the steps of a tree, on a real standalone cluster: the turn is never half replayed."""

from collections import Counter
from datetime import timedelta

import pytest

from ackline.local.processes import wait_until
from tests.e2e.cluster_lab import HANDLER, SECONDS, START, Ended, Lane, Machines, ended

pytestmark = pytest.mark.timeout(600)
"""A test has two runs, each of which starts a driver and executors."""


TREES = (
    HANDLER
    + """
from ackline import Emit

def split(record):
    journal.handle(record)
    yield Emit(record.value.decode(), key=record.offset)

def work(given):
    with open(os.environ["ACKLINE_JOURNAL"] + "-of-step", "a") as file:
        file.write(f"{given.origins[0].partition} {given.origins[0].offset}\\n")
    gate = json.loads(given.value).get("gate")
    while gate and not os.path.exists(gate):
        with open(gate + "-folder", "w") as file:
            file.write(os.getcwd())
        time.sleep(0.05)
    yield Emit(None, key=given.key)

def end(given):
    pass
"""
)
PER_PARTITION = 3_000
"""Records of a partition: so many that a step runs in two tasks, one on each worker."""


def shuffle_lost(machines: Machines, name: str, guarantee: str) -> tuple[Lane, Ended]:
    """Runs a pipeline with steps. While one worker is within the first step, kills the other one, which holds half of
    the tuples on their way: those that `split` has emitted, and those of its part of the step. Returns how it ended."""
    module = f"handler_of_{name.replace('-', '_')}"
    steps = [
        {"name": "first", "handler": f"{module}:work", "input": "source", "group_by": "key"},
        {"name": "second", "handler": f"{module}:end", "input": "first", "group_by": "key"},
    ]
    lane = Lane(machines, name, TREES, {"guarantee": guarantee, "handler": f"{module}:split", "steps": steps})
    lane.produce(PER_PARTITION, gate=100)
    run = lane.start()
    assert wait_until(lambda: lane.folder_at_gate() != "", SECONDS)
    idle = next(worker for worker in machines.cluster.workers if f"/{worker.name}/" not in lane.folder_at_gate())
    machines.cluster.remove(idle)
    lane.gate.touch()
    return lane, ended(run)


def calls_of_step(lane: Lane) -> Counter[str]:
    """How often the first step got a tuple of each record."""
    return Counter((lane.shared / "journal-of-step").read_text().splitlines())


@pytest.mark.deep
def test_fault_7_a_shuffle_lost_between_steps_ends_the_run_and_the_turn_is_replayed_whole(
    two_workers: Machines,
) -> None:
    lane, run = shuffle_lost(two_workers, "lost-at-least-once", "at_least_once")
    assert run.status == 1, run.errors
    assert "the Spark job failed for now" in run.errors
    assert (lane.table("outcomes"), lane.committed()) == ([], None)
    assert set(lane.calls().values()) == {1}, "the lost part of the source ran again within the job"
    later = lane.run()
    assert (later.status, later.printed["outcomes"]) == (0, {"acked": 2 * PER_PARTITION}), later.errors
    assert set(lane.calls().values()) == {2}
    assert len(lane.calls()) == len(calls_of_step(lane)) == 2 * PER_PARTITION
    assert lane.violations("--settled") == []


@pytest.mark.deep
def test_i7_fault_7_a_shuffle_lost_between_steps_repeats_no_call_at_most_once(two_workers: Machines) -> None:
    lane, run = shuffle_lost(two_workers, "lost-at-most-once", "at_most_once")
    assert run.status == 1, run.errors
    assert lane.table("outcomes") == []
    later = lane.run(START + timedelta(hours=2))
    assert (later.status, later.printed["outcomes"]) == (0, {"lost": 2 * PER_PARTITION}), later.errors
    assert set(lane.calls().values()) == {1}
    assert set(calls_of_step(lane).values()) == {1}
    assert lane.violations("--settled") == []
