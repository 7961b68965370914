"""Each step is killed between any two of its writes, and run again (S52; faults 1, 3, 4, 23, 31).

Its tables can't be written (fault 32): a run stops, and the next one goes on.
Under at most once (S50, fault 37) a record may be lost, and no record is handled twice (I7).
"""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from ackline.errors import TransientError
from ackline.local.processes import wait_until
from tests.chaos import victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Value, all_of

RECORDS: list[Value] = [{}, {"fail": -1}, {"skip": True}, {"dead": True}, None, {}]
UNDISTURBED = [
    Row(0, 1, "acked"),
    Row(1, 0, "dead"),
    Row(1, 1, "failed"),
    Row(2, 1, "skipped"),
    Row(3, 0, "dead"),
    Row(3, 1, "failed"),
    Row(4, 1, "skipped"),
    Row(5, 1, "acked"),
]
QUICK = [("plan", "after", "plan"), ("replay", "after", "outcomes"), ("settle", "before", "settlement"),
         ("settle", "before", "commit")]  # fmt: skip
"""A kill for each kind of commit; tests/chaos/test_lines.py kills at every line, in memory."""
POINTS = [
    *QUICK,
    *(
        pytest.param(*point, marks=pytest.mark.deep)
        for point in [("plan", "before", "genesis"), ("plan", "before", "plan"), ("replay", "before", "outcomes"),
                      ("settle", "before", "letters"), ("settle", "before", "decisions"), ("settle", "after", "commit")]
    ),
]  # fmt: skip
"""Before each write, and after the last one of a step: nothing happens between a write and the next."""


def prepared(lab: MakeLab, step: str) -> Lab:
    """Returns a lab whose first turn has come to `step`."""
    lane = lab(retry={"max_retries": 0})
    lane.produce(*RECORDS)
    if step != "plan":
        lane.plan()
    if step == "settle":
        lane.replay()
    return lane


@pytest.mark.parametrize(("step", "when", "write"), POINTS)
def test_killed_at_a_write_and_run_again_the_result_is_that_of_the_twin(
    lab: MakeLab, step: str, when: str, write: str
) -> None:
    """Faults 1, 3, 4, 23, 29; I9, I11. The checker also judges what the kill has left, before the next run."""
    lane = prepared(lab, step)
    victims.kill(lane, step, write, when)
    if (when, write) == ("before", "outcomes"):  # fault 31: no log entry names the data files
        assert list(Path(lane.tables, "outcomes").glob("plan_date=*/*.parquet"))
        assert lane.table("outcomes") == []
    lane.judge()
    lane.run()
    assert lane.rows() == UNDISTURBED
    assert {row["turn"] for row in lane.table("plans")} == ({1, 2} if write == "commit" else {1})
    assert len(lane.table("outcomes")) == len(UNDISTURBED)
    lane.judge(settled=True)
    assert (lane.run().calls, lane.rows()) == (0, UNDISTURBED)


def test_s52_the_driver_is_killed_in_the_middle_of_a_batch(lab: MakeLab) -> None:
    """Fault 3: nothing is stored or committed, and the whole range is replayed. Data files without a log entry stay
    invisible (fault 31)."""
    lane = lab(handler="tests.chaos.handlers:slow")
    lane.produce_records(40)
    lane.plan()
    with victims.ended(victims.start(lane, "replay")) as victim:
        assert wait_until(lambda: len(lane.calls()) >= 3, victims.SECONDS), victim.returncode
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert lane.table("outcomes") == []
    assert lane.committed() is None
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert ([row.offset for row in lane.rows()], lane.outcomes()) == (list(range(40)), {"acked": 40})
    lane.judge(settled=True)


# ---- tables that can't be written ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", [pytest.param("plan", marks=pytest.mark.deep), pytest.param("replay", marks=pytest.mark.deep), "settle"]
)
def test_fault_32_a_full_disk_stops_the_step_and_loses_nothing(lab: MakeLab, step: str) -> None:
    """No file of the process may be larger than 200 bytes, so neither data files nor log entries can be written."""
    lane = prepared(lab, step)
    tables = {name: lane.table(name) for name in ("plans", "outcomes", "settlements")}
    with victims.ended(victims.start(lane, step, largest=200)) as victim:
        _, errors = victim.communicate(timeout=victims.SECONDS)
    assert victim.returncode == 1, errors
    assert "FatalError: the table " in errors
    assert "\x1b" not in errors
    assert "Traceback" not in errors
    assert {name: lane.table(name) for name in tables} == tables
    assert lane.committed() is None
    lane.judge()
    lane.run()
    assert lane.rows() == UNDISTURBED
    lane.judge(settled=True)


# ---- at most once ---------------------------------------------------------------------------------------------------


def test_fault_37_killed_after_the_claim_the_range_is_handled_once(lab: MakeLab) -> None:
    """Before the start marker is stored no record is handed out, so the next run may handle the range."""
    lane = lab(guarantee="at_most_once", retry={"max_retries": 0})
    lane.produce_records(4, {1: {"fail": -1}})
    lane.plan()
    victims.kill(lane, "replay", "claim", "after")
    assert (lane.calls(), lane.committed()) == ([], None)
    lane.judge()
    lane.run()
    assert lane.rows() == sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "dropped")])
    assert (lane.committed(), lane.letters(), lane.new_offsets()) == (4, [], [0, 1, 2, 3])
    lane.judge(settled=True)


@pytest.mark.deep
def test_fault_37_a_batch_whose_run_was_killed_is_repeated_by_no_later_run(lab: MakeLab) -> None:
    """The group moves before the first call and never moves back; later records are handled as usual."""
    lane = lab(guarantee="at_most_once", lost_after="10m", handler="tests.chaos.handlers:slow")
    lane.produce_records(40)
    with victims.ended(victims.start(lane, "run")) as victim:
        assert wait_until(lambda: len(lane.calls()) >= 3, victims.SECONDS), victim.returncode
        assert lane.committed() == 40
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert 3 <= len(lane.calls()) < 40
    lane.judge()
    for _ in range(2):
        with pytest.raises(TransientError):
            lane.run()
    lane.produce_records(2)
    lane.advance_clock(600)
    lane.run()
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert lane.rows() == [Row(0, 0, "lost", 40), *all_of("acked", [40, 41])]
    offset, metadata = lane.group_commit() or (None, "{}")
    assert (offset, json.loads(metadata).get("n")) == (42, 2)
    assert set(Counter(call.offset for call in lane.calls()).values()) == {1}
    lane.judge(settled=True)
