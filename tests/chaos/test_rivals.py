"""Two runs at once, processes that are stopped while others go on, and turns that were left open (S7, S53; faults 2, 5,
24, 25; I3, I11)."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping

import pytest

from ackline.actions import actions
from ackline.errors import AcklineError, TransientError
from ackline.kafka.group import Group
from ackline.lane import plans
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Settlement, TurnKind
from ackline.local.processes import wait_until
from ackline.steps import plan, replay, run, settle
from ackline.steps.replay import job_of
from tests.chaos import handlers, victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of
from tests.support.actor import Killed


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


def test_two_runs_step_by_step_the_second_adopts_and_adds_nothing(lab: MakeLab) -> None:
    lane = lab(retry={"max_retries": 0})
    lane.produce_records(3, {1: {"fail": -1}})
    with lane.adapters("a") as a, lane.adapters("b") as b:
        assert not plan.plan(a).adopted
        adopted = plan.plan(b)
        assert adopted.adopted
        assert adopted.plan is not None
        results = [adapters.run_job(lane.spark, job_of(adapters, adopted.plan), None) for adapters in (a, b)]
        stored = [
            adapters.store.store_outcomes(adopted.plan.turn, replay.add_actions(adopted.plan, result))
            for adapters, result in zip((b, a), results, strict=True)
        ]
        assert stored == [True, False]
        settle.settle(a)
        settle.settle(b)
    assert lane.rows() == [Row(0, 1, "acked"), Row(1, 0, "dead"), Row(1, 1, "failed"), Row(2, 1, "acked")]
    assert turns(lane) == {"plans": {(1, "run"): 1}, "settlements": {(0, "genesis"): 1, (1, "run"): 1}}
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


def test_a_loser_whose_turn_was_settled_meanwhile_ends_well_although_the_next_is_open(lab: MakeLab) -> None:
    """Run A replays turn 1; others settle it and plan turn 2. A has nothing left to do, and raises no error."""
    lane = lab()
    lane.produce_records(3)
    with lane.adapters("a") as a:
        planned = plan.plan(a).plan
        assert planned is not None
        result = a.run_job(lane.spark, job_of(a, planned), None)
        lane.run()
        lane.produce_records(2)
        lane.plan()
        assert not a.store.store_outcomes(planned.turn, replay.add_actions(planned, result))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "plan", lambda adapters: plan.Planned(planned, adopted=True))
            patch.setattr(run, "replay", lambda *_: replay.Replayed(planned, result.calls))
            run.run(a, lane.spark)
    lane.run()
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
        assert wait_until(lambda: bool(lane.calls()), victims.SECONDS), paused.poll()
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


def test_s7_a_process_that_sleeps_before_it_stores_its_plan_adopts_the_winner_s(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(4)
    with victims.paused_at(lane, "plan", "plan") as sleeper:
        lane.run()
        lane.produce_records(2)
        lane.plan()
        assert victims.wake(sleeper)[0] == 0
    lane.run()
    assert turns(lane)["plans"] == {(1, "run"): 1, (2, "run"): 1}
    lane.judge(settled=True)


def test_a_commit_whose_answer_is_lost_is_made_again(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 25: the broker has stored the commit, the run fails, and the next run commits the same."""
    lane = lab()
    lane.produce_records(3)
    real = Group.commit

    def lost(self: Group, offsets: Mapping[TopicPartition, Committed]) -> None:
        real(self, offsets)
        raise TransientError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Group, "commit", lost)
        with pytest.raises(TransientError):
            lane.run()
    offset, metadata = lane.group_commit() or (None, "{}")
    assert (offset, json.loads(metadata).get("n"), lane.run().calls) == (3, 1, 0)
    lane.judge(settled=True)


WEEK = 7 * 24 * 3600


def skip(lane: Lab, to: int) -> None:
    """Carry out an operator action."""

    def choose(newest: Settlement) -> plans.Targets:
        return {TopicPartition(lane.topic, 0): to}

    with lane.adapters() as adapters:
        actions.perform_action(adapters, TurnKind.SKIP, choose, "poison")


def settled_turns(lane: Lab) -> list[tuple[int, str]]:
    """(n, kind) of each plan, in order; each has one settlement."""
    found = turns(lane)
    assert (found["settlements"] - found["plans"], set(found["plans"].values())) == ({(0, "genesis"): 1}, {1})
    return sorted(found["plans"])


def test_s53_a_plan_left_open_for_a_week_is_adopted_and_never_planned_twice(lab: MakeLab) -> None:
    """Also where the log has more by then: the old turn is finished as it was planned, and the next one reads on."""
    lane = lab()
    lane.produce_records(3)
    lane.plan()
    lane.advance_clock(WEEK)
    lane.produce_records(2)
    lane.run()
    assert lane.new_offsets() == [0, 1, 2]
    lane.judge()
    lane.run()
    assert (lane.new_offsets(), settled_turns(lane)) == ([3, 4], [(1, "run"), (2, "run")])
    lane.judge(settled=True)


def test_s53_a_plan_left_open_for_a_week_whose_range_is_gone_is_closed_as_void(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(3)
    lane.plan()
    lane.advance_clock(WEEK)
    lane.expire(3)
    lane.produce_records(1)
    lane.run()
    assert (lane.new_offsets(), lane.rows()) == ([3], [Row(0, 0, "expired", 3), Row(3, 1, "acked")])
    assert sorted(row["kind"] for row in lane.table("settlements")) == ["genesis", "run", "void"]
    lane.judge(settled=True)


def test_s53_a_run_that_loses_its_turn_to_an_operator_action_takes_the_next(lab: MakeLab) -> None:
    """The run is about to store its plan when an operator skips: what it would have read is not read."""
    lane = lab(max_uncommitted=4)
    lane.produce_records(6, {1: {"fail": -1}})
    lane.run()
    with victims.paused_at(lane, "plan", "plan") as sleeper:
        skip(lane, 5)
        status, errors = victims.wake(sleeper)
        assert status == 0, errors
    lane.run()
    assert settled_turns(lane) == [(1, "run"), (2, "skip"), (3, "run")]
    assert (lane.new_offsets(), lane.committed()) == ([0, 1, 2, 3, 5], 6)
    lane.judge(settled=True)


def test_s53_an_operator_action_that_was_killed_is_finished_by_the_next_run(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan holds the whole action."""
    lane = lab(retry={"initial_delay": "1h"})
    lane.produce_records(3, {1: {"fail": -1}})
    lane.run()

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(actions, "settle_turn", die)
        with pytest.raises(Killed):
            skip(lane, 2)
    assert lane.committed() == 1
    lane.judge()
    lane.produce_records(1)
    lane.run()
    assert settled_turns(lane) == [(1, "run"), (2, "skip"), (3, "run")]
    assert lane.rows() == sorted([*all_of("acked", [0, 2, 3]), Row(1, 0, "skipped", 2), Row(1, 1, "failed")])
    assert lane.committed() == 4
    lane.judge(settled=True)
