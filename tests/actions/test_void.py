"""An open turn that an operator closes as void, also beside processes that work on it (I7, I9, I11)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ackline.actions import void as operator_void
from ackline.actions.form import ACTIONS
from ackline.actions.perform import entered_action
from ackline.actions.void import Consequence
from ackline.errors import AcklineError, ConfigError, FatalError, LedgerError, NoProof, TransientError, TurnVoided
from ackline.forms.form import Entered
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps.run import replay_until_records
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    FAILS,
    GUARANTEES,
    NO_GUARANTEE,
    NOON,
    OK,
    TP,
    TP1,
    MemoryLane,
    lose_a_file,
    stopped,
    void,
    void_by,
)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_i11_what_an_operator_voids_is_planned_again_and_nothing_is_lost(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee).after_plan()
    closed = void(lane)
    assert (closed.consequence, closed.not_committed) == (Consequence.VOID, None)
    assert (lane.newest().kind, lane.newest().reason, lane.floor()) == (TurnKind.VOID, "the batch is broken", 0)
    lane.run()
    assert (lane.offsets(), lane.committed(), lane.newest().turn.n) == ([0, 1], 2, 2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_after_a_void_the_operators_actions_work(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee).after_plan()
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
    lane = MemoryLane(OK, partitions=2, guarantee=guarantee).after_plan()
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
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    driver = stopped(lane, lambda adapters: replay_until_records(adapters, no_session), operation, when)
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
    assert (len(lane.offsets()), lane.floor(), lane.committed()) == (len(set(lane.offsets())), 2, 2)
    assert len(lane.ranges(Outcome.LOST)) == (not reported and (operation, when) != ("claim", BEFORE))


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("program", ["run", "task"])
def test_a_run_whose_turn_an_operator_has_voided_names_who_and_why_and_plans_no_other(
    guarantee: str, program: str
) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee).after_plan()
    work = lane.run if program == "run" else lambda adapters: replay_until_records(adapters, no_session)
    slow = stopped(lane, work, "claim" if guarantee == AT_MOST_ONCE else "outcomes", BEFORE)
    void(lane)
    slow.advance(None)
    assert isinstance(slow.error, TurnVoided)
    assert "closed as void by test: the batch is broken" in str(slow.error)
    assert lane.newest().turn.n == 1
    assert lane.adapters().store.open_plan(lane.newest()) is None
    lane.run()
    assert (lane.floor(), lane.committed()) == (2, 2)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_settle_task_whose_turn_an_operator_has_closed_names_who_and_why(guarantee: str) -> None:
    lane = MemoryLane(OK, guarantee=guarantee)
    turn = lane.plan().turn
    if guarantee == AT_MOST_ONCE:
        stopped(lane, lane.replay, "start", AFTER).kill()
    else:
        lane.replay()
    void(lane)
    how = "recorded as lost by an operator" if guarantee == AT_MOST_ONCE else "closed as void by test"
    with pytest.raises(TurnVoided, match=f"{how}: the batch is broken"):
        lane.settle(turn=turn)
    assert lane.committed() == (1 if guarantee == AT_MOST_ONCE else 0)


def test_i9_a_settle_that_comes_late_to_a_voided_turn_ends_as_if_it_had_not_come() -> None:
    """Decisions of the next turn are stored by then, so its own are refused, and what they expire is not decided."""
    lane = MemoryLane(OK, OK).after_run()
    lane.produce(OK, OK, OK)
    lane.log().expire(4)
    turn = lane.plan().turn
    lane.replay()
    late = stopped(lane, lambda adapters: lane.settle(adapters, turn=turn), "decisions", BEFORE)
    void(lane)
    lane.run()
    settled = lane.newest()
    late.advance(None)
    assert isinstance(late.error, TurnVoided)
    assert (lane.newest(), lane.ranges(Outcome.EXPIRED)) == (settled, [(2, 4)])


def test_a_void_with_a_pause_pauses_although_an_earlier_void_has_died_that_was_to_pause_nothing() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    stopped(lane, void_by, "claim", AFTER).kill()
    closed = void(lane, pause=True)
    assert (closed.consequence, closed.not_paused, lane.settled().paused) == (Consequence.VOID, None, True)
    lane.run()
    assert lane.offsets() == []


@pytest.mark.parametrize("closes", ["run", "replay", "settle", "action"])
def test_i11_a_waived_turn_is_closed_by_any_process_that_meets_it(closes: str) -> None:
    """The operator's process dies between the waiver and the settlement; reason and pause are in the waiver."""
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE).after_plan()
    operator = stopped(lane, lambda adapters: void_by(adapters, pause=True), "claim", AFTER)
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


def test_a_waived_turn_is_not_closed_at_a_time_before_the_last_turn() -> None:
    """Its void settlement would move the clock of the lane back, and every later turn with it."""
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_run()
    lane.produce(OK)
    lane.plan()
    stopped(lane, void_by, "claim", AFTER).kill()
    lane.world.now -= timedelta(hours=5)
    past = lane.world.now
    with pytest.raises(ConfigError, match=r"--now .* is before the last turn"):
        lane.run(lane.adapters(fixed_now=past))


