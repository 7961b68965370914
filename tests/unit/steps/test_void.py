"""A turn that is closed as void: by an operator, under each guarantee, and beside drivers that work on it (I7, I11)."""

from collections.abc import Callable
from typing import Any

import pytest

from ackline.errors import AcklineError, ConfigError, FatalError, NoProof, TransientError, TurnVoided
from ackline.outcome import Outcome
from ackline.steps import operator_void
from ackline.steps.operator_void import ClosedTurn, Consequence
from ackline.steps.run import replay_until_records
from ackline.testing.memory import AFTER, BEFORE
from ackline.testing.memory_parts import no_session
from ackline.turns import TurnKind
from tests.chaos.actor import Actor, Killed
from tests.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, NO_GUARANTEE, OK, TP, TP1, MemoryLane

GUARANTEES = (AT_LEAST_ONCE, AT_MOST_ONCE)
REASON = "the batch is broken"


def void(lane: MemoryLane, pause: bool = False, run_id: str = "operator") -> ClosedTurn:
    parts = lane.parts(run_id)
    return operator_void.void_open_turn(parts, operator_void.open_turn(parts).plan.turn, REASON, pause)


def stopped(lane: MemoryLane, work: Callable[[Any], object], operation: str, when: str) -> Actor:
    """Returns a process that was stopped at an operation."""
    actor = Actor("slow", lambda hook: work(lane.parts("slow", hook)))
    actor.advance(lambda at, at_when: (at, at_when) == (operation, when))
    assert not actor.over
    return actor


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_i11_what_an_operator_voids_is_planned_again_and_nothing_is_lost(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee)
    lane.plan()
    closed = void(lane)
    assert (closed.consequence, closed.not_committed) == (Consequence.VOID, None)
    assert (lane.newest().kind, lane.newest().reason, lane.floor()) == (TurnKind.VOID, "the batch is broken", 0)
    lane.run()
    assert (lane.offsets(), lane.committed(), lane.newest().turn.n) == ([0, 1], 2, 2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_after_a_void_the_operators_actions_work(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee)
    lane.plan()
    with pytest.raises(FatalError, match="ackline void lane --reason"):
        lane.perform(TurnKind.SKIP, {TP: 1})
    void(lane)
    lane.perform(TurnKind.PAUSE)
    lane.perform(TurnKind.RESUME)
    lane.perform(TurnKind.SKIP, {TP: 1})
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1], 2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_void_pauses_the_partitions_of_its_turn_in_the_same_settlement(guarantee: str) -> None:
    lane = MemoryLane(OK, partitions=2, guarantee=guarantee)
    lane.plan()
    void(lane, pause=True)
    assert (lane.newest().kind, lane.settled(TP).paused, lane.settled(TP1).paused) == (TurnKind.VOID, True, False)
    lane.run()
    assert lane.offsets() == []
    lane.perform(TurnKind.RESUME)
    lane.run()
    assert lane.offsets() == [0]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("operation", ["claim", "start", "outcomes"])
def test_i7_at_most_once_a_turn_that_is_voided_beside_its_driver_is_handed_out_at_most_once(
    operation: str, when: str
) -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    driver = stopped(lane, lambda parts: replay_until_records(parts, no_session), operation, when)
    reported = (operation, when) == ("outcomes", AFTER)
    if reported:
        with pytest.raises(FatalError, match="no file of them is lost or damaged"):
            void(lane)
    else:
        claimed = (operation, when) != ("claim", BEFORE)
        assert void(lane).consequence is (Consequence.LOST if claimed else Consequence.VOID)
    driver.advance(None)
    lane.run()
    lane.run()
    assert len(lane.offsets()) == len(set(lane.offsets()))
    assert (lane.floor(), lane.committed()) == (2, 2)
    assert len(lane.ranges(Outcome.LOST)) == (not reported and (operation, when) != ("claim", BEFORE))


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("program", ["run", "task"])
def test_a_run_whose_turn_an_operator_has_voided_names_who_and_why_and_plans_no_other(
    guarantee: str, program: str
) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee)
    lane.plan()
    work = lane.run if program == "run" else lambda parts: replay_until_records(parts, no_session)
    slow = stopped(lane, work, "claim" if guarantee == AT_MOST_ONCE else "outcomes", BEFORE)
    void(lane)
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)
    assert "closed as void by test: the batch is broken" in str(slow.error)
    assert lane.newest().turn.n == 1
    assert lane.parts().store.open_plan(lane.newest()) is None
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)


