"""The offsets that a backfill chooses, by range, time, outcome and error class, on the steps in memory (S72)."""

from datetime import timedelta

import pytest

from ackline.backfill.choose import BEYOND_END, BY_RETENTION, IN_OLDER_TOPIC, GoneRange
from ackline.errors import ConfigError
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from tests.memory_backfill import MemoryBackfill, settled_lane
from tests.memory_lane import DEAD, FAILS, OK, PAYMENTS, TP, TP1, MemoryLane
from tests.unit import filters


def test_s72_exactly_the_dead_ones_of_an_error_class_are_read() -> None:
    live = settled_lane(OK, FAILS, DEAD, FAILS, OK)
    assert live.ranges(Outcome.DEAD) == [(1, 2), (2, 3), (3, 4)]
    lane = MemoryBackfill(live, "b", outcome="dead", error_class="ValueError")
    live.world.handle = lambda record: None
    assert lane.run().outcomes == {"acked": 2}
    assert sorted(lane.ended()) == [1, 3]
    assert live.calls()[5:] == [(1, 1), (3, 1)]


def test_s72_what_retention_or_compaction_took_is_expired_or_compacted() -> None:
    live = settled_lane(*[DEAD] * 5)
    live.log().expire(2)
    live.log().compacted.add(3)
    live.world.handle = lambda record: None
    lane = MemoryBackfill(live, "b", outcome="dead")
    assert list(lane.choose().gone) == [GoneRange(TP, OffsetRange(0, 2), BY_RETENTION)]
    lane.run()
    assert lane.ended() == {0: "expired", 1: "expired", 2: "acked", 3: "compacted", 4: "acked"}


def test_s72_ranges_narrow_what_an_outcome_chooses() -> None:
    live = settled_lane(*[DEAD] * 6)
    lane = MemoryBackfill(live, "b", "orders:0:1-3", "orders:0:4-5", outcome="dead")
    assert lane.choose().partitions[TP].offsets == (OffsetRange(1, 3), OffsetRange(4, 5))


def test_s72_the_outcome_in_the_newest_epoch_counts() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.perform(TurnKind.RESET, {TP: 1})
    live.world.handle = lambda record: None
    live.run()
    assert MemoryBackfill(live, "b", outcome="dead").choose().partitions[TP].offsets == (OffsetRange(0, 1),)
    assert MemoryBackfill(live, "b", outcome="acked").choose().partitions[TP].offsets == (OffsetRange(1, 3),)


def test_s72_an_outcome_of_a_topic_that_was_created_again_is_gone() -> None:
    live = settled_lane(DEAD, DEAD)
    live.create("orders", records=5)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert not choice.partitions
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(0, 2), IN_OLDER_TOPIC)]


def test_s72_an_outcome_beyond_the_log_end_is_gone() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.truncate(1)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert choice.partitions[TP].offsets == (OffsetRange(0, 1),)
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(1, 3), BEYOND_END)]


def test_outcomes_of_another_backfill_are_chosen_with_of() -> None:
    live = settled_lane(OK, DEAD, OK)
    live.world.handle = lambda record: None
    assert MemoryBackfill(live, "a", "orders").run().outcomes == {"acked": 3}
    choice = MemoryBackfill(live, "b", outcome="acked", of="backfill-a").choose()
    assert (choice.offsets, choice.acked_before) == (3, 3)
    with pytest.raises(ConfigError, match="--of backfill-x: lane has no such lane yet"):
        MemoryBackfill(live, "c", outcome="acked", of="backfill-x").choose()


def test_a_time_chooses_offsets_and_an_open_end_is_named() -> None:
    live = MemoryLane()
    start = live.world.now
    for minute in range(5):
        live.produce(OK, time=start + timedelta(minutes=minute))
    live.world.now += timedelta(hours=2)
    two = MemoryBackfill(live, "b", since="2026-03-01T12:01:00Z", until="2026-03-01T12:03:00Z").choose()
    assert (two.partitions[TP].ranges, two.open_ends) == ((OffsetRange(1, 3),), {})
    rest = MemoryBackfill(live, "b", since="2026-03-01T12:03:30Z", until="1h ago").choose()
    assert (rest.partitions[TP].ranges, rest.open_ends) == ((OffsetRange(4, 5),), {TP: 5})


def test_ranges_that_retention_has_eaten_are_named_and_become_expired() -> None:
    live = settled_lane(*[OK] * 6)
    live.log().expire(3)
    lane = MemoryBackfill(live, "b", "orders:0:1-2", "orders:0:2-5")
    choice = lane.choose()
    assert (choice.offsets, list(choice.gone)) == (4, [GoneRange(TP, OffsetRange(1, 3), BY_RETENTION)])
    assert lane.run().outcomes == {"expired": 2, "acked": 2}


def test_retention_that_takes_the_rest_of_a_lane_settles_it() -> None:
    live = settled_lane(*[OK] * 6, on_expired="fail")
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:2-4")
    lane.begin()
    live.log().expire(5)
    assert lane.run().outcomes == {"expired": 3}
    assert lane.ended() == dict.fromkeys([0, 2, 3], "expired")


def test_only_partitions_of_the_subscription_can_be_chosen() -> None:
    live = settled_lane(OK, partitions=2)
    live.create("payments", records=1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP}
    with pytest.raises(ConfigError, match="range payments: the pipeline reads no such partition"):
        MemoryBackfill(live, "b", PAYMENTS.topic).choose()
    live.produce(OK, tp=TP1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP, TP1}


def test_a_partition_that_the_pipeline_s_filter_excludes_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "included", {0})
    live = settled_lane(OK, partitions=2, kafka={"partition_filter": "tests.unit.filters:chosen"})
    live.produce(OK, tp=TP1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP}
    with pytest.raises(ConfigError, match="the pipeline reads no such partition"):
        MemoryBackfill(live, "b", "orders:1").choose()
