"""Operator actions: what a reset does to the partitions that it does not name, and to what it passes over."""

from ackline.outcome import Outcome
from ackline.turns import TurnKind
from tests.memory_lane import FAILS, FAILS_ONCE, OK, PAYMENTS, TP, TP1, MemoryLane

LATER = {"initial_delay": "1h", "period": "1h"}


def test_a_reset_leaves_a_partition_whose_topic_is_gone_at_its_floor() -> None:
    lane = MemoryLane(OK, OK, topics=("orders", "payments"))
    lane.create("payments")
    lane.run()
    lane.world.delete_topic("payments")
    lane.perform(TurnKind.RESET, {TP: 1, PAYMENTS: 0})
    assert (lane.newest().turn.epoch, lane.floor(), lane.floor(PAYMENTS), lane.committed()) == (1, 1, 0, 1)


def test_a_reset_of_one_partition_leaves_the_others_at_their_floor() -> None:
    lane = MemoryLane(OK, partitions=2, retry={"initial_delay": "1h", "period": "1h"})
    lane.produce(OK, FAILS_ONCE, OK, tp=TP1)
    lane.run()
    lane.perform(TurnKind.RESET, {TP: 0})
    assert lane.newest().turn.epoch == 1
    assert (lane.floor(), lane.floor(TP1), lane.pending(TP1)) == (0, 1, [])
    lane.run()
    assert lane.offsets(TP1) == [0, 1, 2, 1, 2]


def test_i15_a_reset_that_goes_forward_records_what_the_new_epoch_does_not_read_as_skipped() -> None:
    """Pending offsets below its target, and what was not read; what is pending above it, the new epoch reads."""
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER, max_records_per_run=4).after_run()
    lane.produce(OK, OK, OK)
    lane.perform(TurnKind.RESET, {TP: 3})
    ended = list(lane.world.tables.settlements.values())[-1]
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2)]
    assert (ended.turn.epoch, ended.partitions[TP].state.floor, dict(ended.partitions[TP].counts)) == (
        0, 3, {"skipped": 1})  # fmt: skip
    assert (lane.newest().turn.epoch, lane.floor(), lane.pending(), lane.committed()) == (1, 3, [], 3)
    lane.perform(TurnKind.RESET, {TP: 6})
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2), (3, 6)]
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2, 3, 6], 7)


def test_i15_a_reset_that_goes_back_skips_nothing() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.perform(TurnKind.RESET, {TP: 1})
    ended = list(lane.world.tables.settlements.values())[-1]
    assert (lane.ranges(Outcome.SKIPPED), ended.partitions[TP].state.floor) == ([], 1)
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run()
    assert (lane.ranges(Outcome.SKIPPED), lane.offsets()) == ([], [0, 1, 2, 0, 1, 2])


def test_i15_a_reset_into_a_topic_that_was_created_again_skips_all_that_is_pending_of_the_old_one() -> None:
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER).after_run()
    lane.create("orders", records=2)
    lane.perform(TurnKind.RESET, {TP: 0})
    assert lane.ranges(Outcome.SKIPPED) == [(1, 2), (3, 4)]
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)