def test_i1_the_end_of_a_waived_turn_is_not_committed() -> None:
    lane = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE).after_plan()
    operator = stopped(lane, void_by, "claim", AFTER)
    operator.kill()
    lane.settle()
    assert (lane.committed(), lane.floor()) == (0, 0)


@pytest.mark.parametrize("kind", [TurnKind.SKIP, TurnKind.PAUSE, TurnKind.RESET])
def test_an_open_operator_action_is_settled_and_never_void(kind: TurnKind) -> None:
    lane = MemoryLane(OK, OK, OK).after_run()
    lane.die("decisions", BEFORE)
    with pytest.raises(Killed):
        lane.perform(kind, {TP: 3})
    assert void(lane).consequence is Consequence.SETTLED
    assert kind in lane.kinds()
    assert TurnKind.VOID not in lane.kinds()


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
        operator_void.void_open_turn(lane.adapters(), turn, "a test")


def test_s37_a_turn_is_closed_although_the_group_can_not_be_committed() -> None:
    lane = MemoryLane(OK).after_plan()
    lane.world.members = ["a console consumer"]
    closed = void(lane)
    assert closed.not_committed is not None
    assert "a console consumer" in closed.not_committed
    assert lane.newest().kind is TurnKind.VOID


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, NO_GUARANTEE])
def test_a_void_stops_naming_the_lost_files_of_its_turn_after_its_settlement(guarantee: str) -> None:
    lane = MemoryLane(OK, OK, guarantee=guarantee)
    lose_a_file(lane)
    lane.operations.clear()
    assert void(lane).consequence is Consequence.VOID
    assert not lane.world.tables.lost_files
    operations = list(dict.fromkeys(lane.operations))
    assert operations.index("settlement") < operations.index("files")
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([0, 1, 0, 1], 2)


def test_a_void_whose_lost_files_can_not_be_dropped_stands_and_says_what_drops_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise TransientError("the table refused 4 commits in a row")

    lane = MemoryLane(OK)
    lose_a_file(lane)
    monkeypatch.setattr("tests.support.memory_store.MemoryStore.drop_lost_files", refused)
    assert void(lane).consequence is Consequence.VOID
    assert "`ackline maintain` drops the lost files" in caplog.text


def batch_does_not_decode(lane: MemoryLane) -> None:
    def fails(*_: Any) -> Any:
        raise FatalError("the Spark job failed (CorruptRecordException)")

    lane.replay(lane.adapters(run_job=fails))


def leader_is_gone(lane: MemoryLane) -> None:
    lane.log().has_leader = False
    lane.replay()


@pytest.mark.parametrize(
    ("stuck", "error"),
    [(MemoryLane.settle, NoProof), (batch_does_not_decode, FatalError), (leader_is_gone, TransientError)],
)
def test_the_error_of_a_turn_that_may_be_stuck_names_the_way_out(
    stuck: Callable[[MemoryLane], object], error: type[AcklineError]
) -> None:
    lane = MemoryLane(OK).after_plan()
    with pytest.raises(error, match=r"`ackline void lane --reason …`"):
        stuck(lane)
    lane.log().has_leader = True
    void(lane)
    lane.run()
    assert lane.committed() == 1


@pytest.mark.parametrize("error", [LedgerError, FatalError], ids=["damaged", "the disk can't read them"])
def test_an_open_skip_that_can_not_be_settled_is_void(error: type[FatalError], monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the files of rows that wait for records in flight, which may be damaged after its plan is stored."""

    def damaged(*_: Any) -> str:
        raise error("staged rows are damaged")

    lane = MemoryLane(OK, FAILS, retry={"initial_delay": "1h"}).after_run()
    with monkeypatch.context() as patch:
        patch.setattr("ackline.steps.settle.settled_outputs", damaged)
        with pytest.raises(error, match="staged rows are damaged"):
            lane.perform(TurnKind.SKIP, {TP: 2})
        lane.run_fails(error, "staged rows are damaged")
        closed = void(lane)
    assert (closed.consequence, lane.kinds()[-1], lane.pending()) == (Consequence.VOID, TurnKind.VOID, [(1, 2)])
    lane.run()
    lane.perform(TurnKind.SKIP, {TP: 2})
    assert (lane.pending(), lane.committed()) == ([], 2)


def test_an_open_action_is_settled_although_the_retry_class_of_its_plan_is_gone() -> None:
    lane = MemoryLane(OK, FAILS, retry={"class": "tests.pipeline.retry_classes:Patient"}).after_run()
    lane.die("decisions", BEFORE)
    with pytest.raises(Killed):
        lane.perform(TurnKind.SKIP, {TP: 2})
    newest, plan = lane.adapters().newest_and_open_plan()
    assert newest is not None
    assert plan is not None
    assert plan.settings["retry"]["class"] == "tests.pipeline.retry_classes:Patient"
    plan.settings["retry"]["class"] = "tests.pipeline.retry_classes:Gone"
    lane.settings["retry"] = {"initial_delay": "1h"}
    lane.run()
    assert lane.pending() == []


def test_no_partition_of_a_backfill_is_paused_because_no_command_resumes_it() -> None:
    entered = Entered({"pause": True, "lane": "backfill-b", "reason": "why"}, by_option=True)
    with pytest.raises(ConfigError, match="--pause: no command resumes a partition of a backfill; leave it out"):
        entered_action(ACTIONS["void"], "lane", entered, NOON)
