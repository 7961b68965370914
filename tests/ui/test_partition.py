"""The state of a partition and of a lane as the page judges it, from the tables alone."""

import shutil
from collections import OrderedDict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ackline.audit.history import recent_turns
from ackline.delta.log import DeltaLog
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.copies import Copies, CopyLog, CopyRun
from ackline.ledger.explain import explain_partition
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.pending import Pending, PendingKind
from ackline.ledger.planning import NO_LEADER, OPEN_TRANSACTION, PAUSED
from ackline.ledger.states import State
from ackline.ledger.turns import LIVE, SettledPartition
from ackline.tables.lease import Holder, Lease, StoppedRun
from ackline.ui import readings, stored
from ackline.ui.charts import partition_picture
from ackline.ui.partition import PartitionReading, worst_first
from ackline.ui.readings import LaneReading
from tests.support.memory_lane import OK, MemoryLane
from tests.ui.stored_lanes import StoredPartition, write_lane

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
COPIES = Copies.of([CopyRun(7, 8, CopyLog("rescue", "id-r", 0), 3)])
TP, TP1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def reading(
    *, floor: int = 50, complete_to: int = 50, log_start: int = 0, log_end: int = 50, earlier: int | None = 0,
    pending: Pending | None = None, why: str | None = None, counts: dict[str, int] | None = None, old_floor: int = 0,
) -> PartitionReading:  # fmt: skip
    """Returns a partition an hour after the earlier turn; `pending` is the state of the offset at the floor."""
    runs = () if pending is None else (ValuedRange(floor, floor + 1, pending),)
    state = PartitionState(complete_to, runs)
    metrics = {"log_start": float(log_start), "log_end": float(log_end), "lag": float(max(0, log_end - floor))}
    settled = SettledPartition("id", old_floor, state, counts or {}, metrics=metrics)
    return PartitionReading(TP, settled, why, earlier, timedelta(hours=1), 5, NOON, NOON)


def retry(due: datetime) -> Pending:
    return Pending(PendingKind.RETRY, 2, due, "HTTPError")


def test_i20_a_partition_is_up_to_date_only_if_its_log_end_is_known() -> None:
    assert reading().state is State.UP_TO_DATE
    unknown = replace(reading(), settled=replace(reading().settled, metrics=None))
    assert (unknown.state, unknown.lag) == (State.UNKNOWN, None)
    assert replace(reading(), is_overdue=True).state is State.UNKNOWN


def test_records_that_wait_for_the_next_run_are_worked_on_and_those_that_wait_for_their_retry_wait() -> None:
    assert reading(log_end=80).state is State.WORKING
    held = reading(floor=40, log_end=50, pending=retry(NOON + timedelta(minutes=5)), old_floor=40)
    assert held.state is State.WAITING


@pytest.mark.parametrize("stuck", [
    reading(floor=40, pending=Pending(PendingKind.DEAD_LETTER, 4, None, "HTTPError")),
    reading(floor=40, old_floor=40, pending=retry(NOON - timedelta(hours=2))),
    reading(log_end=80, why=NO_LEADER, old_floor=50),
], ids=["a dead letter is not acknowledged", "a retry is overdue", "no leader"])  # fmt: skip
def test_a_floor_that_no_later_run_moves_is_stuck(stuck: PartitionReading) -> None:
    assert stuck.state is State.STUCK


def test_s89_a_released_record_is_shown_apart_and_is_stuck_once_its_retry_is_overdue() -> None:
    def released(due: datetime) -> PartitionReading:
        state = PartitionState(50, [ValuedRange(7, 8, retry(due))]).with_copies(COPIES, COPIES.ranges)
        settled = replace(reading().settled, old_floor=50, state=state)
        return replace(reading(), settled=settled)

    found = released(NOON + timedelta(hours=1))
    assert (found.floor, found.held_by, found.pending, found.lag, found.state) == (50, None, 1, 0, State.WAITING)
    assert "1 released record is pending apart" in explain_partition(found.evidence).sentence
    assert "pending retry" in partition_picture(replace(found, settled=with_log_start(found, 20)))
    assert released(NOON - timedelta(hours=2)).state is State.STUCK


