"""`ackline void` closes a turn that can't be carried out; afterwards the pipeline goes on (I2, I7)."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from deltalake import DeltaTable

from ackline.ledger.turns import LIVE
from ackline.tables.store import LedgerStore
from tests.e2e.commands import ROOT
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

KILLER = "tests.e2e.handlers:kills_the_driver"
HEALTHY = "tests.support.journal:handle"
GUARANTEES = ("at_least_once", "at_most_once")
BACKFILL = "backfill-a"


def run_killed(lane: Lab) -> None:
    killed = lane.ackline_process("run", lane.name, env={"PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def void(lane: Lab, *options: str) -> dict[str, Any]:
    done = lane.ackline("void", lane.name, "--reason", "kills the driver", "--json", *options)
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return body


def kinds(lane: Lab) -> list[str]:
    return [row["kind"] for row in sorted(lane.table("settlements"), key=lambda row: row["turn"])]


def test_i2_a_turn_whose_handler_kills_the_driver_is_voided_and_planned_again(lab: MakeLab) -> None:
    """The partitions that it reads are paused by the same settlement, until the handler is mended."""
    lane = lab(handler=KILLER)
    lane.produce_records(4, {2: {"kill": True}})
    run_killed(lane)
    refused = lane.ackline("skip", lane.name, "--to", "3", "--reason", "a test", "--yes")
    assert refused.returncode == 1
    assert f"`ackline void {lane.name} --reason …`" in refused.stderr

    closed = void(lane, "--yes", "--pause")
    assert (closed["turn"], closed["consequence"], closed["pause"], closed["dry_run"]) == (1, "void", True, False)
    assert closed["partitions"] == [{"topic": lane.topic, "partition": 0, "start": 0, "end": 4}]
    assert closed["not_committed"] is None
    assert (kinds(lane), lane.settled().paused, lane.committed()) == (["genesis", "void"], True, 0)
    assert [row["reason"] for row in lane.table("settlements") if row["kind"] == "void"] == ["kills the driver"]

    lane.configure(handler=HEALTHY)
    lane.new_calls()
    assert lane.ackline_json("run", lane.name)["records"] == 0
    assert lane.ackline("resume", lane.name, "--yes").returncode == 0
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 4}
    assert lane.rows() == all_of("acked", range(4))
    lane.judge(settled=True)


@pytest.mark.deep
def test_i7_at_most_once_a_turn_that_was_handed_out_is_lost_and_no_record_is_handled_twice(lab: MakeLab) -> None:
    lane = lab(handler=KILLER, guarantee="at_most_once", dead_letter="none", max_records_per_run=4)
    lane.produce_records(6, {2: {"kill": True}})
    run_killed(lane)
    assert lane.committed() == 4, "the claim"
    waits = lane.ackline("run", lane.name)
    assert waits.returncode == 1
    assert f"`ackline void {lane.name} --reason …`" in waits.stderr

    assert void(lane, "--yes")["consequence"] == "lost"
    assert (lane.rows(), lane.committed()) == ([Row(0, 0, "lost", 4)], 4)
    lane.configure(handler=HEALTHY)
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 2}
    offsets = [call.offset for call in lane.calls()]
    assert len(offsets) == len(set(offsets))
    lane.judge(settled=True)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_i7_at_most_once_a_reported_turn_whose_outcomes_lost_a_file_is_lost_and_the_checker_agrees(
    damage: str, lab: MakeLab
) -> None:
    lane = lab(guarantee="at_most_once", dead_letter="none", max_records_per_run=4)
    lane.produce_records(6, {2: {"fail": -1}})
    lane.plan()
    lane.replay()
    assert sorted(lane.new_offsets()) == [0, 1, 2, 3]
    file = Path(unquote(urlsplit(min(DeltaTable(f"{lane.tables}/outcomes").file_uris())).path))
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])

    shown = lane.ackline("void", lane.name, "--reason", "a test", "--dry-run")
    assert "outcomes of acked records too" in shown.stdout
    assert void(lane, "--yes")["consequence"] == "lost"
    assert (lane.rows(), lane.committed()) == ([Row(0, 0, "lost", 4)], 4)
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 2}
    assert sorted(lane.new_offsets()) == [4, 5]
    assert lane.ackline("maintain").returncode == 0
    assert lane.rows() == [Row(0, 0, "lost", 4), *all_of("acked", (4, 5))]
    lane.judge(settled=True)


def test_i7_at_most_once_a_turn_that_was_not_claimed_is_void_and_handled_once(lab: MakeLab) -> None:
    lane = lab(guarantee="at_most_once", dead_letter="none")
    lane.produce_records(4)
    lane.plan()
    assert void(lane, "--yes")["consequence"] == "void"
    assert lane.committed() == 0
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 4}
    assert sorted(lane.new_offsets()) == [0, 1, 2, 3]
    lane.judge(settled=True)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_turn_of_a_backfill_lane_is_closed_and_the_live_lane_and_the_group_are_left_alone(
    guarantee: str, lab: MakeLab
) -> None:
    lane = lab(guarantee=guarantee, dead_letter="none")
    lane.produce_records(4)
    planned = lane.plan()
    live, backfill = (LedgerStore(lane.audit, lane.name, name) for name in (LIVE, BACKFILL))
    genesis = live.newest()
    assert genesis is not None
    backfill.store_settlement(replace(genesis, turn=genesis.turn._replace(lane=BACKFILL)))
    plan = replace(planned, turn=planned.turn._replace(lane=BACKFILL))
    assert backfill.store_plan(plan)
    once = guarantee == "at_most_once"
    if once:
        assert backfill.store_claim(plan)
    closed = void(lane, "--lane", BACKFILL, "--pause", "--yes")
    assert (closed["lane"], closed["consequence"], closed["pause"]) == (BACKFILL, "lost" if once else "void", True)
    newest = backfill.newest()
    assert newest is not None
    assert (newest.turn.n, newest.kind, newest.reason) == (1, "run" if once else "void", "kills the driver")
    assert [settled.paused for settled in newest.partitions.values()] == [True]
    assert (kinds(lane), lane.committed()) == (["genesis"], None)
    assert lane.ackline("void", lane.name, "--lane", BACKFILL, "--reason", "a test", "--yes").returncode == 2
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 4}
    assert (lane.committed(), lane.settled().paused) == (4, False)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_it_is_a_dry_run_until_it_is_confirmed(guarantee: str, lab: MakeLab) -> None:
    lane = lab(guarantee=guarantee, dead_letter="none")
    nothing = lane.ackline("void", lane.name, "--reason", "a test", "--yes")
    assert (nothing.returncode, "no open turn in its lane live" in nothing.stderr) == (2, True)
    lane.produce_records(4)
    lane.plan()
    before = lane.table("settlements"), lane.table("plans")

    for options in (["--dry-run"], ["--dry-run", "--yes"]):
        dry = void(lane, *options)
        assert (dry["dry_run"], dry["turn"], dry["consequence"]) == (True, 1, "void")
    shown = lane.ackline("void", lane.name, "--reason", "a test", "--dry-run")
    assert f"{lane.topic}[0] [0, 4)" in shown.stdout
    assert "its offsets are planned again" in shown.stdout
    unasked = lane.ackline_process("void", lane.name, "--reason", "a test")
    assert (unasked.returncode, "give --yes or --dry-run" in unasked.stderr) == (2, True)
    for reason in ([], ["--reason", " "]):
        assert lane.ackline("void", lane.name, "--yes", *reason).returncode == 2
    elsewhere = lane.ackline("void", lane.name, "--reason", "a test", "--yes", "--lane", "backfill-1")
    assert (elsewhere.returncode, "no open turn in its lane backfill-1" in elsewhere.stderr) == (2, True)
    assert (lane.table("settlements"), lane.table("plans")) == before


def test_at_a_terminal_it_asks_and_no_changes_nothing(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lab()
    lane.produce_records(2)
    lane.plan()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter([False, True])
    monkeypatch.setattr("ackline.cli.options.typer.confirm", lambda *_, **__: next(answers))
    assert "Nothing was changed" in lane.ackline("void", lane.name, "--reason", "a test").stdout
    assert kinds(lane) == ["genesis"]
    assert "is void" in lane.ackline("void", lane.name, "--reason", "a test").stdout
    assert kinds(lane) == ["genesis", "void"]


def test_a_handler_that_does_not_import_does_not_keep_a_turn_open(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(2)
    lane.plan()
    lane.configure(handler="no.such.module:handle")
    assert lane.ackline("run", lane.name).returncode == 2
    assert void(lane, "--yes")["consequence"] == "void"
