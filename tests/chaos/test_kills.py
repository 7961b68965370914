"""Each step is killed between any two of its writes, and run again (S52; faults 1, 3, 4, 23, 29, 31)."""

import os
import signal
from pathlib import Path

import pytest

from ackline.local.processes import wait_until
from tests.chaos import victims
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Value

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
    assert lane.run().calls == 0
    assert lane.rows() == UNDISTURBED


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
    assert [row.offset for row in lane.rows()] == list(range(40))
    assert lane.outcomes() == {"acked": 40}
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
