"""Two runs at once, and processes that sleep while others go on (S7, S53; faults 2, 5, 24, 25; I3, I11)."""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping

import pytest

from ackline.commit_rule import Committed
from ackline.errors import AcklineError, TransientError
from ackline.kafka.group import Group
from ackline.local.processes import wait_until
from ackline.offsets import TopicPartition
from ackline.steps import plan, replay, run, settle
from tests.chaos import handlers, victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of


def turns(one: Lab) -> dict[str, Counter[tuple[int, str]]]:
    """How many rows each turn has in plans and settlements, by kind: one a turn where there is one partition."""
    return {name: Counter((row["turn"], row["kind"]) for row in one.table(name)) for name in ("plans", "settlements")}


def test_two_commands_at_once_make_one_plan_one_outcomes_and_one_settlement(lab: MakeLab) -> None:
    """Fault 2: each of two processes is whole; one adopts what the other began, or stops."""
    one = lab()
    one.records(30, {3: {"fail": 1}})
    with victims.ended(victims.start(one, "run")) as first, victims.ended(victims.start(one, "run")) as second:
        said = [process.communicate(timeout=victims.SECONDS)[1] for process in (first, second)]
        assert 0 in (first.returncode, second.returncode), said
        assert not any("Traceback" in text for text in said), said
    assert all(count == 1 for kind in turns(one).values() for count in kind.values())
    one.judge()
    one.run()
    one.judge(settled=True)


def test_two_runs_step_by_step_the_second_adopts_and_adds_nothing(lab: MakeLab) -> None:
    one = lab(retry={"max_retries": 0})
    one.records(3, {1: {"fail": -1}})
    with one.parts("a") as a, one.parts("b") as b:
        assert not plan.plan(a).adopted
        adopted = plan.plan(b)
        assert adopted.adopted
        assert adopted.plan is not None
        results = [replay._run_spark_job(parts, adopted.plan, one.spark, None) for parts in (a, b)]
        stored = [
            parts.store.store_outcomes(adopted.plan.turn, replay.add_actions(adopted.plan, result))
            for parts, result in zip((b, a), results, strict=True)
        ]
        assert stored == [True, False]
        settle.settle(a)
        settle.settle(b)
    assert one.rows() == [Row(0, 1, "acked"), Row(1, 0, "dead"), Row(1, 1, "failed"), Row(2, 1, "acked")]
    assert turns(one) == {"plans": {(1, "run"): 1}, "settlements": {(0, "genesis"): 1, (1, "run"): 1}}
    one.judge(settled=True)


def test_many_runs_at_once_in_threads_settle_each_record_once(lab: MakeLab) -> None:
    one = lab(max_records_per_run=5)
    one.records(20)
    failed: list[BaseException] = []

    def loop() -> None:
        for _ in range(4):
            try:
                one.run()
            except AcklineError:
                pass  # it stops; what it left is for the others
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    one.judge()
    for _ in range(4):
        one.run()
    assert one.rows() == all_of("acked", range(20))
    assert all(count == 1 for kind in turns(one).values() for count in kind.values())
    one.judge(settled=True)


def test_a_loser_whose_turn_was_settled_meanwhile_ends_well_although_the_next_is_open(lab: MakeLab) -> None:
    """Run A replays turn 1; others settle it and plan turn 2. A has nothing left to do, and no proof is missing."""
    one = lab()
    one.records(3)
    with one.parts("a") as a:
        planned = plan.plan(a).plan
        assert planned is not None
        result = replay._run_spark_job(a, planned, one.spark, None)
        one.run()
        one.records(2)
        one.plan()
        assert not a.store.store_outcomes(planned.turn, replay.add_actions(planned, result))
        run_on = pytest.MonkeyPatch()
        with run_on.context() as patch:
            patch.setattr(run, "plan", lambda parts: plan.Planned(planned, adopted=True))
            patch.setattr(run, "replay", lambda *_: replay.Replayed(planned, result.calls))
            run.run(a, one.spark)
    one.run()
    one.judge(settled=True)


@pytest.mark.parametrize("write", ["decisions", "settlement", "commit"])
def test_s7_a_process_that_sleeps_through_two_turns_changes_nothing(lab: MakeLab, write: str) -> None:
    """Its write is refused, or, where Kafka can't refuse it, undone by the next run (fault 24)."""
    one = lab()
    one.records(4, {1: {"fail": 1}})
    one.plan()
    one.replay()
    with victims.held(one, "settle", write) as sleeper:
        one.run()
        one.run()
        one.records(2)
        one.run()
        rows, floor = one.rows(), one.committed()
        assert floor == 6
        status, said = victims.wake(sleeper)
        assert "Traceback" not in said
    assert one.rows() == rows
    assert all(count == 1 for kind in turns(one).values() for count in kind.values())
    assert status == 0 or one.committed() == floor
    if write == "commit":
        assert one.committed() == 1, "Kafka takes it: the floor of turn 1, late"
    one.judge()
    one.run()
    assert one.committed() == 6
    assert one.rows() == rows
    one.judge(settled=True)


def test_s7_a_driver_that_is_paused_and_resumed_beside_its_retry_adds_nothing(lab: MakeLab) -> None:
    """Fault 5: suspended in the middle of its batch, past any heartbeat; its task is tried again meanwhile."""
    one = lab(handler="tests.chaos.handlers:gated")
    one.records(8, {1: {"fail": 1}})
    one.plan()
    with victims.ended(victims.start(one, "replay")) as paused:
        assert wait_until(lambda: bool(one.calls()), victims.SECONDS), paused.poll()
        os.killpg(paused.pid, signal.SIGSTOP)
        assert one.handled() == [(0, 1)]
        one.define(handler="ackline.testing.journal:handle")
        one.run()
        one.run()
        rows = one.rows()
        assert one.handled() == sorted([*((offset, 1) for offset in range(8)), (1, 2)])
        assert one.committed() == 8
        handlers.gate(one.topic).touch()
        os.killpg(paused.pid, signal.SIGCONT)
        said = paused.communicate(timeout=victims.SECONDS)[1]
        assert paused.returncode == 0, said
    assert one.offsets() == list(range(1, 8)), "it went on to the end, and all of it was refused"
    assert one.rows() == rows
    assert len(one.table("outcomes")) == 9
    assert one.run().calls == 0
    one.judge(settled=True)


def test_s7_a_process_that_sleeps_before_it_stores_its_plan_adopts_the_winner_s(lab: MakeLab) -> None:
    one = lab()
    one.records(4)
    with victims.held(one, "plan", "plan") as sleeper:
        one.run()
        one.records(2)
        one.plan()
        assert victims.wake(sleeper)[0] == 0
    one.run()
    assert turns(one)["plans"] == {(1, "run"): 1, (2, "run"): 1}
    one.judge(settled=True)


def test_a_commit_whose_answer_is_lost_is_made_again(lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 25: the broker has it, the run does not know; the next one commits the same."""
    one = lab()
    one.records(3)
    real = Group.commit

    def lost(self: Group, offsets: Mapping[TopicPartition, Committed]) -> None:
        real(self, offsets)
        raise TransientError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(Group, "commit", lost)
        with pytest.raises(TransientError):
            one.run()
    held = one.held()
    assert held is not None
    assert (held[0], json.loads(held[1])["n"]) == (3, 1)
    assert one.run().calls == 0
    one.judge(settled=True)