@pytest.mark.parametrize("program", ["run", "task"])
@pytest.mark.parametrize(("operation", "when"), [("claim", AFTER), ("start", AFTER), ("outcomes", BEFORE)])
def test_at_most_once_a_run_whose_turn_an_operator_has_recorded_as_lost_names_why_and_plans_no_other(
    operation: str, when: str, program: str
) -> None:
    lane = MemoryLane(OK, OK, OK, guarantee=AT_MOST_ONCE, max_records_per_run=2)
    lane.plan()
    work = lane.run if program == "run" else lambda parts: replay_until_records(parts, no_session)
    slow = stopped(lane, work, operation, when)
    assert void(lane).consequence is Consequence.LOST
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)
    assert "was recorded as lost by an operator: the batch is broken" in str(slow.error)
    assert (lane.newest().turn.n, lane.newest().reason) == (1, "the batch is broken")
    assert lane.parts().store.open_plan(lane.newest()) is None
    lane.run()
    assert (lane.floor(), lane.committed(), lane.offsets().count(2)) == (3, 3, 1)


def test_at_most_once_a_driver_ends_by_name_although_another_run_has_begun_the_turn_after_the_lost_one() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    slow = stopped(lane, lambda parts: replay_until_records(parts, no_session), "outcomes", BEFORE)
    void(lane)
    lane.produce(OK)
    lane.plan()
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)


def test_a_settle_task_whose_turn_an_operator_has_recorded_as_lost_names_why() -> None:
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE)
    turn = lane.plan().turn
    stopped(lane, lane.replay, "start", AFTER).kill()
    void(lane)
    with pytest.raises(TurnVoided, match="recorded as lost by an operator: the batch is broken"):
        lane.settle(turn=turn)
    assert lane.committed() == 1


def test_a_turn_that_was_lost_without_an_operator_ends_no_run() -> None:
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE, lost_after="0s")
    lane.plan()
    stopped(lane, lane.replay, "start", AFTER).kill()
    lane.run()
    assert (lane.ranges(Outcome.LOST), lane.newest().closed_by_operator) == ([(0, 1)], False)


@pytest.mark.parametrize("reported", [False, True])
def test_i11_at_most_once_a_pause_is_in_the_settlement_that_records_the_turn_as_lost(reported: bool) -> None:
    lane = MemoryLane(OK, partitions=2, guarantee=AT_MOST_ONCE)
    if reported:
        lost(lane)
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
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    stopped(lane, lane.replay, "start", AFTER).kill()
    stopped(lane, lambda parts: void_by(parts, pause=True), operation, when).kill()
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
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    stopped(lane, lambda parts: parts.store.store_claim(lane.parts().store.open_plan(lane.newest())), "claim", AFTER)
    stopped(lane, lambda parts: void_by(parts, pause=True), "start", AFTER).kill()
    lane.run_fails(TransientError, "handed out by another process")
    assert void(lane, pause=True).consequence is Consequence.LOST
    assert (lane.settled().paused, lane.offsets()) == (True, [])


def test_a_settle_task_whose_turn_an_operator_has_voided_names_who_and_why() -> None:
    lane = MemoryLane(OK)
    turn = lane.plan().turn
    lane.replay()
    void(lane)
    with pytest.raises(TurnVoided, match="closed as void by test: the batch is broken"):
        lane.settle(turn=turn)
    assert lane.committed() == 0