def with_log_start(part: PartitionReading, offset: int) -> SettledPartition:
    return replace(part.settled, metrics={**(part.settled.metrics or {}), "log_start": float(offset)})


def test_i20_behind_an_open_transaction_a_partition_waits_and_names_it() -> None:
    metrics = {"open_transaction": 6.0, "open_transaction_since": (NOON - timedelta(hours=1)).timestamp()}
    settled = reading().settled
    held = replace(settled, metrics={**(settled.metrics or {}), **metrics})
    part = replace(reading(why=OPEN_TRANSACTION, old_floor=50), settled=replace(held, old_floor=50))
    assert (part.state, part.lag, part.is_behind, part.open_transaction) == (State.WAITING, 0, True, 6)
    assert "open at offset 50 since 2026-03-01 11:00:00 UTC" in explain_partition(part.evidence).sentence


def test_a_paused_partition_is_not_stuck() -> None:
    assert reading(log_end=80, why=PAUSED, old_floor=50).state is State.PAUSED


def test_a_plan_that_stays_open_is_stuck_unless_a_process_replays_it() -> None:
    lane = MemoryLane(OK)
    plan = lane.plan()
    lease = Lease.of_this_process(plan.turn, "run", plan.planned_at)
    later = plan.planned_at + timedelta(hours=2)

    def state(now: datetime, holder: Holder | None) -> State:
        return LaneReading("lane", LIVE, lane.newest(), plan, (), (reading(),), now, holder).state

    assert state(later, None) is State.STUCK
    assert state(plan.planned_at + timedelta(minutes=5), None) is State.UP_TO_DATE
    assert state(later, Holder.of(lease, later, later)) is State.UP_TO_DATE
    lapsed = Holder.of(replace(lease, machine="another"), plan.planned_at, later)
    assert state(later, lapsed) is State.STUCK


def test_a_run_that_has_stopped_with_an_error_that_comes_again_is_stuck_and_another_one_after_an_hour() -> None:
    lane = MemoryLane(OK).after_run()
    settled_at = lane.newest().settled_at

    def state(lasting: bool, after: timedelta) -> State:
        stopped = StoppedRun(
            settled_at, "run", "GroupMoved", "It was moved.", "ackline doctor lane", lasting, (0, 1, 1)
        )
        return LaneReading(
            "lane", LIVE, lane.newest(), None, (), (reading(),), settled_at + after, stopped=stopped
        ).state

    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    assert [state(True, minute), state(False, minute), state(False, hour)] == [
        State.STUCK, State.UP_TO_DATE, State.STUCK,
    ]  # fmt: skip
    paused = replace(reading(), settled=replace(reading().settled, paused=True))
    still = LaneReading("lane", LIVE, lane.newest(), None, (), (paused,), settled_at).stands_still
    assert still is not None
    assert (still.reason, still.command) == ("Paused", "ackline resume lane")


def test_retention_is_foreseen_by_the_pace_of_the_log_start() -> None:
    """10 offsets an hour, and 40 left: four hours."""
    part = reading(floor=50, log_end=90, log_start=10)
    assert part.signals.retention_at == NOON + timedelta(hours=4)
    assert part.state is State.LOSING
    slow = reading(floor=500, complete_to=500, log_end=900, log_start=10)
    assert (slow.signals.retention_at, slow.state) == (NOON + timedelta(hours=49), State.WORKING)


def test_a_log_start_that_stands_or_a_settled_partition_has_no_such_time() -> None:
    assert reading(log_end=90, log_start=10, earlier=10).signals.retention_at is None
    assert reading(log_end=90, log_start=10, earlier=None).signals.retention_at is None
    assert reading(log_start=40).signals.retention_at is None


@pytest.mark.parametrize("lost", [reading(log_start=60, log_end=90), reading(counts={"expired": 3})])
def test_records_that_retention_has_taken_are_lost(lost: PartitionReading) -> None:
    assert lost.state is State.LOSING


def test_the_worst_comes_first() -> None:
    idle, working = reading(), reading(log_end=80)
    larger = replace(reading(log_end=90), tp=TopicPartition("orders", 1))
    losing = reading(log_start=60, log_end=61)
    assert list(worst_first([idle, working, larger, losing])) == [losing, larger, working, idle]


OWN = CommitMetadata("ledger", "orders", 0, 7)


