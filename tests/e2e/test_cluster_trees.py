"""A worker machine or an executor is killed while trees are on their way, on a real standalone cluster (fault 7).

A turn is never half replayed, and no row of an execution that was killed is published.
"""

from collections import Counter
from datetime import timedelta

import pytest
from deltalake import DeltaTable

from ackline.local.processes import wait_until
from tests.e2e import wire
from tests.e2e.cluster_lab import HANDLER, SECONDS, START, Ended, Lane, Machines, ended

pytestmark = pytest.mark.timeout(900)
"""A test has two runs, each of which starts a driver and executors."""


TREES = (
    HANDLER
    + """
from ackline import Emit
from ackline.trees.acker import AckerRun

FOLDER = os.path.dirname(os.environ.get("ACKLINE_JOURNAL", ""))
seen = set()

def wait_at(gate):
    while not os.path.exists(gate):
        with open(gate + "-folder", "w") as file:
            file.write(os.getcwd())
        time.sleep(0.05)

# Each worker's executor reads a part of the source, so that each holds a part of every exchange. Were one of them late,
# Spark would give all tasks to the other, since a step runs where its tuples are.
def wait_for_both_executors():
    os.makedirs(both := FOLDER + "/executors", exist_ok=True)
    open(os.path.join(both, os.getcwd().replace("/", "_")), "w").close()
    while len(os.listdir(both)) < 2:
        time.sleep(0.05)

def split(record):
    journal.handle(record)
    if not seen:
        wait_for_both_executors()
    seen.add(record.partition)
    if len(seen) > 1 and os.path.exists(FOLDER + "/gate-of-second"):
        wait_at(FOLDER + "/gate")
    yield Emit(record.value.decode(), key=record.offset)

def work(given):
    with open(os.environ["ACKLINE_JOURNAL"] + "-of-step", "a") as file:
        file.write(f"{given.origins[0].partition} {given.origins[0].offset}\\n")
    if gate := json.loads(given.value).get("gate"):
        wait_at(gate)
    yield Emit({"n": given.key}, stream="items")
    yield Emit(None, key=given.key)

def end(given):
    pass

# A task of the acker runs no code of a user. This module is imported by the Python processes of the steps, and Spark
# gives the tasks of the acker to the same processes. The task that waits is the one with the records' events: the other
# may need nothing of its executor's part of the exchange, and the run then goes on without it.
finish = AckerRun.finish

def finish_at_gate(self):
    if self._block is not None and os.path.exists(FOLDER + "/gate-of-acker"):
        wait_at(FOLDER + "/gate")
    return finish(self)

AckerRun.finish = finish_at_gate
"""
)
PER_PARTITION = 3_000
"""Records of a partition: so many that a step runs in two tasks, one on each worker."""
LARGE = 10_000
"""Records of a partition that a task of its own reads."""


def tree(machines: Machines, name: str, guarantee: str, partitions: int = 2) -> Lane:
    """Returns a pipeline with two steps, of which the first has an output table."""
    module = f"handler_of_{name.replace('-', '_')}"
    steps = [
        {"name": "first", "handler": f"{module}:work", "input": "source", "group_by": "key"},
        {"name": "second", "handler": f"{module}:end", "input": "first", "group_by": "key"},
    ]
    settings = {
        "guarantee": guarantee,
        "handler": f"{module}:split",
        "steps": steps,
        "outputs": [{"from": "first.items", "table": "items"}],
    }
    return Lane(machines, name, TREES, settings, partitions=partitions)


def shuffle_lost(machines: Machines) -> tuple[Lane, Ended]:
    """Runs a pipeline with steps. While one worker is within the first step, kills the other one, which holds half of
    the tuples on their way: those that `split` has emitted, and those of its part of the step. Returns how it ended."""
    lane = tree(machines, "shuffle-lost", "at_least_once")
    lane.produce(PER_PARTITION, gate=100)
    run = lane.start()
    assert wait_until(lambda: lane.folder_at_gate() != "", SECONDS)
    idle = next(worker for worker in machines.cluster.workers if f"/{worker.name}/" not in lane.folder_at_gate())
    machines.cluster.remove(idle)
    lane.gate.touch()
    return lane, ended(run)