def test_i9_a_settle_that_comes_late_to_a_voided_turn_ends_as_if_it_had_not_come() -> None:
    """Decisions of the next turn are stored by then, so its own are refused, and what they expire is not decided."""
    lane = MemoryLane(OK, OK)
    lane.run()
    lane.produce(OK, OK, OK)
    lane.log().expire(4)
    turn = lane.plan().turn
    lane.replay()
    late = stopped(lane, lambda parts: lane.settle(parts, turn=turn), "decisions", BEFORE)
    void(lane)
    lane.run()
    settled = lane.newest()
    late.advance(None)
    assert isinstance(late.error, TurnVoided)
    assert lane.newest() == settled
    assert lane.ranges(Outcome.EXPIRED) == [(2, 4)]


def test_a_void_with_a_pause_pauses_although_an_earlier_void_has_died_that_was_to_pause_nothing() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    stopped(lane, void_by, "claim", AFTER).kill()
    closed = void(lane, pause=True)
    assert (closed.consequence, closed.not_paused, lane.settled().paused) == (Consequence.VOID, None, True)
    lane.run()
    assert lane.offsets() == []


def test_a_void_that_can_not_pause_tells_it_and_commits_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FatalError("turn 2 is open")

    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    stopped(lane, lane.replay, "start", AFTER)
    stopped(lane, void_by, "outcomes", AFTER).kill()  # an earlier void, which was to pause nothing
    monkeypatch.setattr(operator_void, "perform_action", refuse)
    closed = void(lane, pause=True)
    assert (closed.consequence, closed.not_paused, lane.committed()) == (Consequence.LOST, "turn 2 is open", 2)


@pytest.mark.parametrize("closes", ["run", "replay", "settle", "action"])
def test_i11_a_waived_turn_is_closed_by_any_process_that_meets_it(closes: str) -> None:
    """The operator's process dies between the waiver and the settlement; reason and pause are in the waiver."""
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    operator = stopped(lane, lambda parts: void_by(parts, pause=True), "claim", AFTER)
    operator.kill()
    if closes == "replay":
        with pytest.raises(TurnVoided):
            lane.replay()
    elif closes == "action":
        lane.perform(TurnKind.PAUSE)
    else:
        getattr(lane, closes)()
    kinds = [TurnKind.GENESIS, TurnKind.VOID, *{"run": [TurnKind.RUN], "action": [TurnKind.PAUSE]}.get(closes, [])]
    assert (lane.kinds(), lane.settled().paused) == (kinds, True)
    void_settlement = list(lane.world.tables.settlements.values())[1]
    assert (void_settlement.reason, void_settlement.closed_by_operator) == ("the batch is broken", True)
    lane.perform(TurnKind.RESUME)
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0], 1)


def test_i1_the_end_of_a_waived_turn_is_not_committed() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan()
    operator = stopped(lane, void_by, "claim", AFTER)
    operator.kill()
    lane.settle()
    assert (lane.committed(), lane.floor()) == (0, 0)


def void_by(parts: Any, pause: bool = False) -> None:
    operator_void.void_open_turn(parts, operator_void.open_turn(parts).plan.turn, REASON, pause)


@pytest.mark.parametrize("kind", [TurnKind.SKIP, TurnKind.PAUSE, TurnKind.RESET])
def test_an_open_operator_action_is_settled_and_never_void(kind: TurnKind) -> None:
    lane = MemoryLane(OK, OK, OK).after_run()
    lane.strike("decisions", kill, BEFORE)
    with pytest.raises(Killed):
        lane.perform(kind, {TP: 3})
    assert void(lane).consequence is Consequence.SETTLED
    assert kind in lane.kinds()
    assert TurnKind.VOID not in lane.kinds()


def kill() -> None:
    raise Killed


def test_with_no_turn_open_there_is_nothing_to_void() -> None:
    lane = MemoryLane(OK)
    with pytest.raises(ConfigError, match="no open turn in its lane live"):
        void(lane)
    lane.run()
    with pytest.raises(ConfigError, match="no open turn in its lane live"):
        void(lane)


