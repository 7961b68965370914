"""Two runs at once, processes that are stopped while others go on, and turns that were left open (S7, S53; faults 2, 5,
24, 25; I3, I11)."""

import os
import signal
import threading
from collections import Counter
from datetime import timedelta

import pytest

from ackline.errors import AcklineError, TransientError
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnKind
from ackline.local.processes import wait_until
from ackline.steps import plan, replay
from ackline.steps.replay import job_of
from tests.chaos import handlers, victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, all_of
from tests.support.memory import BEFORE, GroupCommit
from tests.support.memory_adapters import no_session
from tests.support.memory_lane import FAILS, OK, TP, MemoryLane, effective_rows, stopped, writes_of


def turns(lane: Lab) -> dict[str, Counter[tuple[int, str]]]:
    """Returns how many rows each (turn, kind) has in plans and settlements; with one partition it must be one."""
    return {name: Counter((row["turn"], row["kind"]) for row in lane.table(name)) for name in ("plans", "settlements")}


def test_two_commands_at_once_make_one_plan_one_outcomes_and_one_settlement(lab: MakeLab) -> None:
    """Fault 2: one process adopts the turn that the other has begun, or stops with an error."""
    lane = lab()
    lane.produce_records(30, {3: {"fail": 1}})
    with victims.ended(victims.start(lane, "run")) as first, victims.ended(victims.start(lane, "run")) as second:
        errors = [process.communicate(timeout=victims.SECONDS)[1] for process in (first, second)]
        assert 0 in (first.returncode, second.returncode), errors
        assert not any("Traceback" in text for text in errors), errors
    assert all(count == 1 for kind in turns(lane).values() for count in kind.values())
    lane.judge()
    lane.run()
    lane.judge(settled=True)


def test_many_runs_at_once_in_threads_settle_each_record_once(lab: MakeLab) -> None:
    lane = lab(max_records_per_run=5)
    lane.produce_records(20)
    failed: list[BaseException] = []

    def loop() -> None:
        for _ in range(4):
            try:
                lane.run()
            except AcklineError:
                pass  # another run goes on with its turn
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    lane.judge()
    for _ in range(4):
        lane.run()
    assert lane.rows() == all_of("acked", range(20))
    assert all(count == 1 for kind in turns(lane).values() for count in kind.values())
    lane.judge(settled=True)


@pytest.mark.parametrize(
    "write",
    [pytest.param("decisions", marks=pytest.mark.deep), pytest.param("settlement", marks=pytest.mark.deep), "commit"],
)
def test_s7_a_process_that_sleeps_through_two_turns_changes_nothing(lab: MakeLab, write: str) -> None:
    """Its write is refused. Kafka can't refuse a commit, so the next run undoes it (fault 24)."""
    lane = lab()
    lane.produce_records(4, {1: {"fail": 1}})
    lane.plan()
    lane.replay()
    with victims.paused_at(lane, "settle", write) as sleeper:
        lane.run()
        lane.run()
        lane.produce_records(2)
        lane.run()
        rows, floor = lane.rows(), lane.committed()
        assert floor == 6
        status, errors = victims.wake(sleeper)
        assert "Traceback" not in errors
    assert lane.rows() == rows
    assert all(count == 1 for kind in turns(lane).values() for count in kind.values())
    assert status == 0 or lane.committed() == floor
    if write == "commit":
        assert lane.committed() == 1, "Kafka accepts the late commit, the floor of turn 1"
    lane.judge()
    lane.run()
    assert (lane.committed(), lane.rows()) == (6, rows)
    lane.judge(settled=True)


@pytest.mark.deep
def test_s7_a_driver_that_is_paused_and_resumed_beside_its_retry_adds_nothing(lab: MakeLab) -> None:
    """Fault 5: a driver is suspended in the middle of its batch, and its task is tried again meanwhile."""
    lane = lab(handler="tests.chaos.handlers:gated")
    lane.produce_records(8, {1: {"fail": 1}})
    lane.plan()
    with victims.ended(victims.start(lane, "replay")) as paused:
        assert wait_until(lambda: bool(lane.calls()), victims.SECONDS), paused.returncode
        os.killpg(paused.pid, signal.SIGSTOP)
        assert lane.new_calls() == [(0, 1)]
        lane.configure(handler="tests.support.journal:handle")
        lane.run()
        lane.run()
        rows = lane.rows()
        assert (lane.new_calls(), lane.committed()) == (sorted([*((offset, 1) for offset in range(8)), (1, 2)]), 8)
        handlers.gate(lane.topic).touch()
        os.killpg(paused.pid, signal.SIGCONT)
        errors = paused.communicate(timeout=victims.SECONDS)[1]
        assert paused.returncode == 0, errors
    assert lane.new_offsets() == list(range(1, 8)), "it goes on to the end, and its outcomes are refused"
    assert (lane.rows(), len(lane.table("outcomes")), lane.run().calls) == (rows, 9, 0)
    lane.judge(settled=True)


