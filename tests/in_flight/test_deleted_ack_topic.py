"""The ack topic is deleted for good: each error names a command, and that command works without the topic."""

import pytest

from ackline.actions.void import open_turn, void_open_turn
from ackline.errors import ConfigError
from ackline.ledger.fold import PendingKind
from ackline.ledger.turns import TurnKind
from tests.support.memory_lane import OK, TP, WAITS, AnsweredLane, MemoryBackfill

RESET = "take `ack_topic` out of the file and begin a new epoch with `ackline reset lane --to floor"


def without_ack_topic(lane: AnsweredLane) -> None:
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    lane.world.handle = lambda record: None


def test_a_run_names_the_reset_that_goes_on_without_the_ack_topic() -> None:
    lane = AnsweredLane(WAITS, OK).after_run()
    lane.world.delete_topic("acks")
    lane.run_fails(ConfigError, RESET)
    without_ack_topic(lane)
    lane.run_fails(ConfigError, "begin a new epoch with `ackline reset lane --to floor")
    lane.perform(TurnKind.RESET, {TP: lane.floor()})
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)


def test_a_skip_of_what_is_in_flight_needs_no_ack_topic() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.world.delete_topic("acks")
    lane.perform(TurnKind.SKIP, {TP: 1})
    assert lane.floor() == 1


def test_a_settle_names_the_void_that_closes_its_turn_and_the_reset_goes_on() -> None:
    lane = AnsweredLane(WAITS).after_replay()
    lane.world.delete_topic("acks")
    with pytest.raises(ConfigError, match=r"does not exist any more.*close it with `ackline void lane --reason"):
        lane.settle()
    adapters = lane.adapters()
    void_open_turn(adapters, open_turn(adapters).plan.turn, "the ack topic is gone")
    without_ack_topic(lane)
    lane.run()
    assert lane.floor() == 1


def test_a_cancel_names_the_void_of_its_lane_and_then_works() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    killed = lane.adapters(hook=die_at_decisions)
    with pytest.raises(Killed):
        lane.run(killed)
    live.world.delete_topic("acks")
    with pytest.raises(ConfigError, match="close it with `ackline void lane --lane backfill-b --reason"):
        lane.cancel()
    adapters = lane.adapters()
    void_open_turn(adapters, open_turn(adapters).plan.turn, "the ack topic is gone")
    assert lane.cancel().outcomes == {"skipped": 2}


def test_a_run_of_a_backfill_names_its_cancel_which_works() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending[PendingKind.IN_FLIGHT] == 2
    live.world.delete_topic("acks")
    with pytest.raises(ConfigError, match="end the backfill with `ackline backfill lane --cancel b`"):
        lane.run()
    assert lane.cancel().outcomes == {"skipped": 2}


class Killed(BaseException):
    """Ends a process."""


def die_at_decisions(operation: str, when: str) -> None:
    if (operation, when) == ("decisions", "before"):
        raise Killed
