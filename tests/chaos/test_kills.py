"""Each step is killed between any two of its writes, and run again (S52; faults 1, 3, 4, 23, 29, 31).

Its tables can't be written, or their checkpoints are torn or lost (fault 32): a run stops, or it goes on correctly.
Under at most once (S50, fault 37) a record may be lost, and no record is handled twice (I7).
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ackline.errors import AcklineError, TransientError
from ackline.lane import claim
from ackline.local.processes import wait_until
from ackline.outputs.turn import publish_settled
from tests.chaos import victims
from tests.e2e import wire
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
WRITES = {
    "plan": ["genesis", "plan"],
    "replay": ["outcomes"],
    "settle": ["letters", "decisions", "settlement", "commit"],
}
QUICK = {
    ("after", "plan"),
    ("after", "outcomes"),
    ("after", "decisions"),
    ("after", "settlement"),
    ("before", "commit"),
}
"""A kill for each kind of commit; tests/chaos/test_lines.py kills at every line, in memory."""
POINTS = [
    pytest.param(step, when, write, marks=() if (when, write) in QUICK else pytest.mark.deep)
    for step, writes in WRITES.items()
    for write in writes
    for when in ("before", "after")
]


def prepared(lab: MakeLab, step: str) -> Lab:
    """Returns a lab whose first turn has come to `step`."""
    lane = lab(retry={"max_retries": 0})
    lane.produce(*RECORDS)
    if step != "plan":
        lane.plan()
    if step == "settle":
        lane.replay()
    return lane


def test_undisturbed_one_run_settles_all(lab: MakeLab) -> None:
    """The result that the killed runs must reach."""
    lane = prepared(lab, "plan")
    lane.run()
    assert lane.rows() == UNDISTURBED
    lane.judge(settled=True)


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
    settled_before = (when, write) == ("after", "settlement") or write == "commit"
    assert {row["turn"] for row in lane.table("plans")} == ({1, 2} if settled_before else {1})
    assert len(lane.table("outcomes")) == len(UNDISTURBED)
    lane.judge(settled=True)
    assert (lane.run().calls, lane.rows()) == (0, UNDISTURBED)


def test_letters_of_a_killed_settle_are_sent_again_with_the_same_coordinates(lab: MakeLab) -> None:
    """Fault 29: the same letter, with the same key and headers, may be on the topic twice, and is there at least once
    (I6)."""
    lane = lab(retry={"max_retries": 0})
    records = [wire.Write(b'{"fail": -1}', b"a"), wire.Write(b"{}", b"b"), wire.Write(b'{"dead": true}', b"c")]
    wire.produce(lane.broker.bootstrap, lane.topic, records)
    lane.plan()
    lane.replay()
    victims.kill(lane, "settle", "letters", "after")
    lane.run()
    letters = [(letter.ackline_headers["offset"], letter.key, letter.value) for letter in lane.letters()]
    once = [("0", b"a", b'{"fail": -1}'), ("2", b"c", b'{"dead": true}')]
    assert sorted(letters) == sorted(once * 2)
    headers = [sorted(letter.ackline_headers.items()) for letter in lane.letters()]
    assert all(headers.count(of_letter) == 2 for of_letter in headers)


def test_s52_the_driver_is_killed_in_the_middle_of_a_batch(lab: MakeLab) -> None:
    """Fault 3: nothing is stored or committed, and the whole range is replayed. Data files without a log entry stay
    invisible (fault 31)."""
    lane = lab(handler="tests.chaos.handlers:slow")
    lane.produce_records(40)
    lane.plan()
    with victims.ended(victims.start(lane, "replay")) as victim:
        assert wait_until(lambda: len(lane.calls()) >= 3, victims.SECONDS), victim.poll()
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert lane.table("outcomes") == []
    assert lane.committed() is None
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert ([row.offset for row in lane.rows()], lane.outcomes()) == (list(range(40)), {"acked": 40})
    lane.judge(settled=True)


def test_data_files_that_no_log_entry_names_are_invisible(lab: MakeLab) -> None:
    """Fault 31: a copy of an outcome file under another name is neither read, settled nor shown."""
    lane = lab()
    lane.produce_records(5)
    lane.run()
    [file] = [path for path in Path(lane.tables, "outcomes").rglob("*.parquet") if "_delta_log" not in path.parts]
    file.with_name(f"orphan-{file.name}").write_bytes(file.read_bytes())
    lane.produce_records(2)
    lane.run()
    assert lane.outcomes() == {"acked": 7}
    assert "orphan" not in lane.ackline_process("audit", lane.name, "--json").stdout
    lane.judge(settled=True)


# ---- tables that can't be written, and checkpoints ------------------------------------------------------------------


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


def _error_of_run(lane: Lab) -> str:
    """Returns the error of a run; empty if it succeeds."""
    try:
        lane.run()
    except AcklineError as error:
        return str(error)
    return ""


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [pytest.param(Path.unlink, marks=pytest.mark.deep), _torn], ids=["lost", "torn"])
def test_fault_32_a_lost_or_torn_checkpoint_is_said_or_does_not_matter(
    lab: MakeLab, damage: Callable[[Path], None]
) -> None:
    """Damages the newest checkpoint of each of the three tables, and a pointer to it, which only other tools write."""
    lane = lab(retry={"initial_delay": "1h"})
    lane.produce_records(4, {1: {"fail": 1}})
    for _ in range(11):
        lane.run()
    assert (lane.new_offsets(), lane.committed(), lane.pending()) == ([0, 1, 2, 3], 1, [1])
    for name in ("_last_checkpoint", "*.checkpoint.parquet"):
        for table in ("plans", "outcomes", "settlements"):
            log = Path(lane.tables, table, "_delta_log")
            checkpoint = max(log.glob("*.checkpoint.parquet"))
            file = checkpoint if name.startswith("*") else log / name
            if file != checkpoint:
                file.write_text(json.dumps({"version": int(checkpoint.name[:20]), "size": 1}))
            whole = file.read_bytes()
            damage(file)
            error = _error_of_run(lane)
            assert not error or f"the table {table} at " in error
            assert (lane.new_offsets(), lane.committed()) == ([], 1), f"{table}/{file.name}"
            file.unlink(missing_ok=True)
            if file == checkpoint:
                file.write_bytes(whole)
    lane.advance_clock(3600)
    lane.run()  # ends a turn that a failed run may have left open
    lane.run()
    assert lane.rows() == [
        Row(0, 1, "acked"),
        Row(1, 1, "failed"),
        Row(1, 2, "acked"),
        Row(2, 1, "acked"),
        Row(3, 1, "acked"),
    ]
    assert lane.committed() == 4
    lane.judge(settled=True)


# ---- at most once ---------------------------------------------------------------------------------------------------


GRACE = 600


def assert_handled_once(lane: Lab) -> None:
    """I7, by the journal of all processes."""
    assert set(Counter(call.offset for call in lane.calls()).values()) <= {1}


@pytest.mark.parametrize(
    ("write", "lost"),
    [
        ("claim", False),
        pytest.param("commit", False, marks=pytest.mark.deep),
        pytest.param("start", True, marks=pytest.mark.deep),
    ],
)
def test_fault_37_killed_after_the_claim_the_range_is_handled_once_or_lost(
    lab: MakeLab, write: str, lost: bool
) -> None:
    """Before the start marker is stored no record is handed out, so the next run may handle the range."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", retry={"max_retries": 0})
    lane.produce_records(4, {1: {"fail": -1}})
    lane.plan()
    victims.kill(lane, "replay", write, "after")
    assert (lane.calls(), lane.committed()) == ([], None if write == "claim" else 4)
    lane.judge()
    if lost:
        with pytest.raises(TransientError, match="handed out by another process"):
            lane.run()
        lane.advance_clock(GRACE)
    lane.run()
    assert lane.rows() == (
        [Row(0, 0, "lost", 4)] if lost else sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "dropped")])
    )
    assert (lane.committed(), lane.letters()) == (4, [])
    assert_handled_once(lane)
    lane.judge(settled=True)


