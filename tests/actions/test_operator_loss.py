"""An open turn that an operator records as lost, because it was handed out at most once (I4, I7, I9, I11)."""

import pytest

from ackline.actions import void as operator_void
from ackline.actions.void import Consequence
from ackline.errors import FatalError, TransientError, TurnVoided
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps.run import replay_until_records
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import AT_MOST_ONCE, OK, TP, TP1, MemoryLane, lose_a_file, stopped, void, void_by


@pytest.mark.parametrize("program", ["run", "task"])
@pytest.mark.parametrize(("operation", "when"), [("claim", AFTER), ("start", AFTER), ("outcomes", BEFORE)])
def test_at_most_once_a_run_whose_turn_an_operator_has_recorded_as_lost_names_why_and_plans_no_other(
    operation: str, when: str, program: str
) -> None:
    lane = MemoryLane(OK, OK, OK, guarantee=AT_MOST_ONCE, max_records_per_run=2).after_plan()
    work = lane.run if program == "run" else lambda adapters: replay_until_records(adapters, no_session)
    slow = stopped(lane, work, operation, when)
    assert void(lane).consequence is Consequence.LOST
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)
    assert "was recorded as lost by an operator: the batch is broken" in str(slow.error)
    assert (lane.newest().turn.n, lane.newest().reason) == (1, "the batch is broken")
    assert lane.adapters().store.open_plan(lane.newest()) is None
    lane.run()
    assert (lane.floor(), lane.committed(), lane.offsets().count(2)) == (3, 3, 1)


def test_at_most_once_a_driver_ends_by_name_although_another_run_has_begun_the_turn_after_the_lost_one() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    slow = stopped(lane, lambda adapters: replay_until_records(adapters, no_session), "outcomes", BEFORE)
    void(lane)
    lane.produce(OK)
    lane.plan()
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)


def test_a_turn_that_was_lost_without_an_operator_ends_no_run() -> None:
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE, lost_after="0s").after_plan()
    stopped(lane, lane.replay, "start", AFTER).kill()
    lane.run()
    assert (lane.ranges(Outcome.LOST), lane.newest().closed_by_operator) == ([(0, 1)], False)


@pytest.mark.parametrize("reported", [False, True])
def test_i11_at_most_once_a_pause_is_in_the_settlement_that_records_the_turn_as_lost(reported: bool) -> None:
    lane = MemoryLane(OK, partitions=2, guarantee=AT_MOST_ONCE)
    if reported:
        lose_a_file(lane)
    else:
        lane.plan()
        stopped(lane, lane.replay, "start", AFTER)
    closed = void(lane, pause=True)
    assert (closed.consequence, closed.not_paused) == (Consequence.LOST, None)
    assert lane.kinds() == [TurnKind.GENESIS, TurnKind.RUN]
    assert (lane.settled(TP).paused, lane.settled(TP1).paused) == (True, False)


@pytest.mark.parametrize("closes", ["run", "settle", "void"])
@pytest.mark.parametrize(
    ("operation", "when"), [("outcomes", AFTER), ("decisions", BEFORE), ("decisions", AFTER), ("settlement", BEFORE)]
)
def test_i11_at_most_once_a_pause_is_kept_whatever_kills_the_operator_after_the_ranges_are_lost(
    operation: str, when: str, closes: str
) -> None:
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE).after_plan()
    stopped(lane, lane.replay, "start", AFTER).kill()
    stopped(lane, lambda adapters: void_by(adapters, pause=True), operation, when).kill()
    if closes == "void":
        assert void(lane).consequence is Consequence.LOST
    else:
        getattr(lane, closes)()
    settlement = list(lane.world.tables.settlements.values())[1]
    assert (settlement.reason, settlement.closed_by_operator) == ("the batch is broken", True)
    assert (settlement.partitions[TP].paused, lane.ranges(Outcome.LOST)) == (True, [(0, 1)])
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == []
    lane.perform(TurnKind.RESUME)
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([1], 2)


def test_an_operator_who_dies_before_the_ranges_are_lost_leaves_the_turn_to_the_next_void() -> None:
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE).after_plan()
    stopped(
        lane,
        lambda adapters: adapters.store.store_claim(lane.adapters().store.open_plan(lane.newest())),
        "claim",
        AFTER,
    )
    stopped(lane, lambda adapters: void_by(adapters, pause=True), "start", AFTER).kill()
    lane.run_fails(TransientError, "handed out by another process")
    assert void(lane, pause=True).consequence is Consequence.LOST
    assert (lane.settled().paused, lane.offsets()) == (True, [])


def test_a_void_that_can_not_pause_tells_it_and_commits_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FatalError("turn 2 is open")

    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    stopped(lane, lane.replay, "start", AFTER)
    stopped(lane, void_by, "outcomes", AFTER).kill()  # an earlier void, which was to pause nothing
    monkeypatch.setattr(operator_void, "perform_action", refuse)
    closed = void(lane, pause=True)
    assert (closed.consequence, closed.not_paused, lane.committed()) == (Consequence.LOST, "turn 2 is open", 2)


@pytest.mark.parametrize("operation", ["decisions", "settlement"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_i9_an_operator_who_dies_while_a_reported_turn_becomes_lost_leaves_it_to_the_next_process(
    operation: str, when: str
) -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lose_a_file(lane)
    operator = stopped(lane, void_by, operation, when)
    operator.kill()
    if (operation, when) == ("decisions", BEFORE):
        void(lane)
    lane.run()
    assert (lane.ranges(Outcome.LOST), lane.offsets(), lane.committed()) == ([(0, 2)], [0, 1], 2)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_i4_a_settle_that_has_read_the_outcomes_before_they_were_lost_and_a_void_never_both_count(when: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_replay()
    settles = stopped(lane, lambda adapters: lane.settle(adapters), "decisions", when)
    turn = next(iter(lane.world.tables.outcomes))
    lane.world.tables.lost_files.add(turn)
    if when == AFTER:
        with pytest.raises(FatalError, match="outcomes and decisions are stored"):
            void(lane)
        lane.world.tables.lost_files.clear()  # restored from a backup
    else:
        assert void(lane).consequence is Consequence.LOST
    settles.advance(None)
    lane.run()
    counts = next(s.partitions[TP].counts for s in lane.world.tables.settlements.values() if s.turn == turn)
    assert (counts, lane.offsets(), lane.committed()) == ({"acked": 2} if when == AFTER else {"lost": 2}, [0, 1], 2)


def test_i7_at_most_once_a_reported_turn_with_a_lost_file_is_lost_whole() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lose_a_file(lane)
    lane.run_fails(FatalError, "ackline void lane")
    assert void(lane).consequence is Consequence.LOST
    assert (lane.ranges(Outcome.LOST), lane.settled().counts, lane.settled().gaps) == ([(0, 2)], {"lost": 2}, 0)
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2], 3)
