"""A Python process of Spark is killed in the middle of a task (fault 7). Spark may try each task four times.

The handlers are those of `tests.e2e.killed_handlers`. The independent checker judges each lane, with the journal of the
handler's calls.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import killed_handlers
from tests.e2e.commands import Finished
from tests.e2e.fixtures import MakeLab
from tests.e2e.killed_handlers import AT, KEYS, KILLS
from tests.e2e.lab import Lab, Row
from tests.e2e.shop import rows_of, staged

HANDLERS = killed_handlers.__name__
PER_PARTITION = 4_500
"""Records of a partition: so many that their trees are two blocks, and that each stage has two tasks."""
STEPS = [
    {"name": "first", "handler": f"{HANDLERS}:first", "input": "source", "group_by": "key"},
    {"name": "meet", "handler": f"{HANDLERS}:meet", "input": "first", "group_by": "key", "join": True},
]
OUTPUTS = [
    {"from": "source.seen", "table": "seen"},
    {"from": "first.items", "table": "items"},
    {"from": "meet", "table": "sums"},
]
TREE_PLACES = ("source", "end of source", "step", "end of step", "acker", "end of acker")


def tree(lab: MakeLab, **settings: object) -> Lab:
    return lab(partitions=2, handler=f"{HANDLERS}:split", steps=STEPS, outputs=OUTPUTS, dead_letter="none", **settings)


def run_killed(lane: Lab, *places: str, records: int = PER_PARTITION) -> Finished:
    """Runs the pipeline over new records of all partitions. Its Python workers are killed at these places."""
    for partition in range(2):
        lane.produce_records(records, partition=partition)
    kills = lane.folder / "kills"
    kills.mkdir()
    for place in places:
        (kills / place).touch()
    environment = {"ACKLINE_SPARK_MASTER": "local[2,4]", KILLS: str(kills)}
    done = lane.ackline_process("run", lane.name, "--now", lane.now.isoformat(), env=environment)
    left = [path.name for path in kills.iterdir()]
    assert not left, f"no task came to {left}: {done.stderr[-3000:]}"
    return done


def all_acked_once(lane: Lab, records: int = PER_PARTITION) -> bool:
    rows = [lane.rows(partition) for partition in range(2)]
    return rows == [[Row(offset, 1, "acked") for offset in range(records)]] * 2


def test_fault_7_the_task_of_a_killed_python_worker_is_done_again_and_leaves_no_row_twice(lab: MakeLab) -> None:
    lane = lab(partitions=2, handler=f"{HANDLERS}:handle", dead_letter="none")
    done = run_killed(lane, "source", "end of source", records=1_000)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all_acked_once(lane, 1_000)
    calls = Counter((call.partition, call.offset) for call in lane.calls())
    assert len(calls) == 2_000
    assert calls[0, AT] > 1, "the killed task's call, and that of the task that replaced it"
    lane.judge(settled=True)


def test_s50_fault_7_a_task_that_may_have_handled_its_records_is_not_done_again(lab: MakeLab) -> None:
    """At most once. What the killed worker had is lost after the grace period, and no record is handed out again."""
    lane = lab(partitions=2, handler=f"{HANDLERS}:handle", dead_letter="none", guarantee="at_most_once")
    is_lost_after(lane, run_killed(lane, "source", records=1_000), 1_000)


def is_lost_after(lane: Lab, done: Finished, records: int = PER_PARTITION) -> None:
    """Checks that a run has failed because Spark tried a task again, and that its whole turn is lost."""
    assert done.returncode == 1, done.stderr[-3000:]
    assert "Spark tried a task again under at_most_once" in done.stderr
    lane.judge()
    lane.advance_clock(7_200)
    assert lane.run().calls == 0
    assert [lane.rows(partition) for partition in range(2)] == [[Row(0, 0, "lost", records)]] * 2
    assert set(Counter((call.partition, call.offset) for call in lane.calls()).values()) == {1}
    lane.judge(settled=True)


@pytest.mark.deep
def test_i16_fault_7_killed_in_any_stage_of_a_tree_each_record_is_acked_once_and_has_each_output_row_once(
    lab: MakeLab,
) -> None:
    """One process after the other is killed in all stages: in mid-call, and when it has written its files."""
    lane = tree(lab)
    done = run_killed(lane, *TREE_PLACES)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all_acked_once(lane)
    offsets = sorted([*range(PER_PARTITION)] * 2)
    assert [row["_offset"] for row in rows_of(lane, "seen")] == offsets
    assert [row["_offset"] for row in rows_of(lane, "items")] == offsets
    sums = rows_of(lane, "sums")
    assert len(sums) == len({row["key"] for row in sums}) == 2 * KEYS
    assert sum(row["tuples"] for row in sums) == 2 * PER_PARTITION
    assert staged(lane) == []
    lane.judge(settled=True)


@pytest.mark.deep
@pytest.mark.parametrize("place", ["source", "step", "acker"])
def test_i7_fault_7_killed_in_any_stage_of_a_tree_no_call_is_made_twice_at_most_once(lab: MakeLab, place: str) -> None:
    lane = tree(lab, guarantee="at_most_once")
    of_step = Path(f"{lane.journal}-of-step")
    is_lost_after(lane, run_killed(lane, place))
    steps = of_step.read_text().splitlines() if of_step.exists() else []
    assert set(Counter(line for line in steps if line.split()[0] == lane.topic).values()) <= {1}
    assert not (Path(lane.audit) / lane.name / "outputs").exists()
    lane.produce_records(1)
    lane.run()
    for table in ("seen", "items", "sums"):
        assert [row["_offset"] for row in rows_of(lane, table)] == [PER_PARTITION], "no row of the lost turn"
    assert staged(lane) == []
