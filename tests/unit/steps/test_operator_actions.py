"""Operator actions: what a reset does to the partitions that it does not name."""

from ackline.turns import TurnKind
from tests.memory_lane import FAILS_ONCE, OK, PAYMENTS, TP, TP1, MemoryLane


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
