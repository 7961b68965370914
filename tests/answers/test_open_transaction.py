"""Behind an open transaction nothing is up to date: each answer shows what it holds back, as a lag of its own (I20)."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from ackline.actions.objects import run_object
from ackline.actions.void import void_open_turn
from ackline.answers.explain import explain_partitions, explain_record
from ackline.answers.overview import summary_of
from ackline.answers.status import PartitionStatus, status, status_and_missing
from ackline.backfill.run import plan_backfill
from ackline.ledger.planning import OPEN_TRANSACTION
from ackline.ledger.states import State
from ackline.ledger.turns import TurnKind
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import NOON, OK, TP, MemoryBackfill, MemoryLane

OPENED = NOON + timedelta(minutes=1)


@pytest.fixture
def lane() -> MemoryLane:
    """Four records, all settled, and a transaction of one record that is open before five others since OPENED."""
    lane = MemoryLane(*[OK] * 4).after_run()
    lane.world.now = OPENED
    lane.log().append(OK, OPENED, open_=True)
    lane.produce(*[OK] * 5)
    lane.world.now += timedelta(minutes=9)
    return lane


def status_of(lane: MemoryLane) -> PartitionStatus:
    (found,) = status(lane.adapters())
    return found


def held(found: PartitionStatus) -> tuple[object, ...]:
    return (
        found.open_transaction and found.open_transaction.since,
        found.open_transaction and found.open_transaction.records,
    )


def test_i20_the_status_has_the_high_watermark_and_a_lag_of_its_own_and_is_not_up_to_date(lane: MemoryLane) -> None:
    lane.run()
    found = status_of(lane)
    assert (found.log_end, found.high_watermark, found.lag, *held(found)) == (4, 10, 0, OPENED, 6)
    assert (found.state, found.lag_seconds) == (State.WAITING, 540.0)
    summary = summary_of("lane", [found], ())
    assert (summary.state, summary.lag) == (State.WAITING, 0)
    assert summary.problem == "orders[0]: a transaction is open at offset 4: it holds back 6 offsets"
    assert summary.dump()["open_transaction"] == {"since": OPENED.isoformat(), "records": 6}


def test_i20_a_transaction_that_stays_open_is_stuck_like_any_other_floor(lane: MemoryLane) -> None:
    lane.run()
    lane.world.now += timedelta(hours=1, minutes=59)
    lane.run()
    assert status_of(lane).state is State.WAITING
    lane.world.now += timedelta(minutes=1)
    assert status_of(lane).state is State.STUCK
    lane.log().end_transaction(commit=False)
    assert held(status_of(lane)) == (None, None)
    lane.run()
    found = status_of(lane)
    assert (found.state, found.high_watermark, found.floor) == (State.UP_TO_DATE, 11, 11)


def test_a_run_stores_what_it_could_not_read_and_says_why_it_read_nothing(lane: MemoryLane) -> None:
    ran = lane.run()
    assert ran.plans[-1].partitions[TP].why == OPEN_TRANSACTION
    (partition,) = run_object(ran, lane.adapters().store).dump()["partitions"]
    assert (partition["lag"], partition["high_watermark"]) == (0, 10)
    assert partition["open_transaction"] == {"since": None, "records": 6}
    stored = lane.metrics()
    assert (stored["open_transaction"], stored["open_transaction_since"]) == (6, OPENED.timestamp())
    assert stored["floor_since"] == lane.world.now.timestamp()
    away, _ = status_and_missing(lane.adapters(), reads_broker=False)
    assert away[0].state is State.UNKNOWN
    lane.perform(TurnKind.PAUSE)
    assert (lane.metrics()["open_transaction"], lane.metrics()["lag"]) == (6, 0), "an action reads no log"


def test_explain_names_the_transaction_of_a_partition_and_of_an_offset(lane: MemoryLane) -> None:
    (found,) = explain_partitions(lane.adapters())
    assert found.sentence.startswith("Every record of orders[0] that can be read is settled, up to 4; the log goes on.")
    transaction = "A transaction is open at offset 4 since 2026-03-01 12:01:00 UTC (9 minutes ago): it holds back 6"
    assert f"{transaction} offsets, up to the high watermark 10" in found.sentence
    assert "abort" in found.sentence
    hidden, unwritten = (explain_record(lane.adapters(), TP, offset).sentence for offset in (9, 10))
    assert "is not readable yet. A transaction is open at offset 4" in hidden
    assert "is not written yet: the log ends at 10." in unwritten


def test_records_that_can_be_read_are_worked_on_beside_a_transaction(lane: MemoryLane) -> None:
    other = MemoryLane(*[OK] * 2)
    other.log().append(OK, NOON, open_=True)
    assert (status_of(other).state, status_of(other).lag) == (State.WORKING, 2)


def test_s43_a_lane_that_has_read_into_the_transaction_is_not_truncated() -> None:
    lane = MemoryLane(*[OK] * 4, kafka={"isolation": "read_uncommitted"})
    lane.log().append(OK, NOON, open_=True)
    lane.run()
    lane.produce(OK)
    lane.settings["kafka"] = {"isolation": "read_committed"}
    found = status_of(lane)
    assert (found.why, found.lag, found.log_end, found.high_watermark, *held(found)) == (None, 0, 5, 6, NOON, 1)


def test_no_turn_of_a_backfill_stores_what_is_no_part_of_its_choice(lane: MemoryLane) -> None:
    backfill = MemoryBackfill(lane, "b", "orders:0:0-4")
    backfill.begin()
    for void in (True, False):
        plan = plan_backfill(backfill.adapters()).plan
        assert plan is not None
        assert plan.partitions[TP].log.open_transaction == 6
        if void:
            void_open_turn(backfill.adapters(), plan.turn, "why")
        else:
            backfill.run()
        assert not [name for name in backfill.newest().partitions[TP].metrics or () if "transaction" in name]


def test_the_commands_run_plan_and_doctor_name_it(
    lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    checks = json.loads(ackline("doctor", "lane", "--json").output)
    (check,) = [each for each in checks if each["check"] == "open transaction"]
    assert (check["ok"], "warning" in check["detail"], "holds back 6 offsets" in check["detail"]) == (True, False, True)
    lane.world.now += timedelta(minutes=6)
    assert "warning: Every record" in ackline("doctor", "lane").output
    for command in ("plan", "run"):
        output = ackline(command, "lane").output
        assert "Not readable: 6 offsets behind open transactions, in orders[0] from 4 on" in output, command
    shown = ackline("status", "lane").output
    assert ("A transaction is open at offset 4" in shown, "waiting" in shown) == (True, True)
