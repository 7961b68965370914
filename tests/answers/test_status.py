"""The status of partitions whose log is empty, gone, another one, or shorter than it was."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ackline.answers.status import PartitionStatus, status, status_and_missing, status_by_topic
from ackline.errors import AcklineError
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.ledger.states import State
from ackline.ledger.turns import TurnKind
from tests.support.memory_kafka import MemoryCluster
from tests.support.memory_lane import AT_MOST_ONCE, FAILS, NOON, OK, TP, TP1, MemoryLane


@pytest.fixture
def lane() -> MemoryLane:
    """A topic of two partitions. In the first, the second and third of four records fail for good; a minute passes."""
    lane = MemoryLane(partitions=2, dead_letter="none", retry={"initial_delay": "1h"})
    for second, value in enumerate((OK, FAILS, FAILS, OK)):
        lane.produce(value, time=NOON + timedelta(seconds=second))
    lane.world.now += timedelta(minutes=1)
    return lane


def status_of(lane: MemoryLane, tp: TopicPartition = TP) -> PartitionStatus:
    (found,) = [partition for partition in status(lane.adapters()) if (partition.topic, partition.partition) == tp]
    return found


def remove_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no partition has a leader, and its log end is unknown; its tables and group still are there."""
    topics = MemoryCluster.topics

    def without_leaders(cluster: MemoryCluster, names: Any) -> Any:
        infos = topics(cluster, names).items()
        return {name: replace(info, partitions=dict.fromkeys(info.partitions, False)) for name, info in infos}

    monkeypatch.setattr(MemoryCluster, "topics", without_leaders)


def test_before_the_first_run_it_is_where_that_would_start(lane: MemoryLane) -> None:
    found = status_of(lane)
    assert (found.floor, found.read, found.lag, found.lag_seconds) == (0, 0, 4, 60.0)
    assert (found.committed, found.why) == (None, None)
    assert lane.adapters().store.newest() is None, "nothing is stored"