def executor_killed(machines: Machines, place: str, guarantee: str) -> tuple[Lane, Ended]:
    """Runs a pipeline with steps, and kills the executor whose task is in the first `step`, is in the `acker`, or reads
    the `second` part of the records, after the executor has finished another part. Returns how the run ended."""
    name = f"{place}-{guarantee.replace('_', '-')}"
    lane = tree(machines, name, guarantee, partitions=3 if place == "second" else 2)
    lane.produce(PER_PARTITION, gate=100 if place == "step" else None)
    if place != "step":
        (lane.shared / f"gate-of-{place}").touch()
    if place == "second":
        records = [wire.Write(b"{}")] * (LARGE - PER_PARTITION)
        wire.produce(machines.broker.bootstrap, lane.name, records, 2)
    run = lane.start()
    assert wait_until(lambda: lane.folder_at_gate() != "", SECONDS)
    machines.cluster.kill_executor(lane.folder_at_gate())
    lane.gate.touch()
    return lane, ended(run)


def calls_of_step(lane: Lane) -> Counter[str]:
    """How often the first step got a tuple of each record."""
    file = lane.shared / "journal-of-step"
    return Counter(file.read_text().splitlines() if file.exists() else [])


def rows_of(lane: Lane) -> Counter[tuple[int, int]]:
    """How often the output table has a row of each record."""
    columns = ["_partition", "_offset"]
    table = DeltaTable(str(lane.audit / lane.name / "outputs" / "items")).to_pyarrow_table(columns=columns)
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.release
def test_fault_7_a_shuffle_lost_between_steps_ends_the_run_and_the_turn_is_replayed_whole(
    two_workers: Machines,
) -> None:
    lane, run = shuffle_lost(two_workers)
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
def test_fault_7_an_executor_killed_behind_the_last_exchange_ends_the_run_and_the_turn_is_replayed_whole(
    two_workers: Machines,
) -> None:
    """The executor's part of the exchange is gone with it, for the files are its own. What it has staged for the output
    table is never published (I16)."""
    lane, run = executor_killed(two_workers, "acker", "at_least_once")
    assert run.status == 1, run.errors
    assert "the Spark job failed for now" in run.errors
    assert (lane.table("outcomes"), lane.committed()) == ([], None)
    assert set(lane.calls().values()) == {1}, "a part of the source ran again within the job"
    assert lane.violations() == []
    later = lane.run()
    assert (later.status, later.printed["outcomes"]) == (0, {"acked": 2 * PER_PARTITION}), later.errors
    assert set(lane.calls().values()) == {2}
    assert (len(rows_of(lane)), set(rows_of(lane).values())) == (2 * PER_PARTITION, {1})
    assert lane.violations("--settled") == []


@pytest.mark.release
def test_fault_7_a_part_of_the_source_that_is_lost_with_its_executor_is_made_again_and_leaves_no_row_twice(
    two_workers: Machines,
) -> None:
    """Spark makes a finished part again within the same stage, while another part of the stage still runs."""
    lane, run = executor_killed(two_workers, "second", "at_least_once")
    records = 2 * PER_PARTITION + LARGE
    assert (run.status, run.printed["outcomes"]) == (0, {"acked": records}), run.errors
    calls = Counter(partition for (partition, _), times in lane.calls().items() if times == 2)
    assert any(times == (LARGE if partition == 2 else PER_PARTITION) for partition, times in calls.items()), calls
    assert len(lane.calls()) == records
    assert (len(rows_of(lane)), set(rows_of(lane).values())) == (records, {1})
    assert lane.violations("--settled") == []


@pytest.mark.parametrize(
    "place", [pytest.param("second", marks=pytest.mark.release), pytest.param("step", marks=pytest.mark.deep)]
)
def test_i7_fault_7_an_executor_killed_in_a_stage_of_a_tree_repeats_no_call_at_most_once(
    two_workers: Machines, place: str
) -> None:
    lane, run = executor_killed(two_workers, place, "at_most_once")
    assert run.status == 1, run.errors
    assert lane.table("outcomes") == []
    assert lane.violations() == []
    later = lane.run(START + timedelta(hours=2))
    records = 2 * PER_PARTITION + (LARGE if place == "second" else 0)
    assert (later.status, later.printed["outcomes"]) == (0, {"lost": records}), later.errors
    assert set(lane.calls().values()) == {1}
    assert set(calls_of_step(lane).values()) <= {1}
    assert not (lane.audit / lane.name / "outputs").exists()
    assert lane.violations("--settled") == []