@pytest.mark.parametrize("before", [None, Committed(40, replace(OWN, n=6).encode())], ids=["none", "of an older turn"])
def test_the_page_shows_the_commit_of_the_turn_itself(before: Committed | None) -> None:
    part = reading(floor=50, old_floor=40)
    shown = replace(part, own=OWN, settled=replace(part.settled, committed=before))
    assert (shown.committed, shown.commit_stayed, shown.state) == (50, False, State.UP_TO_DATE)


@pytest.mark.parametrize("metadata", ["", replace(OWN, ledger="restored").encode(), replace(OWN, n=9).encode()])
def test_a_commit_that_the_turn_may_not_overwrite_is_shown_where_it_stayed(metadata: str) -> None:
    part = reading(floor=50)
    stayed = replace(part, own=OWN, settled=replace(part.settled, committed=Committed(70, metadata)))
    assert (stayed.committed, stayed.commit_stayed, stayed.state) == (70, True, State.WAITING)
    seen = replace(part.settled, committed=Committed(70, ""), acknowledged_foreign_offset=70)
    assert replace(part, own=OWN, settled=seen).committed == 50


def test_a_turn_that_commits_nothing_and_an_open_turn_show_what_was_found() -> None:
    """A backfill commits nothing, nor does a turn whose rows wait for their output table."""
    part = reading(floor=50)
    waiting = replace(part.settled, committed=Committed(40, OWN.encode()))
    assert replace(part, settled=waiting).committed == 40
    assert replace(part, settled=waiting, own=OWN, found=45).committed == 45


def test_a_lane_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open page asks for all pipelines four times a minute."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    settled_at = datetime.now(UTC) - timedelta(hours=1)
    lane = write_lane(str(tmp_path), "orders", {TP: StoredPartition()}, 2, now=settled_at)
    read = list[int]()

    def counted(*arguments: Any) -> Any:
        read.append(1)
        return recent_turns(*arguments)

    monkeypatch.setattr(stored, "recent_turns", counted)
    first, second = readings.read_lane("orders"), readings.read_lane("orders")
    assert len(read) == 1
    assert second.now > first.now
    assert second.partitions[0].now == second.now
    plan = lane.store.plan(first.newest.turn) if first.newest else None
    assert plan is not None
    assert lane.store.store_plan(replace(plan, turn=plan.turn._replace(n=3)))
    assert readings.read_lane("orders").open_plan is not None
    assert len(read) == 1, "an open plan alone changes no turn"


def test_what_is_added_turn_by_turn_is_what_a_whole_read_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then more turns at once than are added one by one."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    parts = {TP: StoredPartition(fail_every=30, die_every=40, retention=20, hold=7), TP1: StoredPartition(read=0)}
    lane = write_lane(str(tmp_path), "orders", parts, 2, now=datetime.now(UTC) - timedelta(hours=2))
    readings.read_lane("orders")
    for turns in (1, 1, 2, stored.MOST_NEW_TURNS + 1, 1):
        for _ in range(turns):
            lane.turns += 1
            lane.now += timedelta(minutes=10)
            lane._write_turn(lane.turns, lane.now)
        added = readings.read_lane("orders")
        monkeypatch.setattr(stored, "_kept", OrderedDict(stored._kept))
        stored._kept.clear()
        whole = readings.read_lane("orders")
        assert added.turns == whole.turns
        assert (added.dead, added.lag, added.state) == (whole.dead, whole.lag, whole.state)
        assert [part.why for part in added.partitions] == [part.why for part in whole.partitions]


def test_tables_that_were_put_in_place_of_others_are_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the file system gives the folder of the old log to the new one."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    stamp = DeltaLog.stamp
    monkeypatch.setattr(DeltaLog, "stamp", lambda log: stamp(log)._replace(identity=1))
    write_lane(str(tmp_path), "orders", {TP: StoredPartition()}, 3)
    assert readings.read_lane("orders").dead == 0
    shutil.rmtree(tmp_path / "orders")
    write_lane(str(tmp_path), "orders", {TP: StoredPartition(die_every=50)}, 4)
    again = readings.read_lane("orders")
    assert again.dead == 8
    assert [turn.outcomes["dead"] for turn in again.turns[1:]] == [2, 2, 2, 2]
