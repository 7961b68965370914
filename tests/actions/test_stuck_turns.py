"""The errors of a turn that cannot be carried out: each names `ackline void`, and this closes the turn."""

from collections.abc import Callable
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, FatalError, NoProof, TransientError
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, OK, MemoryLane, void


def no_proof(lane: MemoryLane) -> None:
    lane.settle()


def guarantee_changed(lane: MemoryLane) -> None:
    lane.settings["guarantee"] = AT_MOST_ONCE
    lane.run()


def batch_does_not_decode(lane: MemoryLane) -> None:
    def fails(*_: Any) -> Any:
        raise FatalError("the Spark job failed (CorruptRecordException)")

    lane.replay(lane.adapters(run_job=fails))


def leader_is_gone(lane: MemoryLane) -> None:
    lane.log().has_leader = False
    lane.replay()


def outcome_files_are_lost(lane: MemoryLane) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise FatalError("the table outcomes can't be used: no such file")

    lane.replay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.memory_store.MemoryStore.outcomes_of", fails)
        lane.settle()


@pytest.mark.parametrize(
    ("stuck", "error"),
    [
        (no_proof, NoProof),
        (guarantee_changed, ConfigError),
        (batch_does_not_decode, FatalError),
        (leader_is_gone, TransientError),
        (outcome_files_are_lost, FatalError),
    ],
)
def test_the_error_of_a_turn_that_may_be_stuck_names_the_way_out(
    stuck: Callable[[MemoryLane], None], error: type[AcklineError]
) -> None:
    lane = MemoryLane(OK).after_plan()
    with pytest.raises(error, match=r"`ackline void lane --reason …`"):
        stuck(lane)
    lane.settings["guarantee"] = AT_LEAST_ONCE
    lane.log().has_leader = True
    void(lane)
    lane.run()
    assert lane.committed() == 1