@pytest.mark.parametrize("gone", [2, 4], ids=["in part", "whole"])
def test_s50_a_claimed_range_that_is_gone_from_the_log_is_lost_whole_and_not_void(lab: MakeLab, gone: int) -> None:
    """The log loses its records after the claim has moved the group: none is handed out, and none is expired."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s")
    lane.produce_records(4)
    plan = lane.plan()
    with lane.adapters() as adapters:
        claim.claim(adapters, plan, lane.settlement(), publish_settled)
    assert lane.committed() == 4
    lane.expire(gone)
    assert wire.log_start(lane.broker.bootstrap, lane.topic) == gone
    lane.run()
    assert (lane.rows(), lane.calls()) == ([Row(0, 0, "lost", 4)], [])
    assert (lane.settlement().kind, lane.committed()) == ("run", 4)
    lane.produce_records(1)
    lane.run()
    assert lane.rows() == [Row(0, 0, "lost", 4), Row(4, 1, "acked")]
    lane.judge(settled=True)


@pytest.mark.deep
def test_fault_37_a_batch_whose_run_was_killed_is_repeated_by_no_later_run(lab: MakeLab) -> None:
    """The group moves before the first call and never moves back; later records are handled as usual."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", handler="tests.chaos.handlers:slow")
    lane.produce_records(40)
    with victims.ended(victims.start(lane, "run")) as victim:
        assert wait_until(lambda: len(lane.calls()) >= 3, victims.SECONDS), victim.poll()
        assert lane.committed() == 40
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert 3 <= len(lane.calls()) < 40
    lane.judge()
    for _ in range(2):
        with pytest.raises(TransientError):
            lane.run()
    lane.produce_records(2)
    lane.advance_clock(GRACE)
    lane.run()
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert lane.rows() == [Row(0, 0, "lost", 40), *all_of("acked", [40, 41])]
    offset, metadata = lane.group_commit() or (None, "{}")
    assert (offset, json.loads(metadata).get("n")) == (42, 2)
    assert_handled_once(lane)
    lane.judge(settled=True)
