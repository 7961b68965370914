"""Each step killed between any two of its writes, and run again (S52; faults 1, 3, 4, 23, 29, 31)."""

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
POINTS = [(step, when, write) for step, writes in WRITES.items() for write in writes for when in ("before", "after")]


def prepared(lab: MakeLab, step: str) -> Lab:
    """A lab about to take `step` in its first turn."""
    one = lab(retry={"max_retries": 0})
    one.produce(*RECORDS)
    if step != "plan":
        one.plan()
    if step == "settle":
        one.replay()
    return one


def test_undisturbed_one_run_settles_all(lab: MakeLab) -> None:
    """The twin of those that are killed."""
    one = prepared(lab, "plan")
    one.run()
    assert one.rows() == UNDISTURBED
    one.judge(settled=True)


@pytest.mark.parametrize(("step", "when", "write"), POINTS)
def test_killed_at_a_write_and_run_again_the_result_is_that_of_the_twin(
    lab: MakeLab, step: str, when: str, write: str
) -> None:
    """Faults 1, 3, 4, 23, 29; I9, I11. What the kill left behind is judged too, before anybody mends it."""
    one = prepared(lab, step)
    victims.kill(one, step, write, when)
    if (when, write) == ("before", "outcomes"):  # fault 31: data files are there, no log entry names them
        assert list(Path(one.audit, "outcomes").glob("pipeline=*/**/*.parquet"))
        assert one.table("outcomes") == []
    one.judge()
    one.run()
    assert one.rows() == UNDISTURBED
    settled_before = (when, write) == ("after", "settlement") or write == "commit"
    assert {row["turn"] for row in one.table("plans")} == ({1, 2} if settled_before else {1})
    assert len(one.table("outcomes")) == len(UNDISTURBED)
    one.judge(settled=True)
    assert one.run().calls == 0
    assert one.rows() == UNDISTURBED


def test_letters_of_a_killed_settle_are_sent_again_with_the_same_coordinates(lab: MakeLab) -> None:
    """Fault 29: the same letter, of the same key, may be there twice, and never not at all (I6)."""
    one = lab(retry={"max_retries": 0})
    records = [wire.Write(b'{"fail": -1}', b"a"), wire.Write(b"{}", b"b"), wire.Write(b'{"dead": true}', b"c")]
    wire.produce(one.broker.bootstrap, one.topic, records)
    one.plan()
    one.replay()
    victims.kill(one, "settle", "letters", "after")
    one.run()
    letters = [(letter.said()["offset"], letter.key, letter.value) for letter in one.letters()]
    once = [("0", b"a", b'{"fail": -1}'), ("2", b"c", b'{"dead": true}')]
    assert sorted(letters) == sorted(once * 2)


def test_s52_the_driver_is_killed_in_the_middle_of_a_batch(lab: MakeLab) -> None:
    """Fault 3: no row, no commit; the range is replayed whole. Files that no log entry names stay invisible (31)."""
    one = lab(handler="tests.chaos.handlers:slow")
    one.records(40)
    one.plan()
    with victims.ended(victims.start(one, "replay")) as victim:
        assert wait_until(lambda: len(one.calls()) >= 3, victims.SECONDS), victim.poll()
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert one.table("outcomes") == []
    assert one.committed() is None
    one.define(handler="ackline.testing.journal:handle")
    one.run()
    assert [row.offset for row in one.rows()] == list(range(40))
    assert one.outcomes() == {"acked": 40}
    one.judge(settled=True)


def test_data_files_that_no_log_entry_names_are_invisible(lab: MakeLab) -> None:
    """Fault 31: a copy of a file of outcomes under another name is neither read, settled nor shown."""
    one = lab()
    one.records(5)
    one.run()
    [file] = [path for path in Path(one.audit, "outcomes").rglob("*.parquet") if "_delta_log" not in path.parts]
    file.with_name(f"orphan-{file.name}").write_bytes(file.read_bytes())
    one.records(2)
    one.run()
    assert one.outcomes() == {"acked": 7}
    assert "orphan" not in one.command("audit", one.name, "--json").stdout
    one.judge(settled=True)
