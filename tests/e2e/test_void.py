"""`ackline void` closes a turn that can't be carried out; afterwards the pipeline goes on (I2, I7)."""

import json
import signal
from dataclasses import replace
from typing import Any

import pytest

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
    closed = void(lane, "--lane", BACKFILL, "--yes")
    assert (closed["lane"], closed["consequence"], closed["pause"]) == (BACKFILL, "lost" if once else "void", False)
    newest = backfill.newest()
    assert newest is not None
    assert (newest.turn.n, newest.kind, newest.reason) == (1, "run" if once else "void", "kills the driver")
    assert (kinds(lane), lane.committed()) == (["genesis"], None)
    assert lane.ackline("void", lane.name, "--lane", BACKFILL, "--reason", "a test", "--yes").returncode == 2
    assert lane.ackline_json("run", lane.name)["outcomes"] == {"acked": 4}
    assert (lane.committed(), lane.settled().paused) == (4, False)
