"""How a backfill lane begins, is resumed under its id, and is cancelled, on the steps in memory (S71)."""

import pytest

from ackline.actions.actions import perform_action
from ackline.actions.form import ActionRequest
from ackline.actions.targets import choose_targets
from ackline.backfill.plan import plan_backfill
from ackline.errors import ConfigError, FatalError
from ackline.ledger.turns import TurnKind
from ackline.pipeline.arguments import PartitionChoice
from ackline.steps import replay
from tests.support.memory import BEFORE
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DEAD,
    FAILS,
    FAILS_ONCE,
    MINUTE,
    OK,
    TP,
    TP1,
    MemoryBackfill,
    settled_lane,
)


def test_s71_the_choice_is_stored_once_and_a_resume_does_not_choose_anew() -> None:
    live = settled_lane(OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.produce(OK, OK)
    assert lane.run().offsets == 2


def test_s71_other_arguments_are_refused_and_nothing_is_stored() -> None:
    live = settled_lane(OK, OK)
    MemoryBackfill(live, "b", "orders:0:0-1").begin()
    before = len(live.world.history)
    with pytest.raises(ConfigError, match="RANGE: backfill b began with orders:0:0-1, not orders"):
        MemoryBackfill(live, "b", "orders").run()
    assert len(live.world.history) == before


def test_a_lane_that_has_not_begun_has_no_turn() -> None:
    with pytest.raises(ConfigError, match="has no lane backfill-b"):
        plan_backfill(MemoryBackfill(settled_lane(OK), "b").adapters())
    with pytest.raises(FatalError, match="has no lane backfill-b"):
        MemoryBackfill(settled_lane(OK), "b").cancel()


def test_of_two_processes_that_begin_the_same_id_one_stores_the_choice() -> None:
    live = settled_lane(OK, OK, OK)
    first, second = MemoryBackfill(live, "b", "orders:0:0-1"), MemoryBackfill(live, "b", "orders:0:1-3")
    live.strike("settlement", first.begin, BEFORE)
    with pytest.raises(ConfigError, match="began with orders:0:0-1"):
        second.begin()
    assert first.run().offsets == 1


def test_of_two_runs_of_a_lane_one_stores_each_turn() -> None:
    live = settled_lane(*[OK] * 4, max_records_per_run=2)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    live.strike("plan", lambda: lane.run(lane.adapters("rival")), BEFORE)
    assert lane.run().settled
    assert live.calls()[2:] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_cancelled_lane_has_skipped_what_was_left_and_stays_settled() -> None:
    live = settled_lane(*[OK, FAILS] * 4, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders:0:0-3", "orders:0:5-8")
    lane.run(max_records=3)
    done = lane.cancel("wrong range")
    assert done.settled
    assert lane.ended() == {0: "acked", 1: "skipped", 2: "acked", 5: "skipped", 6: "skipped", 7: "skipped"}
    assert lane.cancel() == done
    assert lane.run() == done


def test_a_cancelled_lane_has_skipped_the_rest_of_each_partition() -> None:
    live = settled_lane(OK, OK, partitions=2)
    live.produce(OK, OK, OK, tp=TP1)
    live.run()
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    assert (lane.cancel().outcomes, lane.account().settled) == ({"skipped": 5}, True)
    assert (set(lane.ended()), set(lane.ended(TP1))) == ({0, 1}, {0, 1, 2})


def test_a_cancelled_lane_of_single_offsets_has_skipped_them() -> None:
    live = settled_lane(OK, DEAD, OK, DEAD)
    lane = MemoryBackfill(live, "b", outcome="dead")
    lane.begin()
    assert lane.cancel().outcomes == {"skipped": 2}


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_a_cancellation_closes_an_open_turn(guarantee: str) -> None:
    live = settled_lane(OK, OK, guarantee=guarantee)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.adapters())
    assert lane.cancel().outcomes == {"skipped": 2}
    kinds = [s.kind for turn, s in live.world.tables.settlements.items() if turn.lane == lane.lane]
    assert kinds == [TurnKind.GENESIS, TurnKind.VOID, TurnKind.SKIP]


def test_a_cancellation_settles_a_turn_whose_outcomes_are_stored() -> None:
    live = settled_lane(OK, OK, OK)
    lane = MemoryBackfill(live, "b", "orders")
    lane.begin()
    plan_backfill(lane.adapters(), max_records=2)
    replay.replay(lane.adapters(), no_session)
    assert lane.cancel().outcomes == {"acked": 2, "skipped": 1}


def test_a_retry_that_an_operator_makes_due_is_made_by_the_next_run_of_the_lane() -> None:
    live = settled_lane(OK, FAILS_ONCE, retry=MINUTE)
    lane = MemoryBackfill(live, "b", "orders")
    assert lane.run().pending["retry"] == 1
    retry = ActionRequest(TurnKind.RETRY, PartitionChoice())
    perform_action(
        lane.adapters(), TurnKind.RETRY, lambda newest: choose_targets(lane.adapters(), retry, newest), "now"
    )
    assert lane.run().settled


def test_a_backfill_lane_is_never_reset() -> None:
    lane = MemoryBackfill(settled_lane(OK), "b", "orders")
    lane.begin()
    with pytest.raises(ConfigError, match="begin another backfill"):
        perform_action(lane.adapters(), TurnKind.RESET, lambda _: {TP: 0}, "again")