def test_a_partition_that_loses_its_leader_has_no_lag_in_its_status_nor_in_its_settlement(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lag of 0 would mean that nothing is behind."""
    lane.run()
    remove_leaders(monkeypatch)
    found = status_of(lane)
    assert (found.why, found.log_start, found.log_end) == ("no leader", None, None)
    assert (found.lag, found.lag_seconds) == (None, None)
    assert (found.floor, found.read, found.oldest_pending_offset, found.oldest_pending_at) == (1, 4, 1, None)
    lane.run()
    lane.perform(TurnKind.PAUSE)
    lane.run()
    for turn, settlement in lane.world.tables.settlements.items():
        for tp in (TP, TP1) if turn.n in (2, 4) else ():
            metrics = settlement.partitions[tp].metrics or {}
            assert not {"log_start", "log_end", "lag", "lag_seconds"} & metrics.keys()
    (topic,) = status_by_topic(status(lane.adapters()))
    assert (topic.lag, topic.lag_seconds, topic.partitions) == (None, None, 2)


def test_a_topic_that_is_gone_is_missing_and_has_no_lag(lane: MemoryLane) -> None:
    lane.run()
    lane.world.delete_topic("orders")
    found, missing = status_and_missing(lane.adapters())
    assert [(row.why, row.lag, row.lag_seconds) for row in found] == [("missing", None, None)] * 2
    assert missing == ("orders",)
    lane.topics = ["payments"]
    assert status_of(lane).why == "no longer subscribed"


def test_s42_a_topic_created_again_is_not_caught_up(lane: MemoryLane) -> None:
    """However long it has become: offsets of the old topic mean nothing in it."""
    lane.run()
    lane.create("orders", 2, records=4)
    found = status_of(lane)
    assert (found.why, found.log_end, found.lag, found.lag_seconds) == ("created again", 4, None, None)
    lane.run_fails(AcklineError, "created again")


def test_s42_a_log_that_ends_below_what_was_read_is_truncated_and_not_caught_up(
    lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.run()
    monkeypatch.setattr(MemoryCluster, "_bounds", lambda *_: LogBounds(0, 0, 0))
    found = status_of(lane)
    assert (found.why, found.lag, found.lag_seconds) == ("truncated", -1, None)
    assert status_of(lane, TP1).why is None


def test_s41_where_retention_passed_the_floor_the_lag_is_as_old_as_what_is_left(lane: MemoryLane) -> None:
    lane.run()
    assert status_of(lane).oldest_pending_at == NOON + timedelta(seconds=1)
    lane.log().expire(3)
    found = status_of(lane)
    assert (found.floor, found.log_start, found.lag, found.lag_seconds) == (1, 3, 3, 57.0)
    assert (found.oldest_pending_offset, found.oldest_pending_at) == (1, None), "retention has taken its time as well"
    lane.log().expire(4)
    assert (status_of(lane).lag, status_of(lane).lag_seconds) == (3, None)


def test_s50_the_floor_of_a_claimed_turn_is_that_of_the_claim(lane: MemoryLane) -> None:
    """The group's offset is never above the floor that is shown."""
    lane.settings["guarantee"] = AT_MOST_ONCE
    lane.plan()
    assert (status_of(lane).floor, status_of(lane).committed) == (0, None)
    lane.world.faults.jobs.append("failed")
    with pytest.raises(AcklineError):
        lane.replay()
    found = status_of(lane)
    assert (found.floor, found.committed, found.read, found.lag) == (4, 4, 0, 0)


def test_a_topic_that_does_not_exist_yet_is_named(lane: MemoryLane) -> None:
    lane.topics.append("payments")
    found, missing = status_and_missing(lane.adapters())
    assert (len(found), missing) == (2, ("payments",))


def test_i20_a_lane_that_a_reset_has_put_back_is_not_up_to_date_in_what_is_stored_of_it() -> None:
    lane = MemoryLane(*[OK] * 8).after_run()
    assert status_of(lane).state is State.UP_TO_DATE
    lane.perform(TurnKind.RESET, {TP: 2})
    (settled,) = lane.newest().partitions.values()
    assert (settled.metrics or {})["lag"] == settled.unsettled == 6
    away, _ = status_and_missing(lane.adapters(), reads_broker=False)
    assert [found.state for found in away] == [State.UNKNOWN]
    assert status_of(lane).state is State.WORKING
    lane.run()
    assert status_of(lane).state is State.UP_TO_DATE


def test_i20_a_floor_that_does_not_move_for_two_hours_is_stuck() -> None:
    lane = MemoryLane(*[OK] * 99, FAILS, dead_letter="none", retry={"initial_delay": "9h"}).after_run()
    assert status_of(lane).state is State.WAITING
    lane.produce(*[OK] * 100)
    lane.world.now += timedelta(hours=1, minutes=59)
    lane.run()
    assert status_of(lane).state is State.WAITING
    lane.world.now += timedelta(minutes=1)
    found = status_of(lane)
    assert (found.state, found.floor_since) == (State.STUCK, NOON)


def test_i20_of_a_lane_without_a_turn_for_three_runs_of_its_schedule_nothing_is_known() -> None:
    lane = MemoryLane(OK, schedule="*/10 * * * *").after_run()
    lane.world.now += timedelta(minutes=30)
    assert status_of(lane).state is State.UP_TO_DATE
    lane.world.now += timedelta(seconds=1)
    assert status_of(lane).state is State.UNKNOWN


def test_i20_a_lane_of_which_too_many_new_records_fail_is_failing_until_new_ones_succeed() -> None:
    lane = MemoryLane(*[OK] * 97, *[FAILS] * 3, dead_letter="none", retry={"initial_delay": "1m"}).after_run()
    assert (status_of(lane).state, status_of(lane).failing_share) == (State.FAILING, 0.03)
    lane.world.now += timedelta(minutes=2)
    lane.run()  # the retries alone
    assert status_of(lane).state is State.FAILING
    lane.produce(*[OK] * 50)
    lane.run()
    assert status_of(lane).state is State.WAITING