def test_another_turn_than_the_one_that_was_shown_is_not_closed() -> None:
    lane = MemoryLane(OK)
    turn = lane.plan().turn
    void(lane)
    lane.plan()
    with pytest.raises(FatalError, match=r"turn 2 .* is\. Nothing was stored"):
        operator_void.void_open_turn(lane.parts(), turn, "a test")


def test_s37_a_turn_is_closed_although_the_group_can_not_be_committed() -> None:
    lane = MemoryLane(OK)
    lane.plan()
    lane.world.members = ["a console consumer"]
    closed = void(lane)
    assert closed.not_committed is not None
    assert "a console consumer" in closed.not_committed
    assert lane.newest().kind is TurnKind.VOID


def lost(lane: MemoryLane) -> None:
    """Plan and replay a turn, and lose a file of its outcomes."""
    lane.plan_and_replay()
    lane.world.tables.lost_files.add(next(iter(lane.world.tables.outcomes)))


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, NO_GUARANTEE])
def test_a_void_stops_naming_the_lost_files_of_its_turn_after_its_settlement(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee)
    lost(lane)
    lane.operations.clear()
    assert void(lane).consequence is Consequence.VOID
    assert not lane.world.tables.lost_files
    operations = list(dict.fromkeys(lane.operations))
    assert operations.index("settlement") < operations.index("files")
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 0, 1], 2)


def test_i7_at_most_once_a_reported_turn_with_a_lost_file_is_lost_whole() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lost(lane)
    lane.run_fails(FatalError, "ackline void lane")
    assert void(lane).consequence is Consequence.LOST
    assert (lane.ranges(Outcome.LOST), lane.settled().counts, lane.settled().gaps) == ([(0, 2)], {"lost": 2}, 0)
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2], 3)


@pytest.mark.parametrize("operation", ["decisions", "settlement"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_i9_an_operator_who_dies_while_a_reported_turn_becomes_lost_leaves_it_to_the_next_process(
    operation: str, when: str
) -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lost(lane)
    operator = stopped(lane, void_by, operation, when)
    operator.kill()
    if (operation, when) == ("decisions", BEFORE):
        void(lane)
    lane.run()
    assert (lane.ranges(Outcome.LOST), lane.offsets(), lane.committed()) == ([(0, 2)], [0, 1], 2)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_i4_a_settle_that_has_read_the_outcomes_before_they_were_lost_and_a_void_never_both_count(when: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE)
    lane.plan_and_replay()
    settles = stopped(lane, lambda parts: lane.settle(parts), "decisions", when)
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
    assert counts == ({"acked": 2} if when == AFTER else {"lost": 2})
    assert (lane.offsets(), lane.committed()) == ([0, 1], 2)


# ---- the errors of turns that may be stuck ---------------------------------------------------------------------------


def no_proof(lane: MemoryLane) -> None:
    lane.settle()


def guarantee_changed(lane: MemoryLane) -> None:
    lane.settings["guarantee"] = AT_MOST_ONCE
    lane.run()


def batch_does_not_decode(lane: MemoryLane) -> None:
    def fails(*_: Any) -> Any:
        raise FatalError("the Spark job failed (CorruptRecordException)")

    lane.replay(lane.parts(run_job=fails))


def leader_is_gone(lane: MemoryLane) -> None:
    lane.log().has_leader = False
    lane.replay()


def outcome_files_are_lost(lane: MemoryLane) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise FatalError("the table outcomes can't be used: no such file")

    lane.replay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ackline.testing.memory_store.MemoryStore.outcomes_of", fails)
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
    lane = MemoryLane(OK)
    lane.plan()
    with pytest.raises(error, match=r"`ackline void lane --reason …`"):
        stuck(lane)
    lane.settings["guarantee"] = AT_LEAST_ONCE
    lane.log().has_leader = True
    void(lane)
    lane.run()
    assert lane.committed() == 1
