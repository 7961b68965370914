"""Guarantee and isolation level change between turns, with nothing pending."""

from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.ledger.turns import TurnKind
from tests.support.memory_lane import AT_MOST_ONCE, FAILS, NO_GUARANTEE, OK, MemoryLane


@pytest.mark.parametrize(
    "change", [{"guarantee": AT_MOST_ONCE}, {"guarantee": NO_GUARANTEE}, {"kafka": {"isolation": "read_uncommitted"}}]
)
def test_guarantee_and_isolation_may_change_while_nothing_is_pending(change: dict[str, Any]) -> None:
    lane = MemoryLane(OK).after_run()
    lane.settings |= change
    lane.produce(OK)
    lane.run()
    assert (lane.committed(), lane.calls()) == (2, [(0, 1), (1, 1)])


@pytest.mark.parametrize("turn", ["run", "pause"])
def test_the_guarantee_does_not_change_while_records_are_pending_but_by_a_reset(turn: str) -> None:
    """An action is refused too: its plan's settings would pass for those under which the record was planned."""
    lane = MemoryLane(FAILS, retry={"initial_delay": "1h"}).after_run()
    lane.settings["guarantee"] = AT_MOST_ONCE
    with pytest.raises(ConfigError, match=r"guarantee was changed.* while records are pending"):
        lane.run() if turn == "run" else lane.perform(TurnKind.PAUSE)
    assert (lane.newest().turn.n, lane.calls()) == (1, [(0, 1)])
    lane.perform(TurnKind.RESET)
    lane.run()
    assert lane.floor() == 1