# ---- in memory ------------------------------------------------------------------------------------------------------


WEEK = timedelta(weeks=1)


def settled_turns(lane: MemoryLane) -> list[tuple[int, str]]:
    """Returns (n, kind) of each settlement. Each turn was planned once."""
    planned = [event.number for event in writes_of(lane, LIVE) if event.application.endswith("/plan")]
    settlements = lane.world.tables.settlements
    assert planned == [turn.n for turn in settlements if turn.n]
    return [(turn.n, str(settlement.kind)) for turn, settlement in settlements.items()]


def test_two_runs_step_by_step_the_second_adopts_and_adds_nothing() -> None:
    lane = MemoryLane(OK, FAILS, OK, retry={"max_retries": 0})
    a, b = lane.adapters("a"), lane.adapters("b")
    assert not plan.plan(a).adopted
    adopted = plan.plan(b)
    assert adopted.adopted
    assert adopted.plan is not None
    results = [adapters.run_job(no_session, job_of(adapters, adopted.plan), None) for adapters in (a, b)]
    stored = [
        adapters.store.store_outcomes(adopted.plan.turn, replay.add_actions(adopted.plan, result))
        for adapters, result in zip((b, a), results, strict=True)
    ]
    assert stored == [True, False]
    lane.settle(a)
    lane.settle(b)
    rows = [(row.offset, row.attempt, str(row.outcome)) for row in effective_rows(lane.world, LIVE, TP)]
    assert sorted(rows) == [(0, 1, "acked"), (1, 0, "dead"), (1, 1, "failed"), (2, 1, "acked")]
    assert settled_turns(lane) == [(0, "genesis"), (1, "run")]


def test_s7_a_process_that_sleeps_before_it_stores_its_plan_adopts_the_winner_s() -> None:
    lane = MemoryLane(OK, OK)
    sleeper = stopped(lane, plan.plan, "plan", BEFORE)
    lane.run()
    lane.produce(OK)
    lane.plan()
    sleeper.advance(None)
    lane.run()
    assert (sleeper.error, settled_turns(lane)) == (None, [(0, "genesis"), (1, "run"), (2, "run")])


def test_a_commit_whose_answer_is_lost_is_made_again() -> None:
    """Fault 25: the broker has stored the commit, the run fails, and the next run commits the same."""
    lane = MemoryLane(OK, OK)
    lane.world.faults.commits.append("unanswered")
    lane.run_fails(TransientError)
    lane.run()
    lost, again = (event.offsets[TP] for event in lane.world.history if isinstance(event, GroupCommit))
    assert (lost.offset, again.offset, lane.offsets()) == (2, 2, [0, 1])


def test_s53_a_plan_left_open_for_a_week_is_adopted_and_never_planned_twice() -> None:
    """Also where the log has more by then: the old turn is finished as it was planned, and the next one reads on."""
    lane = MemoryLane(OK, OK).after_plan()
    lane.world.now += WEEK
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [0, 1]
    lane.run()
    assert (lane.offsets(), settled_turns(lane)) == ([0, 1, 2], [(0, "genesis"), (1, "run"), (2, "run")])


def test_s53_a_plan_left_open_for_a_week_whose_range_is_gone_is_closed_as_void() -> None:
    lane = MemoryLane(OK, OK, OK).after_plan()
    lane.world.now += WEEK
    lane.log().expire(3)
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(), lane.ranges(Outcome.EXPIRED), lane.kinds()) == ([3], [(0, 3)], ["genesis", "void", "run"])


def test_s53_a_run_that_loses_its_turn_to_an_operator_action_takes_the_next() -> None:
    """The run is about to store its plan when an operator skips: what it would have read is not read."""
    lane = MemoryLane(OK, FAILS, *[OK] * 4, max_uncommitted=4).after_run()
    sleeper = stopped(lane, plan.plan, "plan", BEFORE)
    lane.perform(TurnKind.SKIP, {TP: 5})
    sleeper.advance(None)
    lane.run()
    assert (sleeper.error, settled_turns(lane)[1:]) == (None, [(1, "run"), (2, "skip"), (3, "run")])
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2, 3, 5], 6)
